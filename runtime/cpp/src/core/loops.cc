#include "core/loops.h"

#include <algorithm>

namespace translate_trt::runtime {

namespace {

constexpr std::size_t kMaxPhrase = 32;                  // tokens of the longest phrase
constexpr std::size_t kMinCopies = 4, kMinTokens = 16;  // of the shortest loop

// Largest number of adjacent copies of a phrase.
std::size_t copies(const Tokens& tokens) {
  std::size_t most = 1;
  for (std::size_t phrase = 1; phrase <= kMaxPhrase; ++phrase) {
    std::size_t repeated = 0;  // tokens that equal the token one phrase before them
    for (std::size_t i = phrase; i < tokens.size(); ++i) {
      repeated = tokens[i] == tokens[i - phrase] ? repeated + 1 : 0;
      most = std::max(most, repeated / phrase + 1);
    }
  }
  return most;
}

}  // namespace

LoopGuard::LoopGuard(const Tokens& source) : copies_(std::max(kMinCopies, 2 * copies(source))) {}

std::size_t LoopGuard::loop_length(const Tokens& tokens) const {
  for (std::size_t phrase = 1; phrase <= kMaxPhrase && phrase < tokens.size(); ++phrase) {
    std::size_t repeated = 0;
    while (repeated + phrase < tokens.size()) {
      const std::size_t last = tokens.size() - 1 - repeated;
      if (tokens[last] != tokens[last - phrase]) break;
      ++repeated;
    }
    if (repeated + phrase >= std::max(copies_ * phrase, kMinTokens)) return repeated;
  }
  return 0;
}

std::vector<bool> LoopGuard::leaving(const std::vector<Tokens>& beams, bool has_constraints) const {
  std::vector<Tokens> begins;
  for (const Tokens& tokens : beams) {
    const auto repeated = static_cast<std::ptrdiff_t>(loop_length(tokens));
    const std::ptrdiff_t later = has_constraints ? 0 : repeated * 2 / 3;
    if (repeated > 0) begins.emplace_back(tokens.begin(), tokens.end() - later);
  }
  std::vector<bool> leaving;
  for (const Tokens& tokens : beams) {
    leaving.push_back(std::any_of(begins.begin(), begins.end(), [&](const Tokens& begin) {
      return std::equal(begin.begin(), begin.end(), tokens.begin());
    }));
  }
  return leaving;
}

}  // namespace translate_trt::runtime
