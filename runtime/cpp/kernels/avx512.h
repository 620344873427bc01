// Helpers of the AVX-512 kernels.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kernels.h"
#include "workspace.h"

namespace translate_trt::avx512 {

constexpr std::size_t kLanes = 16;  // floats in a register

// Mask of the first `count` lanes, or of all if there are fewer.
inline __mmask16 first_lanes(std::size_t count) {
  return count >= kLanes ? __mmask16(0xFFFF) : __mmask16((1u << count) - 1);
}

// Largest magnitude of a row's elements.
inline float max_magnitude(const float* x, std::size_t columns) {
  __m512 most = _mm512_setzero_ps();
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const __m512 values = _mm512_maskz_loadu_ps(first_lanes(columns - i), x + i);
    most = _mm512_max_ps(most, _mm512_abs_ps(values));
  }
  return _mm512_reduce_max_ps(most);
}

// 2^t for t <= 125, with a relative error below 3e-7 for t near zero that grows with |t| like the
// spacing of floats. t is clamped to -150, whose power is zero.
inline __m512 power_of_two(__m512 t) {
  t = _mm512_max_ps(t, _mm512_set1_ps(-150.0F));
  // Adding and subtracting this number rounds to the nearest integer.
  const __m512 magic = _mm512_set1_ps(12582912.0F);  // 1.5 * 2^23
  const __m512 n = _mm512_sub_ps(_mm512_add_ps(t, magic), magic);
  const __m512 r = _mm512_sub_ps(t, n);  // exact, in [-0.5, 0.5]
  // Minimax polynomial of degree 5 for 2^r.
  __m512 p = _mm512_set1_ps(1.32647e-3F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.67151e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550734e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022242e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314698e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, n);
}

constexpr float kLog2E = 1.44269504F;  // 1 / ln 2

// e^x, with the error of power_of_two.
inline __m512 exponential(__m512 x) {
  return power_of_two(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)));
}

// GELU: x * P(X < x) for a normal X, with a relative error below 1e-6 or an absolute error below
// 1e-8.
inline __m512 gelu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1), a = _mm512_abs_ps(x);
  // P(X < -a) = e^(-a^2 / 2) t p(t) with t = 1 / (1 + 0.3 a), as in Abramowitz and Stegun 1964,
  // 7.1.26. p is the minimax polynomial of degree 7 by relative error for a up to 13.
  const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(a, _mm512_set1_ps(0.3F), one));
  __m512 p = _mm512_set1_ps(3.6194701e-2F);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.5937765e-1F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(2.1011724e-1F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-5.7166290e-2F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.3041587e-1F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(9.9347301e-2F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.2084550e-1F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.1962327e-1F));
  const __m512 square = _mm512_mul_ps(_mm512_mul_ps(a, a), _mm512_set1_ps(-0.5F));
  const __m512 below = _mm512_mul_ps(_mm512_mul_ps(p, t), exponential(square));
  const auto positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_mul_ps(x, _mm512_mask_sub_ps(below, positive, one, below));
}

// Swish: x / (1 + e^-x), with the same error bounds. The result is zero where e^-x overflows.
inline __m512 swish(__m512 x) {
  const __m512 one = _mm512_set1_ps(1);
  const __m512 power = exponential(_mm512_sub_ps(_mm512_setzero_ps(), x));
  return _mm512_div_ps(x, _mm512_add_ps(one, power));
}

// 1 / (1 + e^-x); zero where e^-x overflows.
inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1);
  // Keeps the exponent within the range of power_of_two; NaN, the second operand, stays.
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-100), x);
  return _mm512_div_ps(
      one, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), bounded))));
}

// Horizontal sums: lane i of the result is the sum of the lanes of rows[i].
inline __m512 sums_of_rows(const __m512 (&rows)[16]) {
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

// Prefetches bytes into the first-level cache.
inline void prefetch(const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;  // bytes of a cache line
  for (std::size_t i = 0; i < bytes; i += kLine) {
    _mm_prefetch(static_cast<const char*>(from) + i, _MM_HINT_T0);
  }
}

// Runs body(0), ..., body(count - 1) once each, in any order and possibly in parallel.
template <class Body>
void parallel_for(Executor& executor, std::size_t count, const Body& body) {
  executor.run(count, {[](const void* closure, std::size_t index) {
                         (*static_cast<const Body*>(closure))(index);
                       },
                       &body});
}

// Allocates uninitialized elements, aligned to 64 bytes.
template <class T>
T* allocate(Arena& arena, std::size_t count) {
  return static_cast<T*>(arena.allocate(count * sizeof(T)));
}

}  // namespace translate_trt::avx512
