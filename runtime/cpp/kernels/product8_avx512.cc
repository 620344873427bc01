#include "product8_avx512.h"

#include <cstring>
#include <type_traits>

namespace translate_trt::avx512 {
namespace {

// Adds to each of the 16 sums the products of four neighbouring bytes.
inline void multiply_add(__m512i& sums, __m512i unsigned_bytes, __m512i signed_bytes) {
  // Not the intrinsic: around it GCC 12 copies the sums through memory at every step, which halves
  // the speed of the whole product.
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes));
}

// One tile. Its sums stay in registers from the first input to the last, which only works if the
// loops over them are unrolled and nothing else is inlined here.
template <int Rows, int Blocks>
__attribute__((noinline)) void tile(const std::uint8_t* a, const std::int8_t* w,
                                    std::size_t inputs, __m512i (*out)[kPanel]) {
  const std::size_t block_size = inputs * kLanes;
  __m512i sums[Rows][Blocks];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Blocks; ++j) {
      sums[i][j] = _mm512_setzero_si512();
    }
  }
  for (std::size_t k = 0; k < inputs; k += 4, w += 64) {
    __m512i weights[Blocks];
#pragma GCC unroll 8
    for (int j = 0; j < Blocks; ++j) {
      weights[j] = _mm512_loadu_si512(w + j * block_size);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      std::int32_t four;
      std::memcpy(&four, a + i * inputs + k, sizeof four);
      const __m512i values = _mm512_set1_epi32(four);
#pragma GCC unroll 8
      for (int j = 0; j < Blocks; ++j) {
        multiply_add(sums[i][j], values, weights[j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Blocks; ++j) {
      out[i][j] = sums[i][j];
    }
  }
}

template <int Rows>
void tiles(const std::uint8_t* a, const Matrix8& matrix, std::size_t block, std::size_t last,
           Sums& sums) {
  const auto* w = matrix.weights + block * matrix.inputs * kLanes;
  if (last - block == kPanel) {
    tile<Rows, kPanel>(a, w, matrix.inputs, sums);
    return;
  }
  for (auto j = block; j < last; ++j, w += matrix.inputs * kLanes) {
    tile<Rows, 1>(a, w, matrix.inputs, reinterpret_cast<__m512i(*)[kPanel]>(&sums[0][j - block]));
  }
}

}  // namespace

void product(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t rows,
             std::size_t block, std::size_t last, Sums& sums) {
  const auto* a = x.values + row * matrix.inputs;
  switch (rows) {
    case 1: tiles<1>(a, matrix, block, last, sums); break;
    case 2: tiles<2>(a, matrix, block, last, sums); break;
    case 3: tiles<3>(a, matrix, block, last, sums); break;
    case 4: tiles<4>(a, matrix, block, last, sums); break;
    case 5: tiles<5>(a, matrix, block, last, sums); break;
    default: tiles<6>(a, matrix, block, last, sums); break;
  }
}

}  // namespace translate_trt::avx512
