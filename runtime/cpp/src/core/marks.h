// Marked tokens: tokens whose log-probabilities a step changes (rule 13 of docs/beam-search.md;
// runtime/marks.py).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "backends/backend.h"
#include "core/sentence.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Factors of log-probabilities by token.
using Marks = std::map<std::int64_t, float>;

// The factor of a token that is no candidate.
inline constexpr float kBanned = std::numeric_limits<float>::infinity();

// The marked tokens of the next step of a hypothesis. tokens: those of the hypothesis so far,
// forced ones included.
Marks marks_of(const Sentence& sentence, const Tokens& tokens);

// Collects the marked tokens of the beams of a batch.
class MarkBuilder {
 public:
  MarkBuilder(std::int64_t rows, std::int64_t beams) : rows_(rows), beams_(beams) {}

  void add(std::int64_t row, std::int64_t beam, Marks marks);

  MarkedTokens build() const;

 private:
  std::int64_t rows_, beams_;
  std::map<std::pair<std::int64_t, std::int64_t>, Marks> marks_;  // by row and beam
};

}  // namespace translate_trt::runtime
