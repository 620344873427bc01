// Tiles of 8-bit and 16-bit GEMM with AVX-VNNI, block by block: 6 x 16 columns in 12 registers of
// sums. AVX-VNNI has not been measured: no processor with it was at hand.

#include <algorithm>
#include <cstdint>

#include "gemm8.h"

namespace translate_trt::avx_vnni {
namespace {

// 32 bits of a row, which one instruction multiplies by eight columns: four inputs in 8 bits, or
// two in 16 bits.
using Group = std::int32_t;

// Multiply-add of four bytes of a row and of each of eight columns. Inline assembly for the reason
// given in gemm8_avx2.cc.
struct Bytes {
  static void multiply_add(__m256i& low, __m256i& high, const Group& group, __m256i first,
                           __m256i second) {
    __m256i values;
    asm("vpbroadcastd %[group], %[values]\n\t"
        "%{vex%} vpdpbusd %[first], %[values], %[low]\n\t"
        "%{vex%} vpdpbusd %[second], %[values], %[high]"
        : [low] "+&x"(low), [high] "+x"(high), [values] "=&x"(values)
        : [first] "x"(first), [second] "x"(second), [group] "m"(group));
  }
};

struct Words {
  static void multiply_add(__m256i& low, __m256i& high, const Group& group, __m256i first,
                           __m256i second) {
    __m256i values;
    asm("vpbroadcastd %[group], %[values]\n\t"
        "%{vex%} vpdpwssd %[first], %[values], %[low]\n\t"
        "%{vex%} vpdpwssd %[second], %[values], %[high]"
        : [low] "+&x"(low), [high] "+x"(high), [values] "=&x"(values)
        : [first] "x"(first), [second] "x"(second), [group] "m"(group));
  }
};

// Distance of the prefetch in bytes, as in gemm8_avx2.cc.
constexpr std::size_t kAhead = 2048;

// Computes the sums of `Rows` rows and one block.
template <class Numbers, int Rows>
__attribute__((noinline)) void tile(const std::uint8_t* a, std::size_t inputs, const std::int8_t* w,
                                    Ints (*sums)[kPanel]) {
  __m256i low[Rows], high[Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (std::size_t k = 0; k < inputs; k += sizeof(Group), w += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const auto& group = *reinterpret_cast<const Group*>(a + i * inputs + k);
      Numbers::multiply_add(low[i], high[i], group, first, second);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sums[i][0] = {low[i], high[i]};
}

template <class Numbers, int Rows>
void blocks(const std::uint8_t* a, std::size_t inputs, const std::int8_t* w, std::size_t count,
            Sums& sums) {
  for (std::size_t j = 0; j < count; ++j, w += inputs * kLanes) {
    tile<Numbers, Rows>(a, inputs, w, reinterpret_cast<Ints(*)[kPanel]>(&sums[0][j]));
  }
}

template <class Numbers>
void tiles(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
           std::size_t block, std::size_t last, const Prefetch&, Sums& sums) {
  const auto inputs = matrix.inputs;  // bytes
  const auto* a = x.values + row * inputs;
  const auto* w = matrix.weights + block * inputs * kLanes;
  const auto count = last - block;
  switch (height) {
    case 1:
      blocks<Numbers, 1>(a, inputs, w, count, sums);
      break;
    case 2:
      blocks<Numbers, 2>(a, inputs, w, count, sums);
      break;
    case 3:
      blocks<Numbers, 3>(a, inputs, w, count, sums);
      break;
    case 4:
      blocks<Numbers, 4>(a, inputs, w, count, sums);
      break;
    case 5:
      blocks<Numbers, 5>(a, inputs, w, count, sums);
      break;
    default:
      blocks<Numbers, 6>(a, inputs, w, count, sums);
      break;
  }
}

// Tiles prefetch the weights that follow in memory, not a share of the next panel.
constexpr std::size_t kNever = SIZE_MAX;

}  // namespace

const GemmKernel kGemm8 = {0, {kNever, kNever}, 6, 66, nullptr, nullptr, tiles<Bytes>, false};
const GemmKernel kGemm16 = {0, {kNever, kNever}, 6, 66, nullptr, nullptr, tiles<Words>, false};

}  // namespace translate_trt::avx_vnni
