// Random numbers that do not depend on the standard library, unlike its distributions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace translate_trt::runtime {

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}

  // A number from 0 to limit - 1.
  std::size_t below(std::size_t limit) { return engine_() % limit; }

  // A number from first to last.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::size_t>(last - first + 1)));
  }

  bool chance(double share) { return engine_() < share * 4294967296.0; }

 private:
  std::mt19937 engine_;
};

}  // namespace translate_trt::runtime
