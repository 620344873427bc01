// Small things that the AVX-512 kernels share.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <vector>

namespace translate_trt::avx512 {

constexpr std::size_t kLanes = 16;  // floats in a register

// The first `count` lanes, at most all.
inline __mmask16 first(std::size_t count) {
  return count >= kLanes ? __mmask16(0xFFFF) : __mmask16((1u << count) - 1);
}

// Largest magnitude of a row.
inline float largest(const float* x, std::size_t columns) {
  __m512 most = _mm512_setzero_ps();
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const __m512 values = _mm512_maskz_loadu_ps(first(columns - i), x + i);
    most = _mm512_max_ps(most, _mm512_abs_ps(values));
  }
  return _mm512_reduce_max_ps(most);
}

// 2^(t / 16) with a relative error below 3e-7 for t near zero; it grows with |t| as the spacing of
// floats does. t is at most 2000; what is below -2400 counts as -2400, whose power is zero.
inline __m512 power_of_two_16ths(__m512 t) {
  t = _mm512_max_ps(t, _mm512_set1_ps(-2400.0F));
  const __m512 n =
      _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(t, n);  // exact, at most a half
  // 2^(r / 16) by Taylor's series: the next term is at most 1e-8.
  constexpr float kLog = 0.0433216987849966F;  // ln 2 / 16
  __m512 p = _mm512_set1_ps(kLog * kLog * kLog / 6);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kLog * kLog / 2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kLog));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  // 2^(i / 16)
  const __m512 table = _mm512_setr_ps(
      1.0F, 1.0442737824F, 1.0905077327F, 1.1387886348F, 1.1892071150F, 1.2418578121F,
      1.2968395547F, 1.3542555469F, 1.4142135624F, 1.4768261459F, 1.5422108254F, 1.6104903319F,
      1.6817928305F, 1.7562521604F, 1.8340080864F, 1.9152065614F);
  // The permutation looks at the four lowest bits alone, the scaling at the rest (rounded down).
  p = _mm512_mul_ps(p, _mm512_permutexvar_ps(_mm512_cvtps_epi32(n), table));
  return _mm512_scalef_ps(p, _mm512_mul_ps(n, _mm512_set1_ps(1.0F / 16)));
}

constexpr float kSixteenths = 23.083120654F;  // 16 / ln 2: e^x = 2^(x * kSixteenths / 16)

// e^x, as above.
inline __m512 exponential(__m512 x) {
  return power_of_two_16ths(_mm512_mul_ps(x, _mm512_set1_ps(kSixteenths)));
}

// Lane i of the result is the sum of the lanes of rows[i].
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
    halves[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
  }
  return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                       _mm512_shuffle_f32x4(halves[0], halves[1], 0xDD));
}

// Lets bytes come into the cache that are read soon.
inline void fetch(const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;  // of a cache
  for (std::size_t i = 0; i < bytes; i += kLine) {
    _mm_prefetch(static_cast<const char*>(from) + i, _MM_HINT_T0);
  }
}

// Working memory of the thread that asks, at least `count` elements, which lives as long as the
// thread. Each Tag has its own.
template <class T, class Tag>
T* scratch(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) {
    memory.resize(count);
  }
  return memory.data();
}

}  // namespace translate_trt::avx512
