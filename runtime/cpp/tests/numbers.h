// Pseudo-random numbers, equal in every run and on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace translate_trt {

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

  std::vector<std::int64_t> integers(std::size_t count, std::size_t end) {
    std::vector<std::int64_t> result(count);
    for (auto& one : result) one = static_cast<std::int64_t>(below(end));
    return result;
  }

 private:
  std::uint32_t state_;
};

}  // namespace translate_trt
