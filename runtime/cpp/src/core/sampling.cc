#include "core/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <unordered_set>
#include <utility>

#include "bundle/contract.h"

namespace translate_trt::runtime {

namespace {

// Of so many tokens of the vocabulary, one is among those of the tail.
constexpr std::int64_t kTokensPerTailToken = 32;

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
  const auto exponential = [&] {
    // An odd multiple of 2^-53, so neither 0 nor 1.
    return -std::log(static_cast<double>(2 * (mix(state++) >> 12) + 1) * 0x1p-53);
  };
  const auto gumbel = [&](double number) {
    return static_cast<float>(-options.sampling_temperature * std::log(number));
  };
  Noise noise;
  const std::int64_t ranks = options.sampling_top_k > 0 ? options.sampling_top_k : kMaxTopK;
  for (std::int64_t rank = 0; rank < ranks; ++rank) noise.by_rank.push_back(gumbel(exponential()));
  if (options.sampling_top_k == 0 && vocabulary_size_ > ranks) {
    const std::int64_t size = (vocabulary_size_ + kTokensPerTailToken - 1) / kTokensPerTailToken;
    // The smallest of so many exponentially distributed numbers in turn (Renyi 1953).
    double total = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      total += exponential() / static_cast<double>(vocabulary_size_ - i);
      noise.tail.push_back(gumbel(total));
    }
    std::unordered_set<std::int64_t> different;
    while (noise.tail_tokens.size() < noise.tail.size()) {
      const auto number = mix(state++) >> 32;
      const auto token =
          static_cast<std::int64_t>(number * static_cast<std::uint64_t>(vocabulary_size_) >> 32);
      if (different.insert(token).second) noise.tail_tokens.push_back(token);
    }
  }
  noise_[row] = std::move(noise);
}

SamplingNoise NoiseBuilder::build() const {
  SamplingNoise built;
  std::size_t count = 0, tails = 0;
  for (const auto& [row, noise] : noise_) {
    count = std::max(count, noise.by_rank.size());
    tails = std::max(tails, noise.tail.size());
  }
  if (count == 0) return built;
  count = rounded_count(count);
  const auto rows = static_cast<std::size_t>(rows_);
  built.count = static_cast<std::int64_t>(count);
  built.values.assign(rows * count, kNever);
  built.tail_count = static_cast<std::int64_t>(tails);
  built.tail_tokens.assign(rows * tails, kUnmarked);
  built.tail_values.assign(rows * tails, kNever);
  const auto copy = [](const auto& from, auto& to, std::int64_t row, std::size_t width) {
    const auto begin = static_cast<std::size_t>(row) * width;
    std::copy(from.begin(), from.end(), to.begin() + static_cast<std::ptrdiff_t>(begin));
  };
  for (const auto& [row, noise] : noise_) {
    copy(noise.by_rank, built.values, row, count);
    copy(noise.tail, built.tail_values, row, tails);
    copy(noise.tail_tokens, built.tail_tokens, row, tails);
  }
  return built;
}

}  // namespace translate_trt::runtime
