// Detection of loops: hypotheses that repeat one phrase (rule 11 of docs/beam-search.md;
// runtime/loops.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Number of steps between two checks of a sentence.
inline constexpr std::int64_t kLoopCheckSteps = 8;

// Detects loops in the hypotheses of one sentence.
class LoopGuard {
 public:
  // source: source tokens. If the source itself repeats a phrase, a loop has at least twice as many
  // copies.
  explicit LoopGuard(const Tokens& source);

  // Number of tokens at the end that repeat the phrase before them; 0 without a loop.
  std::size_t loop_length(const Tokens& tokens) const;

  // Whether each live hypothesis leaves the search: loops do, and hypotheses that share the first
  // third of a loop's repetitions and a token that was not forced, since they do not avoid the loop
  // but interrupt it; with constraints, their phrases may do so. beams: tokens of the live
  // hypotheses, equally long. forced: number of forced tokens, fewer than these.
  std::vector<bool> leaving(const std::vector<Tokens>& beams, std::size_t forced,
                            bool has_constraints) const;

 private:
  std::size_t copies_;  // of the shortest loop
};

}  // namespace translate_trt::runtime
