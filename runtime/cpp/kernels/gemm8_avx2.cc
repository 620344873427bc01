// 8-bit and 16-bit GEMM with AVX2: multiply-adds of 16-bit words.

#include "gemm8_avx2.h"

namespace translate_trt::avx2 {
namespace {

// Multiplies two words of each row, at a + i * stride, by those of 16 columns, and adds. Inline
// assembly, because GCC 12 reorders the intrinsics and spills the sums.
template <int Rows>
inline void multiply_add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                         __m256i first, __m256i second) {
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
    using Two = std::uint8_t[4];
    __m256i values, terms;
    asm("vpbroadcastd %[two], %[values]\n\t"
        "vpmaddwd %[first], %[values], %[terms]\n\t"
        "vpmaddwd %[second], %[values], %[values]\n\t"
        "vpaddd %[terms], %[low], %[low]\n\t"
        "vpaddd %[values], %[high], %[high]"
        : [low] "+x"(sums.low[i]), [high] "+x"(sums.high[i]), [values] "=&x"(values),
          [terms] "=&x"(terms)
        : [first] "x"(first), [second] "x"(second),
          [two] "m"(*reinterpret_cast<const Two*>(a + i * stride)));
  }
}

// Weights in 8 bits: a step has 16 columns and four inputs, whose activations are words. The bytes
// of weights become words, two inputs of all columns at a time.
struct Bytes {
  static constexpr std::size_t kBytes = 8;

  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    multiply_add(sums, a, stride, words<0>(w), words<0>(w + 32));
    multiply_add(sums, a + 4, stride, words<1>(w), words<1>(w + 32));
  }

 private:
  // The words of inputs 2 * Pair and 2 * Pair + 1 of eight columns. A byte in the upper half of a
  // word has its sign, and the shift divides it by 256.
  template <int Pair>
  static __m256i words(const std::int8_t* from) {
    constexpr char k = 2 * Pair;
    const __m256i upper = _mm256_setr_epi8(
        -1, k, -1, k + 1, -1, k + 4, -1, k + 5, -1, k + 8, -1, k + 9, -1, k + 12, -1, k + 13,  //
        -1, k, -1, k + 1, -1, k + 4, -1, k + 5, -1, k + 8, -1, k + 9, -1, k + 12, -1, k + 13);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(load_register(from), upper), 8);
  }
};

// Weights in 16 bits: a step has 16 columns and two inputs.
struct Words {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    multiply_add(sums, a, stride, load_register(w), load_register(w + 32));
  }
};

}  // namespace

const GemmKernel kGemm8 = gemm_kernel<Bytes>();
const GemmKernel kGemm16 = gemm_kernel<Words>();

}  // namespace translate_trt::avx2
