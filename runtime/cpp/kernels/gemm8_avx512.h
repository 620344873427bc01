// The product of 8-bit rows with an 8-bit matrix, tile by tile.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "avx512.h"
#include "gemm8_amx.h"
#include "kernels.h"
#include "rows_avx512.h"

namespace translate_trt::avx512 {

struct GemmKernel;

// Activations in 8 bits: q(x) = round(x / scale) + zero, one scale a row. Values are unsigned, as
// the instruction wants them; weights are signed.
//
// Rows that equal the one before them are there once: before its first token a sentence's beams are
// all alike, and so are their products.
struct Rows8 {
  const std::uint8_t* values;  // [count, inputs], where the product's `place` says
  const float* scales;         // [count]
  const std::size_t* begins;   // [count + 1]; row i here is rows [begins[i], begins[i + 1]) outside
  std::size_t count;
  std::int32_t zero;
  const GemmKernel* kernel;  // that multiplies them
};

constexpr std::size_t kPanel = 4;  // blocks of 16 columns in a tile: four registers of weights
constexpr std::size_t kMaxTileRows = 32;  // of a tile, whichever way it is computed

// Rows [rows, inputs] in 8 bits, for a product or, if they are too few for it, for kU8S8Vnni;
// positive ones have twice the steps.
Rows8 quantize(const float* x, std::size_t rows, std::size_t inputs, bool positive,
               const GemmKernel& best, Executor& executor, Arena& arena);

// Integer sums of a tile: [row][block], 16 columns in each.
using Sums = __m512i[kMaxTileRows][kPanel];

// What the zero point adds to the sums of every row in a block of columns.
inline __m512i zero_sums(const Rows8& x, const Matrix8& matrix, std::size_t block) {
  if (x.zero == 0) {
    return _mm512_setzero_si512();
  }
  const __m512i columns = _mm512_loadu_si512(matrix.column_sums + block * kLanes);
  return _mm512_mullo_epi32(columns, _mm512_set1_epi32(x.zero));
}

// What comes after a tile: so many cache lines, to ask for on the way.
struct Prefetch {
  const std::int8_t* weights;
  std::size_t lines;
};

constexpr Prefetch kNoPrefetch = {nullptr, 0};

// A way to compute tiles.
struct GemmKernel {
  std::size_t min_rows;  // rows of an input that are worth it
  std::size_t
      min_prefetch_tiles;  // tiles that share weights, for there to be time to ask for the next
  std::size_t rows;        // of a tile, at most kMaxTileRows
  std::size_t
      rows_per_task;  // rows of a task, whole tiles: enough that reading weights costs little
  // Each thread calls them before its tiles and after; null: it need not.
  void (*begin)();
  void (*end)();
  // Rows [row, row + height), at most `rows`, times blocks [block, last), at most kPanel; zero_sums
  // are still to be taken off.
  void (*tile)(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
               std::size_t block, std::size_t last, const Prefetch& prefetch, Sums& sums);
  // Whether activations stand where amx::place says; else row by row.
  bool tiles;

  // Where an activation stands.
  std::size_t offset(std::size_t row, std::size_t input, std::size_t inputs) const {
    return tiles ? amx::offset(row, input, inputs) : row * inputs + input;
  }
};

// Of the tiles that share a panel's weights: the part of the next panel's that a tile asks for.
inline Prefetch next_panel_prefetch(const GemmKernel& kernel, const Matrix8& matrix,
                                    std::size_t last, std::size_t tile, std::size_t tiles) {
  if (last + kPanel > matrix.blocks || tiles < kernel.min_prefetch_tiles) {
    return kNoPrefetch;
  }
  const auto lines = ceiling(matrix.inputs, tiles);  // 64 bytes for four inputs and a block
  const auto first = std::min(matrix.inputs, tile * lines);
  return {matrix.weights + last * matrix.inputs * kLanes + first * 64,
          std::min(lines, matrix.inputs - first)};
}

extern const GemmKernel kU8S8Vnni;

// Of numbers in 16 bits, two in the place of four: a Rows8 and a Matrix8 hold their bytes, and
// `inputs` is twice as many as there are.
extern const GemmKernel kS16Vnni;

#ifdef TRANSLATE_TRT_AMX
extern const GemmKernel kU8S8Amx;

// Whether both compute the same from some random numbers.
bool same_sums(const GemmKernel& one, const GemmKernel& other);
#endif

// The best, unless so few rows are not worth it.
inline const GemmKernel& kernel_for(std::size_t rows, const GemmKernel& best) {
  return rows < best.min_rows ? kU8S8Vnni : best;
}

// While it lives, its thread may compute tiles.
class TileScope {
 public:
  explicit TileScope(const GemmKernel& kernel) : end_(kernel.end) {
    if (kernel.begin != nullptr) {
      kernel.begin();
    }
  }
  ~TileScope() {
    if (end_ != nullptr) {
      end_();
    }
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  void (*const end_)();
};

}  // namespace translate_trt::avx512
