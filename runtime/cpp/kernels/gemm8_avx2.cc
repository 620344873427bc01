// 8-bit and 16-bit GEMM with AVX2.

#include "gemm8_avx2.h"

namespace translate_trt::avx2 {
namespace {

using Four = std::uint8_t[4];

inline const Four& four_of(const std::uint8_t* a) { return *reinterpret_cast<const Four*>(a); }

inline constexpr std::int32_t kOnes = 0x00010001;  // two words

// Weights in 8 bits: a step has 16 columns and four inputs. vpmaddubsw multiplies unsigned by
// signed bytes and saturates the sum of two terms to 16 bits, which none of such weights needs
// (Matrix8::pairs_fit). Inline assembly, because GCC 12 reorders the intrinsics and spills the
// sums.
struct Bytes {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    using Register = std::int8_t[32];
    const __m256i first = load_register(w), ones = _mm256_set1_epi32(kOnes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      __m256i values, terms;
      asm("vpbroadcastd %[four], %[values]\n\t"
          "vpmaddubsw %[first], %[values], %[terms]\n\t"
          "vpmaddubsw %[second], %[values], %[values]\n\t"
          "vpmaddwd %[ones], %[terms], %[terms]\n\t"
          "vpmaddwd %[ones], %[values], %[values]\n\t"
          "vpaddd %[terms], %[low], %[low]\n\t"
          "vpaddd %[values], %[high], %[high]"
          : [low] "+x"(sums.low[i]), [high] "+x"(sums.high[i]), [values] "=&x"(values),
            [terms] "=&x"(terms)
          : [first] "x"(first), [ones] "x"(ones), [four] "m"(four_of(a + i * stride)),
            [second] "m"(*reinterpret_cast<const Register*>(w + 32)));
    }
  }
};

// Any weights in 8 bits: bytes of rows and weights become words, two inputs of all columns at a
// time, which takes twice as many instructions.
struct AnyBytes {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    multiply_add<0>(sums, a, stride, words<0>(w), words<0>(w + 32));
    multiply_add<1>(sums, a, stride, words<1>(w), words<1>(w + 32));
  }

 private:
  // Multiplies inputs 2 * Pair and 2 * Pair + 1 of each row, at a + i * stride, by those of 16
  // columns, and adds.
  template <int Pair, int Rows>
  static void multiply_add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                           __m256i first, __m256i second) {
    constexpr char k = 2 * Pair;
    alignas(32) static constexpr char kPair[32] = {
        k, -1, k + 1, -1, k, -1, k + 1, -1, k, -1, k + 1, -1, k, -1, k + 1, -1,  //
        k, -1, k + 1, -1, k, -1, k + 1, -1, k, -1, k + 1, -1, k, -1, k + 1, -1};
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      __m256i values, terms;
      asm("vpbroadcastd %[four], %[values]\n\t"
          "vpshufb %[pair], %[values], %[values]\n\t"
          "vpmaddwd %[first], %[values], %[terms]\n\t"
          "vpmaddwd %[second], %[values], %[values]\n\t"
          "vpaddd %[terms], %[low], %[low]\n\t"
          "vpaddd %[values], %[high], %[high]"
          : [low] "+x"(sums.low[i]), [high] "+x"(sums.high[i]), [values] "=&x"(values),
            [terms] "=&x"(terms)
          : [first] "x"(first), [second] "x"(second), [four] "m"(four_of(a + i * stride)),
            [pair] "m"(kPair));
    }
  }

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
    const __m256i first = load_register(w), second = load_register(w + 32);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      __m256i values, terms;
      asm("vpbroadcastd %[two], %[values]\n\t"
          "vpmaddwd %[first], %[values], %[terms]\n\t"
          "vpmaddwd %[second], %[values], %[values]\n\t"
          "vpaddd %[terms], %[low], %[low]\n\t"
          "vpaddd %[values], %[high], %[high]"
          : [low] "+x"(sums.low[i]), [high] "+x"(sums.high[i]), [values] "=&x"(values),
            [terms] "=&x"(terms)
          : [first] "x"(first), [second] "x"(second), [two] "m"(four_of(a + i * stride)));
    }
  }
};

// GemmKernel::tile of 8-bit weights.
void tile8(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
           std::size_t block, std::size_t last, const Background& background, Sums& sums) {
  const auto tile = matrix.pairs_fit ? multiply_tile<Bytes> : multiply_tile<AnyBytes>;
  tile(x, matrix, row, height, block, last, background, sums);
}

}  // namespace

const GemmKernel kGemm8 = gemm_kernel(tile8);
const GemmKernel kGemm16 = gemm_kernel(multiply_tile<Words>);

bool pairs_fit(const Matrix8& matrix) {
  // Terms of the largest activation; those of smaller ones are smaller. A sum that does not fit
  // becomes the largest or the smallest word, and no sum that fits, a multiple of 255, is one.
  const __m256i largest = _mm256_set1_epi8(-1);
  const __m256i most = _mm256_set1_epi16(0x7FFF), least = _mm256_set1_epi16(-0x8000);
  __m256i found = _mm256_setzero_si256();
  const auto bytes = matrix.blocks * kLanes * matrix.inputs;
  for (std::size_t i = 0; i < bytes; i += 32) {
    const __m256i sums = _mm256_maddubs_epi16(largest, load_register(matrix.weights + i));
    found = _mm256_or_si256(
        found, _mm256_or_si256(_mm256_cmpeq_epi16(sums, most), _mm256_cmpeq_epi16(sums, least)));
  }
  return _mm256_testz_si256(found, found) != 0;
}

}  // namespace translate_trt::avx2
