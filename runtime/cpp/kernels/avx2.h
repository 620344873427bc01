// Sixteen numbers in two AVX2 registers; see simd.h. Requires FMA and F16C, too. AVX-VNNI adds the
// instructions of AVX-512 VNNI for AVX2's registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#ifdef TRANSLATE_TRT_FOR_AVX_VNNI
#define TRANSLATE_TRT_SIMD avx_vnni
#else
#define TRANSLATE_TRT_SIMD avx2
#endif

namespace translate_trt::TRANSLATE_TRT_SIMD {

constexpr std::size_t kLanes = 16;

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};

struct Lanes {
  std::size_t count;

  bool all() const { return count >= kLanes; }
};

// There are 16 registers of 8 lanes.
constexpr std::size_t kSums = 4;

constexpr bool kFused = true;

// Inputs per pass of the FP32 GEMM: 16 KiB of a panel stay in the first-level cache, from which
// each tile reads them.
constexpr std::size_t kGemmDepth = 64;

inline Lanes first_lanes(std::size_t count) { return {count}; }

// ---- memory ----

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Ints zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints broadcast_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints lane_numbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Ints load(const std::int32_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8))};
}
inline Floats load(const Half* from) {
  const auto* halves = reinterpret_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

inline void store(float* to, Floats x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
inline void store(std::int32_t* to, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), x.high);
}
inline void store(Half* to, Floats x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  auto* halves = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(x.low, kNearest));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(x.high, kNearest));
}

// All bits of the lanes.
inline Ints mask(Lanes lanes) {
  const Ints numbers = lane_numbers();
  const __m256i count = _mm256_set1_epi32(static_cast<int>(lanes.count));
  return {_mm256_cmpgt_epi32(count, numbers.low), _mm256_cmpgt_epi32(count, numbers.high)};
}

inline Floats keep(Floats a, Lanes lanes, Floats others) {
  if (lanes.all()) return a;
  const Ints kept = mask(lanes);
  return {_mm256_blendv_ps(others.low, a.low, _mm256_castsi256_ps(kept.low)),
          _mm256_blendv_ps(others.high, a.high, _mm256_castsi256_ps(kept.high))};
}

inline Floats load(const float* from, Lanes lanes) {
  if (lanes.all()) return load(from);
  const Ints wanted = mask(lanes);
  return {_mm256_maskload_ps(from, wanted.low), _mm256_maskload_ps(from + 8, wanted.high)};
}
inline Floats load(const float* from, Lanes lanes, Floats others) {
  return keep(load(from, lanes), lanes, others);
}
inline Floats load(const Half* from, Lanes lanes) {
  if (lanes.all()) return load(from);
  Half copy[kLanes] = {};
  std::memcpy(copy, from, lanes.count * sizeof *from);
  return load(copy);
}

// Copies, because masked stores are microcode on AMD's processors before Zen 4.
template <class T>
inline void store(T* to, Floats x, Lanes lanes) {
  if (lanes.all()) return store(to, x);
  T copy[kLanes];
  store(copy, x);
  std::memcpy(to, copy, lanes.count * sizeof *to);
}

template <class T, class Register>
inline void store_selected(T* to, Register x, unsigned selected) {
  if (selected == (1U << kLanes) - 1) return store(to, x);
  T copy[kLanes];
  store(copy, x);
  for (; selected != 0; selected &= selected - 1) *to++ = copy[__builtin_ctz(selected)];
}

// ---- floats ----

inline Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats operator-(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats operator*(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats operator/(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Floats max(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Floats min(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Floats abs(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats multiply_subtract(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
inline Floats subtract_product(Floats c, Floats a, Floats b) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
inline Floats nearest(Floats a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}

inline float sum(Floats a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline unsigned greater(Floats a, Floats b) {
  const auto low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ));
  const auto high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
  return static_cast<unsigned>(low | high << 8);
}
inline unsigned greater(Floats a, Floats b, Lanes lanes) {
  return greater(a, b) & (lanes.all() ? 0xFFFFU : (1U << lanes.count) - 1);
}
inline bool all_less(Floats a, Floats b) {
  return (_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_NLT_UQ)) |
          _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_NLT_UQ))) == 0;
}

inline Floats where_positive(Floats x, Floats a, Floats b) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, zero, _CMP_GT_OQ)),
          _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, zero, _CMP_GT_OQ))};
}

