// Tiles of 8-bit and 16-bit GEMM with AVX2, block by block: 6 x 16 columns in 12 registers of sums.
//
// 64 bytes of weights are those of 16 columns and four inputs. Their bytes become words, two inputs
// of all columns at a time, and a multiply-add of words sums the two.

#include <algorithm>
#include <cstdint>

#include "gemm8.h"

namespace translate_trt::avx2 {
namespace {

__m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// Weights in 8 bits, of eight columns and four inputs.
struct ByteWeights {
  static constexpr std::size_t kInputs = 4;  // per step

  // The words of inputs 2 * Pair and 2 * Pair + 1 of each column. A byte in the upper half of a
  // word has its sign, and the shift divides it by 256.
  template <int Pair>
  static __m256i words(const std::int8_t* from) {
    constexpr char k = 2 * Pair;
    const __m256i upper = _mm256_setr_epi8(
        -1, k, -1, k + 1, -1, k + 4, -1, k + 5, -1, k + 8, -1, k + 9, -1, k + 12, -1, k + 13,  //
        -1, k, -1, k + 1, -1, k + 4, -1, k + 5, -1, k + 8, -1, k + 9, -1, k + 12, -1, k + 13);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(load(from), upper), 8);
  }
};

// Weights in 16 bits, of eight columns and two inputs.
struct WordWeights {
  static constexpr std::size_t kInputs = 2;

  template <int Pair>
  static __m256i words(const std::int8_t* from) {
    return load(from);
  }
};

// Multiplies two inputs of each row, at a + i * stride, by 16 columns and adds. Inline assembly,
// because GCC 12 reorders the intrinsics, spills the sums, and halves the speed of the GEMM.
template <int Rows>
inline void multiply_add(__m256i (&low)[Rows], __m256i (&high)[Rows], const std::int16_t* a,
                         std::size_t stride, __m256i first, __m256i second) {
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
    using Two = std::int16_t[2];
    __m256i values, pair;
    asm("vpbroadcastd %[two], %[values]\n\t"
        "vpmaddwd %[first], %[values], %[pair]\n\t"
        "vpmaddwd %[second], %[values], %[values]\n\t"
        "vpaddd %[pair], %[low], %[low]\n\t"
        "vpaddd %[values], %[high], %[high]"
        : [low] "+x"(low[i]), [high] "+x"(high[i]), [values] "=&x"(values), [pair] "=&x"(pair)
        : [first] "x"(first), [second] "x"(second),
          [two] "m"(*reinterpret_cast<const Two*>(a + i * stride)));
  }
}

// Distance of the prefetch in bytes: the hardware stops at every page, and few rows wait for
// memory.
constexpr std::size_t kAhead = 2048;

// Computes the sums of `Rows` rows and one block.
template <class Weights, int Rows>
__attribute__((noinline)) void tile(const std::int16_t* a, std::size_t inputs, const std::int8_t* w,
                                    Ints (*sums)[kPanel]) {
  __m256i low[Rows], high[Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) low[i] = high[i] = _mm256_setzero_si256();
  for (std::size_t k = 0; k < inputs; k += Weights::kInputs, w += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
    multiply_add(low, high, a + k, inputs, Weights::template words<0>(w),
                 Weights::template words<0>(w + 32));
    if (Weights::kInputs == 4) {
      multiply_add(low, high, a + k + 2, inputs, Weights::template words<1>(w),
                   Weights::template words<1>(w + 32));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sums[i][0] = {low[i], high[i]};
}

template <class Weights, int Rows>
void blocks(const std::int16_t* a, std::size_t inputs, const std::int8_t* w, std::size_t count,
            Sums& sums) {
  for (std::size_t j = 0; j < count; ++j, w += inputs / Weights::kInputs * 64) {
    tile<Weights, Rows>(a, inputs, w, reinterpret_cast<Ints(*)[kPanel]>(&sums[0][j]));
  }
}

template <class Weights>
void tiles(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
           std::size_t block, std::size_t last, const Prefetch&, Sums& sums) {
  // Matrix8 counts bytes where weights have 16 bits.
  const auto inputs = matrix.inputs * Weights::kInputs / 4;
  const auto* a = reinterpret_cast<const std::int16_t*>(x.values) + row * inputs;
  const auto* w = matrix.weights + block * matrix.inputs * kLanes;
  const auto count = last - block;
  switch (height) {
    case 1:
      blocks<Weights, 1>(a, inputs, w, count, sums);
      break;
    case 2:
      blocks<Weights, 2>(a, inputs, w, count, sums);
      break;
    case 3:
      blocks<Weights, 3>(a, inputs, w, count, sums);
      break;
    case 4:
      blocks<Weights, 4>(a, inputs, w, count, sums);
      break;
    case 5:
      blocks<Weights, 5>(a, inputs, w, count, sums);
      break;
    default:
      blocks<Weights, 6>(a, inputs, w, count, sums);
      break;
  }
}

// Tiles prefetch the weights that follow in memory, not a share of the next panel.
constexpr std::size_t kNever = SIZE_MAX;

}  // namespace

const GemmKernel kGemm8 = {0, {kNever, kNever}, 6, 66, nullptr, nullptr, tiles<ByteWeights>, false};
const GemmKernel kGemm16 = {0,       {kNever, kNever},   6,    66, nullptr,
                            nullptr, tiles<WordWeights>, false};

}  // namespace translate_trt::avx2
