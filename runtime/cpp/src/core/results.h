// What a translation is made of (runtime/results.py).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace translate_trt::runtime {

// One finished hypothesis.
struct Hypothesis {
  Tokens tokens;                        // without the end symbol
  double score = 0;                     // cumulative log-probability / length penalty
  std::vector<double> token_log_probs;  // the last one is the end symbol's unless truncated
  bool truncated = false;               // the maximum length came before the end symbol
  std::vector<float> attention;         // [token_log_probs, source tokens (and end)], if asked for
};

// A hypothesis of a line as text, with those of its pieces; `score` is the sum over the pieces.
struct TextHypothesis {
  std::string text;
  double score = 0;
  std::vector<Hypothesis> pieces;
};

// The n best translations of one line, best first; an empty line has one, empty.
using Translation = std::vector<TextHypothesis>;

}  // namespace translate_trt::runtime
