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

std::vector<bool> LoopGuard::leaving(const std::vector<Tokens>& beams, std::size_t forced,
                                     bool has_constraints) const {
  std::vector<Tokens> shared;
  for (const Tokens& tokens : beams) {
    const std::size_t repeated = loop_length(tokens);
    if (repeated == 0) continue;
    const std::size_t end = std::max(tokens.size() - repeated * 2 / 3, forced + 1);
    shared.push_back(tokens);
    if (!has_constraints) shared.back().resize(end);
  }
  std::vector<bool> leaving;
  for (const Tokens& tokens : beams) {
    leaving.push_back(std::any_of(shared.begin(), shared.end(), [&](const Tokens& begin) {
      return std::equal(begin.begin(), begin.end(), tokens.begin());
    }));
  }
  return leaving;
}

}  // namespace translate_trt::runtime
