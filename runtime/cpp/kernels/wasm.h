// Sixteen numbers in four 128-bit registers of WebAssembly (simd128); see simd.h.
//
// There is no fused multiplication and addition: these are rounded separately.
#pragma once

#include <wasm_simd128.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#define TRANSLATE_TRT_SIMD wasm

namespace translate_trt::wasm {

// Types of their own, which overloads need.
using Float4 = __f32x4;
using Int4 = __i32x4;

}  // namespace translate_trt::wasm

#include "four_parts.h"

namespace translate_trt::wasm {

constexpr bool kFused = false;

// ---- memory ----

inline Float4 load4(const float* from) { return (Float4)wasm_v128_load(from); }
inline Int4 load4(const std::int32_t* from) { return (Int4)wasm_v128_load(from); }
inline Float4 splat4(float x) { return (Float4)wasm_f32x4_splat(x); }
inline Int4 splat4(std::int32_t x) { return (Int4)wasm_i32x4_splat(x); }
// The lanes of a where all bits of a mask's lane are set, and else those of b.
inline Float4 choose(v128_t mask, Float4 a, Float4 b) {
  return (Float4)wasm_v128_bitselect((v128_t)a, (v128_t)b, mask);
}

inline Floats zeros() {
  return floats([](int) { return splat4(0.0F); });
}
inline Ints zero_ints() {
  return ints([](int) { return splat4(0); });
}
inline Floats broadcast(float x) {
  return floats([=](int) { return splat4(x); });
}
inline Ints broadcast_int(std::int32_t x) {
  return ints([=](int) { return splat4(x); });
}
inline Ints lane_numbers() {
  return ints([](int i) { return (Int4)wasm_i32x4_const(0, 1, 2, 3) + splat4(4 * i); });
}

inline Floats load(const float* from) {
  return floats([=](int i) { return load4(from + 4 * i); });
}
inline Ints load(const std::int32_t* from) {
  return ints([=](int i) { return load4(from + 4 * i); });
}

// Moved into place, the bits of a binary16 number are a binary32 number that is 2^112 times
// smaller, except those of infinity and NaN.
inline Floats load(const Half* from) {
  return floats([=](int i) {
    const v128_t halves = wasm_u32x4_load16x4(from + 4 * i);
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(halves, wasm_i32x4_const_splat(0x8000)), 16);
    const v128_t rest = wasm_i32x4_shl(wasm_v128_and(halves, wasm_i32x4_const_splat(0x7FFF)), 13);
    const v128_t scaled = wasm_f32x4_mul(rest, wasm_f32x4_const_splat(0x1p112F));
    const v128_t special = wasm_i32x4_ge(rest, wasm_i32x4_const_splat(0x7C00 << 13));
    const v128_t exponent = wasm_v128_and(special, wasm_i32x4_const_splat(0xFF << 23));
    return (Float4)wasm_v128_or(wasm_v128_or(scaled, exponent), sign);
  });
}

inline void store(float* to, Floats x) {
  for (int i = 0; i < kParts; ++i) wasm_v128_store(to + 4 * i, (v128_t)x.part[i]);
}
inline void store(std::int32_t* to, Ints x) {
  for (int i = 0; i < kParts; ++i) wasm_v128_store(to + 4 * i, (v128_t)x.part[i]);
}

// Rounds to nearest, ties to even. Numbers are at most kMaxHalf in magnitude, or NaN.
inline void store(Half* to, Floats x) {
  const auto halves = [&](int i) {
    const v128_t bits = (v128_t)x.part[i];
    const v128_t sign = wasm_v128_and(bits, wasm_i32x4_const_splat(INT32_MIN));
    const v128_t magnitude = wasm_v128_xor(bits, sign);
    // Normal numbers: half of the last place that is kept, minus one unless that place is odd.
    const v128_t odd = wasm_v128_and(wasm_u32x4_shr(magnitude, 13), wasm_i32x4_const_splat(1));
    const v128_t rounded =
        wasm_i32x4_add(wasm_i32x4_add(magnitude, wasm_i32x4_const_splat(0xFFF - (112 << 23))), odd);
    const v128_t normal = wasm_u32x4_shr(rounded, 13);
    // Smaller numbers: adding 1/2 leaves multiples of 2^-24 in the last bits.
    const v128_t half = wasm_f32x4_const_splat(0.5F);
    const v128_t small = wasm_i32x4_sub(wasm_f32x4_add(magnitude, half), half);
    const v128_t is_small = wasm_i32x4_lt(magnitude, wasm_i32x4_const_splat(113 << 23));
    const v128_t nan = wasm_v128_and(wasm_f32x4_ne(bits, bits), wasm_i32x4_const_splat(0x7E00));
    const v128_t number = wasm_v128_or(wasm_v128_bitselect(small, normal, is_small), nan);
    return wasm_v128_or(number, wasm_u32x4_shr(sign, 16));
  };
  for (int i = 0; i < kParts; i += 2) {
    // Not narrowing, which would clamp.
    wasm_v128_store(to + 4 * i, wasm_i8x16_shuffle(halves(i), halves(i + 1), 0, 1, 4, 5, 8, 9, 12,
                                                   13, 16, 17, 20, 21, 24, 25, 28, 29));
  }
}

