// 8-bit and 16-bit GEMM with AVX-VNNI, which has not been measured: no processor with it was at
// hand.

#include "gemm8_avx2.h"

namespace translate_trt::avx_vnni {
namespace {

// A step has 16 columns and four inputs in 8 bits. Inline assembly for the reason given in
// gemm8_avx2.cc.
struct Bytes {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    const __m256i first = load_register(w), second = load_register(w + 32);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      using Group = std::uint8_t[kBytes];
      __m256i values;
      asm("vpbroadcastd %[group], %[values]\n\t"
          "%{vex%} vpdpbusd %[first], %[values], %[low]\n\t"
          "%{vex%} vpdpbusd %[second], %[values], %[high]"
          : [low] "+&x"(sums.low[i]), [high] "+x"(sums.high[i]), [values] "=&x"(values)
          : [first] "x"(first), [second] "x"(second),
            [group] "m"(*reinterpret_cast<const Group*>(a + i * stride)));
    }
  }
};

// A step has 16 columns and two inputs in 16 bits.
struct Words {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    const __m256i first = load_register(w), second = load_register(w + 32);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      using Group = std::uint8_t[kBytes];
      __m256i values;
      asm("vpbroadcastd %[group], %[values]\n\t"
          "%{vex%} vpdpwssd %[first], %[values], %[low]\n\t"
          "%{vex%} vpdpwssd %[second], %[values], %[high]"
          : [low] "+&x"(sums.low[i]), [high] "+x"(sums.high[i]), [values] "=&x"(values)
          : [first] "x"(first), [second] "x"(second),
            [group] "m"(*reinterpret_cast<const Group*>(a + i * stride)));
    }
  }
};

}  // namespace

const GemmKernel kGemm8 = gemm_kernel(multiply_tile<Bytes>);
const GemmKernel kGemm16 = gemm_kernel(multiply_tile<Words>);

}  // namespace translate_trt::avx_vnni