constexpr float kLeastExponent = -127;
inline Floats bounded_exponent(Floats t) {
  constexpr float kInfinity = 128;  // exponent of infinity
  return min(max(t, broadcast(kLeastExponent)), broadcast(kInfinity));
}
inline Floats times_power_of_two(Floats a, Floats n) {
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256 exponent) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), bias);
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  };
  return a * Floats{power(n.low), power(n.high)};
}

inline void transpose_fours(Floats (&x)[4]) {
  const auto even = [](__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x20); };
  const auto odd = [](__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x31); };
  const Floats a = x[0], b = x[1], c = x[2], d = x[3];
  x[0] = {even(a.low, b.low), even(c.low, d.low)};
  x[1] = {odd(a.low, b.low), odd(c.low, d.low)};
  x[2] = {even(a.high, b.high), even(c.high, d.high)};
  x[3] = {odd(a.high, b.high), odd(c.high, d.high)};
}

inline Floats sums_of_rows(const Floats (&rows)[16]) {
  __m256 halves[2];
  for (int i = 0; i < 2; ++i) {
    __m256 pairs[4];
    for (int j = 0; j < 4; ++j) {
      const Floats a = rows[8 * i + 2 * j], b = rows[8 * i + 2 * j + 1];
      pairs[j] = _mm256_hadd_ps(_mm256_add_ps(a.low, a.high), _mm256_add_ps(b.low, b.high));
    }
    const __m256 x = _mm256_hadd_ps(pairs[0], pairs[1]), y = _mm256_hadd_ps(pairs[2], pairs[3]);
    halves[i] =
        _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  return {halves[0], halves[1]};
}

// ---- integers ----

inline Ints add(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Ints subtract(Ints a, Ints b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
inline Ints multiply(Ints a, Ints b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
inline Ints max(Ints a, Ints b) {
  return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}
inline std::int32_t largest(Ints a) {
  const __m256i eight = _mm256_max_epi32(a.low, a.high);
  const __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
inline Ints bits(Floats a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Ints to_ints(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline void store_words(std::int16_t* to, Ints x, Lanes lanes) {
  // Packing works on halves of registers.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), 0xD8);
  if (lanes.all()) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
  std::int16_t copy[kLanes];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy), words);
  std::memcpy(to, copy, lanes.count * sizeof *to);
}

inline Ints sums_of_rows(const Ints (&rows)[16]) {
  __m256i halves[2];
  for (int i = 0; i < 2; ++i) {
    __m256i pairs[4];
    for (int j = 0; j < 4; ++j) {
      const Ints a = rows[8 * i + 2 * j], b = rows[8 * i + 2 * j + 1];
      pairs[j] =
          _mm256_hadd_epi32(_mm256_add_epi32(a.low, a.high), _mm256_add_epi32(b.low, b.high));
    }
    const __m256i x = _mm256_hadd_epi32(pairs[0], pairs[1]);
    const __m256i y = _mm256_hadd_epi32(pairs[2], pairs[3]);
    halves[i] = _mm256_add_epi32(_mm256_permute2x128_si256(x, y, 0x20),
                                 _mm256_permute2x128_si256(x, y, 0x31));
  }
  return {halves[0], halves[1]};
}

// ---- 8-bit activations: unsigned bytes, as the instructions require, around a zero point ----

using Activation8 = std::uint8_t;
constexpr std::int32_t kZeroPoint = 128, kPositiveZero = 0;

// Bytes that activations [rows, inputs] take, and the offset of one: row by row; there are no
// tiles.
inline std::size_t activation_bytes(std::size_t rows, std::size_t inputs) { return rows * inputs; }
inline std::size_t activation_offset(std::size_t row, std::size_t input, std::size_t inputs, bool) {
  return row * inputs + input;
}

// Stores activations that are at least `least`, clamped to 8 bits.
inline void store_activations(Activation8* to, Ints x, Ints /* least: 0 */, Lanes lanes) {
  std::int16_t words[kLanes];
  const __m256i most = _mm256_set1_epi32(255);
  store_words(words, {_mm256_min_epi32(x.low, most), _mm256_min_epi32(x.high, most)},
              first_lanes(kLanes));
  const auto* halves = reinterpret_cast<const __m128i*>(words);
  const __m128i bytes = _mm_packus_epi16(_mm_loadu_si128(halves), _mm_loadu_si128(halves + 1));
  if (lanes.all()) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  Activation8 copy[kLanes];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(copy), bytes);
  std::memcpy(to, copy, lanes.count);
}

#ifdef TRANSLATE_TRT_FOR_AVX_VNNI

// Dot products of activations and rows of 8-bit weights, kStep numbers at a time.
struct ByteProducts {
  using Weight = std::int8_t;
  using Input = Activation8;
  using Sums = Ints;
  static constexpr std::size_t kStep = 64;

  static Ints zero() { return zero_ints(); }
  static Ints weights(const Weight* at, std::size_t rest) { return bytes(at, rest); }
  static Ints inputs(const Input* at, std::size_t rest) { return bytes(at, rest); }
  static Ints add(Ints sum, Ints input, Ints weight) {
    return {_mm256_dpbusd_avx_epi32(sum.low, input.low, weight.low),
            _mm256_dpbusd_avx_epi32(sum.high, input.high, weight.high)};
  }

 private:
  static Ints bytes(const void* at, std::size_t rest) {
    if (rest >= kStep) return load(static_cast<const std::int32_t*>(at));
    std::int32_t copy[kStep / 4] = {};
    std::memcpy(copy, at, rest);
    return load(copy);
  }
};

#else

// Dot products of activations and rows of 8-bit weights, kStep numbers at a time, as words: the
// rows of a table may have pairs that exceed 16 bits (Matrix8::pairs_fit).
struct ByteProducts {
  using Weight = std::int8_t;
  using Input = Activation8;
  using Sums = Ints;
  static constexpr std::size_t kStep = 32;

  static Ints zero() { return zero_ints(); }
  static Ints weights(const Weight* at, std::size_t rest) {
    const Bytes from(at, rest);
    return {_mm256_cvtepi8_epi16(from.low), _mm256_cvtepi8_epi16(from.high)};
  }
  static Ints inputs(const Input* at, std::size_t rest) {
    const Bytes from(at, rest);
    return {_mm256_cvtepu8_epi16(from.low), _mm256_cvtepu8_epi16(from.high)};
  }
  static Ints add(Ints sum, Ints input, Ints weight) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(input.low, weight.low)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(input.high, weight.high))};
  }

 private:
  struct Bytes {
    __m128i low, high;

    Bytes(const void* at, std::size_t rest) {
      std::uint8_t copy[kStep] = {};
      if (rest < kStep) at = std::memcpy(copy, at, rest);
      const auto* halves = static_cast<const __m128i*>(at);
      low = _mm_loadu_si128(halves);
      high = _mm_loadu_si128(halves + 1);
    }
  };
};

#endif

// Sums of the weights of a block of 16 columns.
inline Ints column_sums_of_block(const std::int8_t* weights, std::size_t inputs) {
  const __m256i bytes = _mm256_set1_epi8(1), words = _mm256_set1_epi16(1);
  const auto fours = [&](const std::int8_t* at) {
    const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, four), words);
  };
  Ints sums = zero_ints();
  for (std::size_t k = 0; k < inputs; k += 4, weights += 64) {
    sums = add(sums, Ints{fours(weights), fours(weights + 32)});
  }
  return sums;
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