inline Floats keep(Floats a, Lanes lanes, Floats others) {
  if (lanes.all()) return a;
  const Ints numbers = lane_numbers();
  const v128_t count = wasm_i32x4_splat(static_cast<int>(lanes.count));
  return floats([&](int i) {
    return choose(wasm_i32x4_lt((v128_t)numbers.part[i], count), a.part[i], others.part[i]);
  });
}

// ---- floats ----

inline Floats operator+(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] + b.part[i]; });
}
inline Floats operator-(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] - b.part[i]; });
}
inline Floats operator*(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] * b.part[i]; });
}
inline Floats operator/(Floats a, Floats b) {
  return floats([&](int i) { return a.part[i] / b.part[i]; });
}

// pmax(b, a) is b < a ? a : b, and pmin(b, a) is a < b ? a : b.
inline Float4 larger(Float4 a, Float4 b) { return (Float4)wasm_f32x4_pmax((v128_t)b, (v128_t)a); }
inline Float4 smaller(Float4 a, Float4 b) { return (Float4)wasm_f32x4_pmin((v128_t)b, (v128_t)a); }
inline Floats max(Floats a, Floats b) {
  return floats([&](int i) { return larger(a.part[i], b.part[i]); });
}
inline Floats min(Floats a, Floats b) {
  return floats([&](int i) { return smaller(a.part[i], b.part[i]); });
}
inline Floats abs(Floats a) {
  return floats([&](int i) { return (Float4)wasm_f32x4_abs((v128_t)a.part[i]); });
}
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return a.part[i] * b.part[i] + c.part[i]; });
}
inline Floats subtract_product(Floats c, Floats a, Floats b) {
  return floats([&](int i) { return c.part[i] - a.part[i] * b.part[i]; });
}
inline Floats multiply_subtract(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return a.part[i] * b.part[i] - c.part[i]; });
}
inline Floats nearest(Floats a) {
  return floats([&](int i) { return (Float4)wasm_f32x4_nearest((v128_t)a.part[i]); });
}

inline float sum(Floats a) {
  const Float4 four = (a.part[0] + a.part[2]) + (a.part[1] + a.part[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
inline float largest(Floats a) {
  const Float4 four = larger(larger(a.part[0], a.part[1]), larger(a.part[2], a.part[3]));
  const auto of = [](float x, float y) { return x > y ? x : y; };
  return of(of(four[0], four[1]), of(four[2], four[3]));
}

// Bit i: whether a > b in lane i.
inline unsigned greater(Floats a, Floats b) {
  unsigned found = 0;
  for (int i = 0; i < kParts; ++i) {
    found |= wasm_i32x4_bitmask(wasm_f32x4_gt((v128_t)a.part[i], (v128_t)b.part[i])) << (4 * i);
  }
  return found;
}
inline bool all_less(Floats a, Floats b) {
  const auto less = [&](int i) { return wasm_f32x4_lt((v128_t)a.part[i], (v128_t)b.part[i]); };
  return wasm_i32x4_all_true(
      wasm_v128_and(wasm_v128_and(less(0), less(1)), wasm_v128_and(less(2), less(3))));
}

inline Floats where_positive(Floats x, Floats a, Floats b) {
  return floats([&](int i) {
    const v128_t positive = wasm_f32x4_gt((v128_t)x.part[i], wasm_f32x4_const_splat(0));
    return choose(positive, a.part[i], b.part[i]);
  });
}

// The 32-bit integers nearest to numbers of less than 2^31 in magnitude.
inline Int4 nearest_int(Float4 a) {
  return (Int4)wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)a));
}

constexpr float kLeastExponent = -127;
inline Floats bounded_exponent(Floats t) {
  constexpr float kInfinity = 128;  // exponent of infinity
  return min(max(t, broadcast(kLeastExponent)), broadcast(kInfinity));
}
inline Floats times_power_of_two(Floats a, Floats n) {
  return floats([&](int i) {
    const Int4 biased = nearest_int(n.part[i]) + splat4(127);
    return a.part[i] * (Float4)wasm_i32x4_shl((v128_t)biased, 23);
  });
}

