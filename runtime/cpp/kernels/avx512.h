// Sixteen numbers in one AVX-512 register; see simd.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "gemm8_amx.h"
#include "kernels.h"

#define TRANSLATE_TRT_SIMD avx512

namespace translate_trt::avx512 {

constexpr std::size_t kLanes = 16;

using Floats = __m512;
using Ints = __m512i;
using Lanes = __mmask16;

// Registers of sums that a loop can have, beside its operands.
constexpr std::size_t kSums = 16;

constexpr bool kFused = true;

// Inputs per pass of the FP32 GEMM: 128 KiB of a panel stay in the second-level cache.
constexpr std::size_t kGemmDepth = 512;

inline Lanes first_lanes(std::size_t count) {
  return count >= kLanes ? __mmask16(0xFFFF) : __mmask16((1u << count) - 1);
}

// ---- memory ----

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Ints broadcast_int(std::int32_t x) { return _mm512_set1_epi32(x); }
inline Ints lane_numbers() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, Lanes lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline Floats load(const float* from, Lanes lanes, Floats others) {
  return _mm512_mask_loadu_ps(others, lanes, from);
}
inline Floats load(const Half* from, Lanes lanes) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from));
}
inline Ints load(const std::int32_t* from) { return _mm512_loadu_si512(from); }

inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline void store(float* to, Floats x, Lanes lanes) { _mm512_mask_storeu_ps(to, lanes, x); }
inline void store(std::int32_t* to, Ints x) { _mm512_storeu_si512(to, x); }
inline void store(Half* to, Floats x, Lanes lanes) {
  const __m256i halves = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_mask_storeu_epi16(to, lanes, halves);
}

inline void store_selected(float* to, Floats x, unsigned selected) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(selected), x));
}
inline void store_selected(std::int32_t* to, Ints x, unsigned selected) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(selected), x));
}

// ---- floats; + - * / are operators of the compiler ----

inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats multiply_subtract(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats subtract_product(Floats c, Floats a, Floats b) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats nearest(Floats a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }

inline unsigned greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline unsigned greater(Floats a, Floats b, Lanes lanes) {
  return _mm512_mask_cmp_ps_mask(lanes, a, b, _CMP_GT_OQ);
}
inline bool all_less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ) == 0; }

inline Floats keep(Floats a, Lanes lanes, Floats others) {
  return _mm512_mask_mov_ps(others, lanes, a);
}
inline Floats where_positive(Floats x, Floats a, Floats b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), a);
}

constexpr float kLeastExponent = -150;
inline Floats bounded_exponent(Floats t) { return max(t, broadcast(kLeastExponent)); }
inline Floats times_power_of_two(Floats a, Floats n) {
  // Masked, since Intel processors take very long for an underflow.
  const auto lanes = _mm512_cmp_ps_mask(n, broadcast(kLeastExponent), _CMP_GT_OQ);
  return _mm512_maskz_scalef_ps(lanes, a, n);
}

inline void transpose_fours(Floats (&x)[4]) {
  const __m512 a = _mm512_shuffle_f32x4(x[0], x[1], 0x88),
               b = _mm512_shuffle_f32x4(x[2], x[3], 0x88);
  const __m512 c = _mm512_shuffle_f32x4(x[0], x[1], 0xDD),
               d = _mm512_shuffle_f32x4(x[2], x[3], 0xDD);
  x[0] = _mm512_shuffle_f32x4(a, b, 0x88);
  x[1] = _mm512_shuffle_f32x4(c, d, 0x88);
  x[2] = _mm512_shuffle_f32x4(a, b, 0xDD);
  x[3] = _mm512_shuffle_f32x4(c, d, 0xDD);
}

inline Floats sums_of_rows(const Floats (&rows)[16]) {
  __m512 quads[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 a = rows[4 * i], b = rows[4 * i + 1], c = rows[4 * i + 2], d = rows[4 * i + 3];
    const __m512d ab =
        _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d cd =
        _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  }
  __m512 halves[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 x = quads[2 * i], y = quads[2 * i + 1];
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
  }
  return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                       _mm512_shuffle_f32x4(halves[0], halves[1], 0xDD));
}

// ---- integers ----

inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Ints multiply(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
inline Ints max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline std::int32_t largest(Ints a) { return _mm512_reduce_max_epi32(a); }
inline Ints bits(Floats a) { return _mm512_castps_si512(a); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
inline void store_words(std::int16_t* to, Ints x, Lanes lanes) {
  _mm512_mask_cvtsepi32_storeu_epi16(to, lanes, x);
}

inline Ints sums_of_rows(const Ints (&rows)[16]) {
  __m512i quads[4];
  for (int i = 0; i < 4; ++i) {
    const __m512i a = rows[4 * i], b = rows[4 * i + 1], c = rows[4 * i + 2], d = rows[4 * i + 3];
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    quads[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  __m512i halves[2];
  for (int i = 0; i < 2; ++i) {
    const __m512i x = quads[2 * i], y = quads[2 * i + 1];
    halves[i] =
        _mm512_add_epi32(_mm512_shuffle_i32x4(x, y, 0x44), _mm512_shuffle_i32x4(x, y, 0xEE));
  }
  return _mm512_add_epi32(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
                          _mm512_shuffle_i32x4(halves[0], halves[1], 0xDD));
}

// ---- 8-bit activations: unsigned bytes, as VNNI requires, around a zero point ----

using Activation8 = std::uint8_t;
constexpr std::int32_t kZeroPoint = 128, kPositiveZero = 0;

// Bytes that activations [rows, inputs] take, and the offset of one: row by row, or in AMX tiles.
inline std::size_t activation_bytes(std::size_t rows, std::size_t inputs) {
  return amx::readable_bytes(rows, inputs);
}
inline std::size_t activation_offset(std::size_t row, std::size_t input, std::size_t inputs,
                                     bool tiles) {
  return tiles ? amx::offset(row, input, inputs) : row * inputs + input;
}

// Stores activations that are at least `least`, clamped to 8 bits.
inline void store_activations(Activation8* to, Ints x, Ints /* least: 0 */, Lanes lanes) {
  _mm512_mask_cvtusepi32_storeu_epi8(to, lanes, x);
}

// Dot products of activations and rows of 8-bit weights, kStep numbers at a time.
struct ByteProducts {
  using Weight = std::int8_t;
  using Input = Activation8;
  using Sums = Ints;
  static constexpr std::size_t kStep = 64;

  static Ints zero() { return zero_ints(); }
  static __m512i weights(const Weight* at, std::size_t rest) { return bytes(at, rest); }
  static __m512i inputs(const Input* at, std::size_t rest) { return bytes(at, rest); }
  static Ints add(Ints sum, __m512i input, __m512i weight) {
    return _mm512_dpbusd_epi32(sum, input, weight);
  }

 private:
  static __m512i bytes(const void* at, std::size_t rest) {
    return rest >= kStep ? _mm512_loadu_si512(at)
                         : _mm512_maskz_loadu_epi8((std::uint64_t{1} << rest) - 1, at);
  }
};

// Sums of the weights of a block of 16 columns.
inline Ints column_sums_of_block(const std::int8_t* weights, std::size_t inputs) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums = _mm512_setzero_si512();
  for (std::size_t k = 0; k < inputs; k += 4, weights += 64) {
    sums = _mm512_dpbusd_epi32(sums, ones, _mm512_loadu_si512(weights));
  }
  return sums;
}

}  // namespace translate_trt::avx512
