#include "core/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace translate_trt::runtime {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The 64 bits that SplitMix64 (Steele et al. 2014) makes of 64 bits.
std::uint64_t mix(std::uint64_t number) {
  number += 0x9E3779B97F4A7C15;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EB;
  return number ^ (number >> 31);
}

}  // namespace

std::uint64_t noise_state(const SearchOptions& options, const Tokens& source) {
  std::uint64_t state = mix(static_cast<std::uint64_t>(options.seed));
  for (const std::int64_t token : source) state = mix(state ^ static_cast<std::uint64_t>(token));
  return state;
}

void NoiseBuilder::add(std::int64_t row, const SearchOptions& options, std::uint64_t state,
                       std::int64_t position) {
  state = mix(state ^ static_cast<std::uint64_t>(position));
  std::vector<float> noise(static_cast<std::size_t>(options.sampling_top_k));
  for (std::size_t rank = 0; rank < noise.size(); ++rank) {
    // An odd multiple of 2^-53, so neither 0 nor 1.
    const double uniform = static_cast<double>(2 * (mix(state + rank) >> 12) + 1) * 0x1p-53;
    noise[rank] = static_cast<float>(-options.sampling_temperature * std::log(-std::log(uniform)));
  }
  noise_[row] = std::move(noise);
}

SamplingNoise NoiseBuilder::build() const {
  SamplingNoise built;
  std::size_t count = 0;
  for (const auto& [row, noise] : noise_) count = std::max(count, noise.size());
  if (count == 0) return built;
  count = rounded_count(count);
  built.count = static_cast<std::int64_t>(count);
  built.values.assign(static_cast<std::size_t>(rows_) * count, kNever);
  for (const auto& [row, noise] : noise_) {
    const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * count);
    std::copy(noise.begin(), noise.end(), built.values.begin() + begin);
  }
  return built;
}

}  // namespace translate_trt::runtime
