// Sixteen floats or integers at a time. The files *_simd.cc are written in these types and are
// compiled once for each instruction set, in its own namespace, TRANSLATE_TRT_SIMD.
//
// avx512.h, avx2.h, neon.h and wasm.h define for their instructions, besides plain arithmetic:
//   Floats, Ints    16 binary32 numbers, or 32-bit integers
//   Lanes           the first lanes of such a register; others are not read or written;
//                   first_lanes(count): at most all
//   kSums           number of such registers for the sums of a loop
//   load, store     from and to memory, unaligned; Half is converted to and from floats;
//                   load(from, lanes, others): other lanes are those of `others`, or zero
//   keep            (a, lanes, others): a in the lanes, and `others` in the rest
//   max, min        return the second operand if one is NaN
//   kFused          whether multiplication and addition are rounded once
//   multiply_add    a b + c; multiply_subtract: a b - c; subtract_product: c - a b
//   sum, largest    over the lanes
//   bits            the bits of floats as integers
//   greater         bit i: whether a > b in lane i
//   all_less        whether a < b in all lanes; false for NaN
//   store_selected  the lanes whose bits are set, without gaps; may write a whole register
//   sums_of_rows    lane i is the sum of the lanes of rows[i]
//   transpose_fours  transposes four registers as a 4 x 4 matrix of groups of four lanes
//   bounded_exponent  an exponent t that times_power_of_two takes; NaN and very small ones become
//                   kLeastExponent
//   times_power_of_two  a 2^n for an integer n; zero for kLeastExponent
//   Activation8     an 8-bit activation, as the instructions need it, stored around kZeroPoint or,
//                   of rows without negative numbers, from kPositiveZero on
//   activation_bytes, activation_offset  their layout in memory
//   store_words, store_activations  the lanes clamped to 16 bits, or to an activation
//   ByteProducts    dot products of activations and 8-bit weights
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// Not the compiler's __AVX512F__, which flags such as -march=native define in all files.
#if defined(__aarch64__)
#include "neon.h"
#elif defined(__wasm__)
#include "wasm.h"
#elif defined(TRANSLATE_TRT_FOR_AVX512)
#include "avx512.h"
#else
#include "avx2.h"
#endif
#include "kernels.h"
#include "workspace.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

// A single multiply_add.
inline float multiply_add(float a, float b, float c) {
  return kFused ? __builtin_fmaf(a, b, c) : a * b + c;
}

inline std::size_t ceiling(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Largest magnitude of a row's elements; NaN if one of them is. The bits of magnitudes have the
// order of the numbers, and those of NaN come last.
inline float max_magnitude(const float* x, std::size_t columns) {
  Ints most = bits(zeros());
  std::size_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) most = max(most, bits(abs(load(x + i))));
  if (i < columns) most = max(most, bits(abs(load(x + i, first_lanes(columns - i)))));
  const std::int32_t found = largest(most);
  float magnitude;
  std::memcpy(&magnitude, &found, sizeof magnitude);
  return magnitude;
}

// 2^t for t <= 125, with a relative error below 3e-7 for t near zero that grows with |t| like the
// spacing of floats. t is clamped to kLeastExponent, whose power is zero.
inline Floats power_of_two(Floats t) {
  t = bounded_exponent(t);
  // Adding and subtracting this number rounds to the nearest integer.
  const Floats magic = broadcast(12582912.0F);  // 1.5 * 2^23
  const Floats n = (t + magic) - magic;
  const Floats r = t - n;  // exact, in [-0.5, 0.5]
  // Minimax polynomial of degree 5 for 2^r.
  Floats p = broadcast(1.32647e-3F);
  p = multiply_add(p, r, broadcast(9.67151e-3F));
  p = multiply_add(p, r, broadcast(5.550734e-2F));
  p = multiply_add(p, r, broadcast(2.4022242e-1F));
  p = multiply_add(p, r, broadcast(6.9314698e-1F));
  p = multiply_add(p, r, broadcast(1.0F));
  return times_power_of_two(p, n);
}

constexpr float kLog2E = 1.44269504F;  // 1 / ln 2

// e^x, with the error of power_of_two.
inline Floats exponential(Floats x) { return power_of_two(x * broadcast(kLog2E)); }

// GELU: x * P(X < x) for a normal X, with a relative error below 1e-6 or an absolute error below
// 1e-8.
inline Floats gelu(Floats x) {
  const Floats one = broadcast(1), a = abs(x);
  // P(X < -a) = e^(-a^2 / 2) t p(t) with t = 1 / (1 + 0.3 a), as in Abramowitz and Stegun 1964,
  // 7.1.26. p is the minimax polynomial of degree 7 by relative error for a up to 13.
  const Floats t = one / multiply_add(a, broadcast(0.3F), one);
  Floats p = broadcast(3.6194701e-2F);
  p = multiply_add(p, t, broadcast(-1.5937765e-1F));
  p = multiply_add(p, t, broadcast(2.1011724e-1F));
  p = multiply_add(p, t, broadcast(-5.7166290e-2F));
  p = multiply_add(p, t, broadcast(1.3041587e-1F));
  p = multiply_add(p, t, broadcast(9.9347301e-2F));
  p = multiply_add(p, t, broadcast(1.2084550e-1F));
  p = multiply_add(p, t, broadcast(1.1962327e-1F));
  const Floats square = (a * a) * broadcast(-0.5F);
  const Floats below = (p * t) * exponential(square);
  return x * where_positive(x, one - below, below);
}

// Swish: x / (1 + e^-x), with the same error bounds. The result is zero where e^-x overflows.
inline Floats swish(Floats x) {
  const Floats power = exponential(zeros() - x);
  return x / (broadcast(1) + power);
}

// 1 / (1 + e^-x); zero where e^-x overflows, and one for NaN.
inline Floats sigmoid(Floats x) {
  const Floats one = broadcast(1);
  // Keeps the exponent within the range of power_of_two.
  const Floats bounded = max(broadcast(-100), x);
  return one / (one + exponential(zeros() - bounded));
}

// Prefetches bytes into the first-level cache.
inline void prefetch(const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;  // bytes of a cache line
  for (std::size_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(static_cast<const char*>(from) + i);
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

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
