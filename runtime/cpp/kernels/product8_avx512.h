// The product of 8-bit rows with an 8-bit matrix, tile by tile.
#pragma once

#include <immintrin.h>

#include "avx512.h"
#include "kernels.h"

namespace translate_trt::avx512 {

// Activations in 8 bits: q(x) = round(x / scale) + zero, one scale a row. Values are unsigned, as
// the instruction wants them; weights are signed.
//
// Rows that equal the one before them are there once: before its first token a sentence's beams are
// all alike, and so are their products.
struct Rows8 {
  const std::uint8_t* values;  // [count, inputs]
  const float* scales;         // [count]
  const std::size_t* begins;   // [count + 1]; row i here is rows [begins[i], begins[i + 1]) outside
  std::size_t count;
  std::int32_t zero;
};

constexpr std::size_t kPanel = 4;  // blocks of 16 columns in a tile: four registers of weights
constexpr std::size_t kTile = 6;   // rows of a tile: 6 x 4 sums leave room for weights and a row

// Rows [rows, inputs] in 8 bits; positive ones have twice the steps. Memory is the caller's thread's.
Rows8 quantize(const float* x, std::size_t rows, std::size_t inputs, bool positive,
               const ParallelFor& parallel);

// Integer sums of a tile: [row][block], 16 columns in each.
using Sums = __m512i[kTile][kPanel];

// What the zero point adds to the sums of every row in a block of columns.
inline __m512i zero_sums(const Rows8& x, const Matrix8& matrix, std::size_t block) {
  const __m512i columns = _mm512_loadu_si512(matrix.column_sums + block * kLanes);
  return _mm512_mullo_epi32(columns, _mm512_set1_epi32(x.zero));
}

// Rows [row, row + rows), at most kTile, times blocks [block, last), at most kPanel; zero_sums are
// still to be taken off.
void product(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t rows,
             std::size_t block, std::size_t last, Sums& sums);

}  // namespace translate_trt::avx512
