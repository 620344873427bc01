// Pseudo-random numbers, equal in every run and on every machine; the values of FP16 numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace translate_trt {

inline float float_of_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent == 31 ? (fraction == 0 ? std::numeric_limits<float>::infinity()
                                                     : std::numeric_limits<float>::quiet_NaN())
                     : exponent == 0
                         ? std::ldexp(static_cast<float>(fraction), -24)
                         : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

class Numbers {
 public:
  explicit Numbers(std::uint32_t seed = 1) : state_(seed) {}

  std::uint32_t next() { return state_ = state_ * 1664525 + 1013904223; }  // Numerical Recipes

  std::size_t below(std::size_t end) { return (next() >> 8) % end; }

  // Between -scale and scale.
  std::vector<float> floats(std::size_t count, float scale = 1) {
    std::vector<float> result(count);
    for (auto& one : result) one = scale * (static_cast<float>(next() >> 8) * 0x1p-23F - 1);
    return result;
  }

  std::vector<std::int8_t> bytes(std::size_t count) {
    std::vector<std::int8_t> result(count);
    for (auto& one : result) one = static_cast<std::int8_t>(next() >> 24);
    return result;
  }

  // Bytes whose pairs, of an even place and the next, have sums of up to 128 (Matrix8::pairs_fit).
  std::vector<std::int8_t> pairs_that_fit(std::size_t count) {
    std::vector<std::int8_t> result = bytes(count);
    for (std::size_t i = 0; i + 1 < count; i += 2) {
      result[i + 1] = static_cast<std::int8_t>(std::clamp<int>(
          result[i + 1], std::max(-128 - result[i], -128), std::min(128 - result[i], 127)));
    }
    return result;
  }

  std::vector<std::int64_t> integers(std::size_t count, std::size_t end) {
    std::vector<std::int64_t> result(count);
    for (auto& one : result) one = static_cast<std::int64_t>(below(end));
    return result;
  }

 private:
  std::uint32_t state_;
};

}  // namespace translate_trt