// Lane i is the sum of the lanes of rows[i].
template <class Four>
inline Four sums_of_lanes(Four a, Four b, Four c, Four d) {
  const Four ab =
      __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
  const Four cd =
      __builtin_shufflevector(c, d, 0, 2, 4, 6) + __builtin_shufflevector(c, d, 1, 3, 5, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}
template <class Sixteen>
inline Sixteen sums_of_all_rows(const Sixteen (&rows)[16]) {
  const auto four = [&](int row) {
    const auto& part = rows[row].part;
    return (part[0] + part[1]) + (part[2] + part[3]);
  };
  return in_parts<Sixteen>([&](int i) {
    return sums_of_lanes(four(4 * i), four(4 * i + 1), four(4 * i + 2), four(4 * i + 3));
  });
}
inline Floats sums_of_rows(const Floats (&rows)[16]) { return sums_of_all_rows(rows); }

// ---- integers ----

inline Ints add(Ints a, Ints b) {
  return ints([&](int i) { return a.part[i] + b.part[i]; });
}
inline Ints subtract(Ints a, Ints b) {
  return ints([&](int i) { return a.part[i] - b.part[i]; });
}
inline Ints multiply(Ints a, Ints b) {
  return ints([&](int i) { return a.part[i] * b.part[i]; });
}
inline Int4 larger(Int4 a, Int4 b) { return (Int4)wasm_i32x4_max((v128_t)a, (v128_t)b); }
inline Ints max(Ints a, Ints b) {
  return ints([&](int i) { return larger(a.part[i], b.part[i]); });
}
inline std::int32_t largest(Ints a) {
  const Int4 four = larger(larger(a.part[0], a.part[1]), larger(a.part[2], a.part[3]));
  const auto of = [](std::int32_t x, std::int32_t y) { return x > y ? x : y; };
  return of(of(four[0], four[1]), of(four[2], four[3]));
}
inline Ints bits(Floats a) {
  return ints([&](int i) { return (Int4)a.part[i]; });
}
inline Floats to_floats(Ints a) {
  return floats([&](int i) { return (Float4)wasm_f32x4_convert_i32x4((v128_t)a.part[i]); });
}
inline Ints to_ints(Floats a) {
  return ints([&](int i) { return nearest_int(a.part[i]); });
}
inline void store_words(std::int16_t* to, Ints x, Lanes lanes) {
  std::int16_t copy[kLanes];
  std::int16_t* all = lanes.all() ? to : copy;
  for (int i = 0; i < kParts; i += 2) {
    wasm_v128_store(all + 4 * i, wasm_i16x8_narrow_i32x4((v128_t)x.part[i], (v128_t)x.part[i + 1]));
  }
  if (!lanes.all()) copy_some(to, copy, lanes.count);
}
inline Ints sums_of_rows(const Ints (&rows)[16]) { return sums_of_all_rows(rows); }

// ---- 8-bit activations: words, because the instructions multiply words ----

using Activation8 = std::int16_t;
constexpr std::int32_t kZeroPoint = 0, kPositiveZero = 0;

// Bytes that activations [rows, inputs] take, and the offset of one: row by row; there are no
// tiles.
inline std::size_t activation_offset(std::size_t row, std::size_t input, std::size_t inputs, bool) {
  return (row * inputs + input) * sizeof(Activation8);
}
inline std::size_t activation_bytes(std::size_t rows, std::size_t inputs) {
  return activation_offset(rows, 0, inputs, false);
}

// Stores activations that are at least `least`, clamped to 255 above it.
inline void store_activations(Activation8* to, Ints x, Ints least, Lanes lanes) {
  const Int4 most = least.part[0] + splat4(255);
  store_words(to,
              ints([&](int i) { return (Int4)wasm_i32x4_min((v128_t)x.part[i], (v128_t)most); }),
              lanes);
}

// Dot products of activations and rows of 8-bit weights, kStep numbers at a time.
struct ByteProducts {
  using Weight = std::int8_t;
  using Input = Activation8;
  using Sums = Ints;
  static constexpr std::size_t kStep = 32;

  static Ints zero() { return zero_ints(); }
  static Ints weights(const Weight* at, std::size_t rest) {
    Weight copy[kStep] = {};
    if (rest < kStep) at = static_cast<Weight*>(std::memcpy(copy, at, rest));
    return ints([=](int i) { return (Int4)wasm_i16x8_load8x8(at + 8 * i); });
  }
  static Ints inputs(const Input* at, std::size_t rest) {
    Input copy[kStep] = {};
    if (rest < kStep) at = static_cast<Input*>(std::memcpy(copy, at, rest * sizeof *at));
    return ints([=](int i) { return (Int4)wasm_v128_load(at + 8 * i); });
  }
  static Ints add(Ints sum, Ints input, Ints weight) {
    return ints([&](int i) {
      return sum.part[i] +
             (Int4)wasm_i32x4_dot_i16x8((v128_t)input.part[i], (v128_t)weight.part[i]);
    });
  }
};

// Sums of the weights of a block of 16 columns.
inline Ints column_sums_of_block(const std::int8_t* weights, std::size_t inputs) {
  Ints sums = zero_ints();
  for (std::size_t k = 0; k < inputs; k += 4, weights += 64) {
    sums = add(sums, ints([&](int i) {
                 const v128_t pairs =
                     wasm_i16x8_extadd_pairwise_i8x16(wasm_v128_load(weights + 16 * i));
                 return (Int4)wasm_i32x4_extadd_pairwise_i16x8(pairs);
               }));
  }
  return sums;
}

}  // namespace translate_trt::wasm
