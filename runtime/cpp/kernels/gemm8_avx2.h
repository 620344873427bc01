// Tiles of 8-bit and 16-bit GEMM in registers of 256 bits, block by block: 6 x 16 columns in 12
// registers of sums.
#pragma once

#include <cstdint>

#include "gemm8.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

// The sums of `Rows` rows and 16 columns.
template <int Rows>
struct BlockSums {
  __m256i low[Rows], high[Rows];
};

inline __m256i load_register(const std::int8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Computes the sums of `Rows` rows, `stride` bytes apart, and one block of weights, 64 bytes a
// step.
//
// Numbers::add<Rows>(sums, a, stride, w) adds the terms of one step, for which a row has
// Numbers::kBytes bytes.
template <class Numbers, int Rows>
__attribute__((noinline)) void multiply_block(const std::uint8_t* a, std::size_t stride,
                                              const std::int8_t* w, std::size_t steps,
                                              Ints (*out)[kPanel]) {
  // The hardware stops prefetching at every page, and few rows wait for memory.
  constexpr std::size_t kAhead = 2048;  // bytes
  BlockSums<Rows> sums;
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sums.low[i] = sums.high[i] = _mm256_setzero_si256();
  for (std::size_t step = 0; step < steps; ++step, a += Numbers::kBytes, w += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
    Numbers::template add<Rows>(sums, a, stride, w);
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) out[i][0] = {sums.low[i], sums.high[i]};
}

// GemmKernel::tile. Blocks prefetch the weights that follow in memory, and no share of the next
// panel.
template <class Numbers>
void multiply_tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
                   std::size_t block, std::size_t last, const Background&, Sums& sums) {
  const auto steps = matrix.inputs / 4, stride = steps * Numbers::kBytes;
  const auto* a = x.values + row * stride;
  const auto* w = matrix.weights + block * steps * 64;
  with_height(height, [&](auto rows) {
    for (auto j = block; j < last; ++j, w += steps * 64) {
      auto* out = reinterpret_cast<Ints(*)[kPanel]>(&sums[0][j - block]);
      multiply_block<Numbers, rows.kRows>(a, stride, w, steps, out);
    }
  });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
