// Sixteen numbers in four NEON registers; see simd.h. Requires the dot products of Armv8.2
// (FEAT_DotProd).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#define TRANSLATE_TRT_SIMD neon

namespace translate_trt::neon {

using Float4 = float32x4_t;
using Int4 = int32x4_t;

}  // namespace translate_trt::neon

#include "four_parts.h"

namespace translate_trt::neon {

constexpr bool kFused = true;

// ---- memory ----

inline Floats zeros() {
  return floats([](int) { return vdupq_n_f32(0); });
}
inline Ints zero_ints() {
  return ints([](int) { return vdupq_n_s32(0); });
}
inline Floats broadcast(float x) {
  return floats([=](int) { return vdupq_n_f32(x); });
}
inline Ints broadcast_int(std::int32_t x) {
  return ints([=](int) { return vdupq_n_s32(x); });
}
inline Ints lane_numbers() {
  constexpr std::int32_t kFirst[4] = {0, 1, 2, 3};
  return ints([&](int i) { return vaddq_s32(vld1q_s32(kFirst), vdupq_n_s32(4 * i)); });
}

inline Floats load(const float* from) {
  return floats([=](int i) { return vld1q_f32(from + 4 * i); });
}
inline Ints load(const std::int32_t* from) {
  return ints([=](int i) { return vld1q_s32(from + 4 * i); });
}
inline Floats load(const Half* from) {
  return floats([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * i))); });
}

inline void store(float* to, Floats x) {
  for (int i = 0; i < kParts; ++i) vst1q_f32(to + 4 * i, x.part[i]);
}
inline void store(std::int32_t* to, Ints x) {
  for (int i = 0; i < kParts; ++i) vst1q_s32(to + 4 * i, x.part[i]);
}
inline void store(Half* to, Floats x) {
  for (int i = 0; i < kParts; ++i) {
    vst1_u16(to + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.part[i])));
  }
}

inline Floats keep(Floats a, Lanes lanes, Floats others) {
  if (lanes.all()) return a;
  const Ints numbers = lane_numbers();
  const int32x4_t count = vdupq_n_s32(static_cast<int>(lanes.count));
  return floats([&](int i) {
    return vbslq_f32(vcltq_s32(numbers.part[i], count), a.part[i], others.part[i]);
  });
}

// ---- floats ----

#define TRANSLATE_TRT_BINARY(name, intrinsic)                              \
  inline Floats name(Floats a, Floats b) {                                 \
    return floats([&](int i) { return intrinsic(a.part[i], b.part[i]); }); \
  }
TRANSLATE_TRT_BINARY(operator+, vaddq_f32)
TRANSLATE_TRT_BINARY(operator-, vsubq_f32)
TRANSLATE_TRT_BINARY(operator*, vmulq_f32)
TRANSLATE_TRT_BINARY(operator/, vdivq_f32)
#undef TRANSLATE_TRT_BINARY

// vmaxq and vminq would return NaN if either operand is one.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Floats max(Floats a, Floats b) {
  return floats([&](int i) { return larger(a.part[i], b.part[i]); });
}
inline Floats min(Floats a, Floats b) {
  return floats(
      [&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Floats abs(Floats a) {
  return floats([&](int i) { return vabsq_f32(a.part[i]); });
}
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
inline Floats subtract_product(Floats c, Floats a, Floats b) {
  return floats([&](int i) { return vfmsq_f32(c.part[i], a.part[i], b.part[i]); });
}
inline Floats multiply_subtract(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return vfmaq_f32(vnegq_f32(c.part[i]), a.part[i], b.part[i]); });
}
inline Floats nearest(Floats a) {
  return floats([&](int i) { return vrndnq_f32(a.part[i]); });
}

inline float sum(Floats a) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(a.part[0], a.part[1]), vaddq_f32(a.part[2], a.part[3])));
}
inline float largest(Floats a) {
  return vmaxnmvq_f32(larger(larger(a.part[0], a.part[1]), larger(a.part[2], a.part[3])));
}

// Bit i: whether all bits of lane i are set.
inline unsigned set_lanes(const uint32x4_t (&lanes)[kParts]) {
  constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t low = vcombine_u16(vmovn_u32(lanes[0]), vmovn_u32(lanes[1]));
  const uint16x8_t high = vcombine_u16(vmovn_u32(lanes[2]), vmovn_u32(lanes[3]));
  const uint8x16_t bits = vandq_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high)), vld1q_u8(kBits));
  return vaddv_u8(vget_low_u8(bits)) | static_cast<unsigned>(vaddv_u8(vget_high_u8(bits))) << 8;
}
inline unsigned greater(Floats a, Floats b) {
  return set_lanes({vcgtq_f32(a.part[0], b.part[0]), vcgtq_f32(a.part[1], b.part[1]),
                    vcgtq_f32(a.part[2], b.part[2]), vcgtq_f32(a.part[3], b.part[3])});
}
inline bool all_less(Floats a, Floats b) {
  const uint32x4_t low =
      vandq_u32(vcltq_f32(a.part[0], b.part[0]), vcltq_f32(a.part[1], b.part[1]));
  const uint32x4_t high =
      vandq_u32(vcltq_f32(a.part[2], b.part[2]), vcltq_f32(a.part[3], b.part[3]));
  return vminvq_u32(vandq_u32(low, high)) != 0;
}

inline Floats where_positive(Floats x, Floats a, Floats b) {
  return floats([&](int i) { return vbslq_f32(vcgtzq_f32(x.part[i]), a.part[i], b.part[i]); });
}

