#include "core/marks.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "bundle/contract.h"

namespace translate_trt::runtime {

namespace {

// Bans tokens that would complete a sequence of `size` tokens that the hypothesis already has.
void ban_repeated(const Tokens& tokens, std::size_t size, Marks& marks) {
  for (std::size_t start = 0; start + size <= tokens.size(); ++start) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(start);
    const auto last = first + static_cast<std::ptrdiff_t>(size - 1);
    if (std::equal(first, last, tokens.end() - (last - first))) marks[*last] = kBanned;
  }
}

// Bans the last token of a sequence if the hypothesis ends in the tokens before it.
void ban_last(const Tokens& tokens, const Tokens& sequence, Marks& marks) {
  const std::size_t before = sequence.size() - 1;
  if (before > tokens.size()) return;
  if (std::equal(sequence.begin(), sequence.end() - 1,
                 tokens.end() - static_cast<std::ptrdiff_t>(before))) {
    marks[sequence.back()] = kBanned;
  }
}

}  // namespace

Marks marks_of(const Sentence& sentence, const Tokens& tokens) {
  const SearchOptions& options = sentence.options;
  Marks marks;
  if (options.repetition_penalty != 1) {
    for (const std::int64_t token : tokens) {
      marks[token] = static_cast<float>(options.repetition_penalty);
    }
  }
  const auto size = static_cast<std::size_t>(options.no_repeat_ngram_size);
  if (size > 0) ban_repeated(tokens, size, marks);
  for (const Tokens& sequence : sentence.suppressed) ban_last(tokens, sequence, marks);
  return marks;
}

void MarkBuilder::add(std::int64_t row, std::int64_t beam, Marks marks) {
  if (!marks.empty()) marks_[{row, beam}] = std::move(marks);
}

MarkedTokens MarkBuilder::build() const {
  MarkedTokens built;
  std::size_t count = 0;
  for (const auto& [beam, marks] : marks_) count = std::max(count, marks.size());
  if (count == 0) return built;
  count = rounded_count(count);
  built.count = static_cast<std::int64_t>(count);
  const std::size_t size = static_cast<std::size_t>(rows_ * beams_) * count;
  built.tokens.assign(size, kUnmarked);
  built.factors.assign(size, 1.0F);
  for (const auto& [beam, marks] : marks_) {
    std::size_t at = static_cast<std::size_t>(beam.first * beams_ + beam.second) * count;
    for (const auto& [token, factor] : marks) {
      built.tokens[at] = token;
      built.factors[at++] = factor;
    }
  }
  return built;
}

}  // namespace translate_trt::runtime
