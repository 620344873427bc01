// Tiles of FP32 GEMM, also compiled for AVX-VNNI: 6 x 16 columns in 12 registers of sums, one
// quarter of a panel after another.

#include "gemm.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {
namespace {

// Computes a tile of 16 columns; `sums` are those of the first row. The sums stay in registers only
// if the loops over them are unrolled.
template <int Rows>
__attribute__((noinline)) void compute(const Tile& tile, std::size_t column) {
  const auto* a = tile.a;
  const auto* w = tile.weights + column * kLanes;
  const auto stride = tile.stride, depth = tile.depth, ahead = depth * kPanelColumns;
  __m256 low[Rows], high[Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
    low[i] = tile.more ? tile.sums[i][column].low : _mm256_setzero_ps();
    high[i] = tile.more ? tile.sums[i][column].high : _mm256_setzero_ps();
  }
  for (std::size_t k = 0; k < depth; ++k, w += kPanelColumns) {
    // The same columns of the next pass, whose lines the hardware prefetcher would skip.
    _mm_prefetch(reinterpret_cast<const char*>(w + ahead), _MM_HINT_T0);
    const __m256 first = _mm256_loadu_ps(w), second = _mm256_loadu_ps(w + 8);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      // Inline assembly for the reason given in gemm8_avx2.cc.
      __m256 value;
      asm("vbroadcastss %[one], %[value]\n\t"
          "vfmadd231ps %[first], %[value], %[low]\n\t"
          "vfmadd231ps %[second], %[value], %[high]"
          : [low] "+&x"(low[i]), [high] "+x"(high[i]), [value] "=&x"(value)
          : [first] "x"(first), [second] "x"(second), [one] "m"(a[i * stride + k]));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) tile.sums[i][column] = {low[i], high[i]};
}

template <int Rows>
void compute(const Tile& tile) {
  for (std::size_t column = 0; column < kRegisters; ++column) compute<Rows>(tile, column);
}

}  // namespace

void multiply(std::size_t rows, const Tile& tile) {
  with_height(rows, [&](auto height) { compute<height.kRows>(tile); });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
