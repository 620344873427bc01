#include "core/constraints.h"

#include <algorithm>
#include <utility>

#include "bundle/contract.h"

namespace translate_trt::runtime {

namespace {

// Whether `tokens` begin with a phrase.
bool begin_with(const Tokens& tokens, const Tokens& phrase) {
  return tokens.size() >= phrase.size() && std::equal(phrase.begin(), phrase.end(), tokens.begin());
}

}  // namespace

void Reading::read(const Tokens& tokens) {
  rest_.insert(rest_.end(), tokens.begin(), tokens.end());
  while (!rest_.empty() && !begins_constraint()) {
    const auto count = static_cast<std::ptrdiff_t>(std::max<std::size_t>(close_longest(), 1));
    rest_.erase(rest_.begin(), rest_.begin() + count);
  }
}

std::size_t Reading::progress_with(std::int64_t token) const {
  Reading next = *this;
  next.read({token});
  return next.met_ + next.rest_.size();
}

// Whether the rest is the beginning of a longer constraint that is open.
bool Reading::begins_constraint() const {
  for (std::size_t i = 0; i < closed_.size(); ++i) {
    const Tokens& phrase = (*constraints_)[i];
    if (!closed_[i] && phrase.size() > rest_.size() && begin_with(phrase, rest_)) return true;
  }
  return false;
}

// Closes the longest open constraint with which the rest begins; returns its number of tokens, or
// 0.
std::size_t Reading::close_longest() {
  std::size_t longest = 0, found = 0;  // found: its index
  for (std::size_t i = 0; i < closed_.size(); ++i) {
    const Tokens& phrase = (*constraints_)[i];
    if (!closed_[i] && phrase.size() > longest && begin_with(rest_, phrase)) {
      longest = phrase.size();
      found = i;
    }
  }
  if (longest == 0) return 0;
  closed_[found] = 1;
  --open_;
  met_ += longest;
  return longest;
}

Tokens different_tokens(const std::vector<Tokens>& phrases) {
  Tokens tokens;
  for (const Tokens& phrase : phrases) tokens.insert(tokens.end(), phrase.begin(), phrase.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

void ProgressBuilder::add(std::int64_t row, Tokens tokens, std::vector<Reading> readings) {
  added_[row] = {std::move(tokens), std::move(readings)};
}

ConstraintProgress ProgressBuilder::build() const {
  ConstraintProgress built;
  std::size_t count = 0;
  for (const auto& [row, added] : added_) count = std::max(count, added.tokens.size());
  if (count == 0) return built;
  count = rounded_count(count);
  built.count = static_cast<std::int64_t>(count);
  const auto rows = static_cast<std::size_t>(rows_), beams = static_cast<std::size_t>(beams_);
  built.tokens.assign(rows * count, kUnmarked);
  built.with_each.assign(rows * beams * count, 0);
  built.with_other.assign(rows * beams, 0);
  for (const auto& [row, added] : added_) {
    const auto at = static_cast<std::size_t>(row);
    std::copy(added.tokens.begin(), added.tokens.end(),
              built.tokens.begin() + static_cast<std::ptrdiff_t>(at * count));
    const auto& readings = added.readings;
    for (std::size_t beam = 0; beam < readings.size(); ++beam) {
      const auto progress_with = [&](std::int64_t token) {
        return static_cast<std::int64_t>(readings[beam].progress_with(token));
      };
      const std::size_t place = at * beams + beam;
      built.with_other[place] = progress_with(kUnmarked);
      std::transform(added.tokens.begin(), added.tokens.end(),
                     built.with_each.begin() + static_cast<std::ptrdiff_t>(place * count),
                     progress_with);
    }
  }
  return built;
}

}  // namespace translate_trt::runtime