constexpr float kLeastExponent = -127;
inline Floats bounded_exponent(Floats t) {
  constexpr float kInfinity = 128;  // exponent of infinity
  return floats([&](int i) {
    const float32x4_t bounded = vmaxnmq_f32(t.part[i], vdupq_n_f32(kLeastExponent));
    return vminnmq_f32(bounded, vdupq_n_f32(kInfinity));
  });
}
inline Floats times_power_of_two(Floats a, Floats n) {
  return floats([&](int i) {
    const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n.part[i]), vdupq_n_s32(127));
    return vmulq_f32(a.part[i], vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
  });
}

inline Floats sums_of_rows(const Floats (&rows)[16]) {
  const auto four = [&](int row) {
    const auto& part = rows[row].part;
    return vaddq_f32(vaddq_f32(part[0], part[1]), vaddq_f32(part[2], part[3]));
  };
  return floats([&](int i) {
    return vpaddq_f32(vpaddq_f32(four(4 * i), four(4 * i + 1)),
                      vpaddq_f32(four(4 * i + 2), four(4 * i + 3)));
  });
}

// ---- integers ----

inline Ints add(Ints a, Ints b) {
  return ints([&](int i) { return vaddq_s32(a.part[i], b.part[i]); });
}
inline Ints subtract(Ints a, Ints b) {
  return ints([&](int i) { return vsubq_s32(a.part[i], b.part[i]); });
}
inline Ints multiply(Ints a, Ints b) {
  return ints([&](int i) { return vmulq_s32(a.part[i], b.part[i]); });
}
inline Ints max(Ints a, Ints b) {
  return ints([&](int i) { return vmaxq_s32(a.part[i], b.part[i]); });
}
inline std::int32_t largest(Ints a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.part[0], a.part[1]), vmaxq_s32(a.part[2], a.part[3])));
}
inline Ints bits(Floats a) {
  return ints([&](int i) { return vreinterpretq_s32_f32(a.part[i]); });
}
inline Floats to_floats(Ints a) {
  return floats([&](int i) { return vcvtq_f32_s32(a.part[i]); });
}
inline Ints to_ints(Floats a) {
  return ints([&](int i) { return vcvtnq_s32_f32(a.part[i]); });
}
inline int16x8_t words(Ints x, int first) {
  return vcombine_s16(vqmovn_s32(x.part[first]), vqmovn_s32(x.part[first + 1]));
}
inline void store_words(std::int16_t* to, Ints x, Lanes lanes) {
  std::int16_t copy[kLanes];
  std::int16_t* all = lanes.all() ? to : copy;
  vst1q_s16(all, words(x, 0));
  vst1q_s16(all + 8, words(x, 2));
  if (!lanes.all()) copy_some(to, copy, lanes.count);
}

inline Ints sums_of_rows(const Ints (&rows)[16]) {
  const auto four = [&](int row) {
    const auto& part = rows[row].part;
    return vaddq_s32(vaddq_s32(part[0], part[1]), vaddq_s32(part[2], part[3]));
  };
  return ints([&](int i) {
    return vpaddq_s32(vpaddq_s32(four(4 * i), four(4 * i + 1)),
                      vpaddq_s32(four(4 * i + 2), four(4 * i + 3)));
  });
}

// ---- 8-bit activations: signed bytes, as SDOT requires ----

using Activation8 = std::int8_t;
constexpr std::int32_t kZeroPoint = 0, kPositiveZero = -128;

// Bytes that activations [rows, inputs] take, and the offset of one: row by row; there are no
// tiles.
inline std::size_t activation_bytes(std::size_t rows, std::size_t inputs) { return rows * inputs; }
inline std::size_t activation_offset(std::size_t row, std::size_t input, std::size_t inputs, bool) {
  return row * inputs + input;
}

// Stores activations that are at least `least`, clamped to 8 bits.
inline void store_activations(Activation8* to, Ints x, Ints /* least: -128 */, Lanes lanes) {
  const int8x16_t bytes = vcombine_s8(vqmovn_s16(words(x, 0)), vqmovn_s16(words(x, 2)));
  if (lanes.all()) return vst1q_s8(to, bytes);
  Activation8 copy[kLanes];
  vst1q_s8(copy, bytes);
  copy_some(to, copy, lanes.count);
}

// Dot products of activations and rows of 8-bit weights, kStep numbers at a time.
struct ByteProducts {
  struct Bytes {
    int8x16_t part[kParts];
  };
  using Weight = std::int8_t;
  using Input = Activation8;
  using Sums = Ints;
  static constexpr std::size_t kStep = 64;

  static Ints zero() { return zero_ints(); }
  static Bytes weights(const Weight* at, std::size_t rest) {
    Weight copy[kStep] = {};
    if (rest < kStep) at = static_cast<Weight*>(std::memcpy(copy, at, rest));
    return in_parts<Bytes>([=](int i) { return vld1q_s8(at + 16 * i); });
  }
  static Bytes inputs(const Input* at, std::size_t rest) { return weights(at, rest); }
  static Ints add(Ints sum, const Bytes& input, const Bytes& weight) {
    return ints([&](int i) { return vdotq_s32(sum.part[i], input.part[i], weight.part[i]); });
  }
};

// Sums of the weights of a block of 16 columns.
inline Ints column_sums_of_block(const std::int8_t* weights, std::size_t inputs) {
  Ints sums = zero_ints();
  for (std::size_t k = 0; k < inputs; k += 4, weights += 64) {
    sums = ints(
        [&](int i) { return vdotq_s32(sums.part[i], vdupq_n_s8(1), vld1q_s8(weights + 16 * i)); });
  }
  return sums;
}

}  // namespace translate_trt::neon
