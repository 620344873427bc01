// Tiles of FP32 GEMM: 6 x 4 registers of sums leave enough for weights and a row.

#include "gemm.h"

namespace translate_trt::avx512 {
namespace {

inline void multiply_add(__m512& sums, __m512 a, __m512 b) {
  // Inline assembly for the reason given in gemm8_avx512.cc.
  asm("vfmadd231ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
}

// Computes one tile. The sums stay in registers only if the loops over them are unrolled, nothing
// else is inlined here, and there is a single loop over inputs.
template <int Rows, bool More>
__attribute__((noinline)) void compute(const Tile& tile) {
  __m512 sums[Rows][kRegisters];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kRegisters; ++j) {
      sums[i][j] = More ? tile.sums[i][j] : _mm512_setzero_ps();
    }
  }
  const auto* a = tile.a;
  const auto* w = tile.weights;
  const auto* next = tile.next;
  const auto stride = tile.stride, depth = tile.depth, every = tile.every;
  auto wait = every;
  for (std::size_t k = 0; k < depth; ++k, w += kPanelColumns) {
    if (--wait == 0) {
      _mm_prefetch(next, _MM_HINT_T0);
      next += sizeof(__m512);
      wait = every;
    }
    __m512 weights[kRegisters];
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kRegisters; ++j) {
      weights[j] = _mm512_loadu_ps(w + j * kLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const __m512 value = _mm512_set1_ps(a[i * stride + k]);
#pragma GCC unroll 8
      for (std::size_t j = 0; j < kRegisters; ++j) {
        multiply_add(sums[i][j], value, weights[j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < kRegisters; ++j) {
      tile.sums[i][j] = sums[i][j];
    }
  }
}

template <int Rows>
void compute(const Tile& tile) {
  tile.more ? compute<Rows, true>(tile) : compute<Rows, false>(tile);
}

}  // namespace

void multiply(std::size_t rows, const Tile& tile) {
  with_height(rows, [&](auto height) { compute<height.kRows>(tile); });
}

}  // namespace translate_trt::avx512
