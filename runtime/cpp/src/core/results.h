// Translation results (runtime/results.py).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/alignment.h"
#include "text/glossary.h"
#include "text/tokenizer.h"
#include "translate_trt/translate_trt.h"

namespace translate_trt::runtime {

// One finished hypothesis.
struct Hypothesis {
  Tokens tokens;                        // without the end symbol
  double score = 0;                     // cumulative log-probability / length penalty
  std::vector<double> token_log_probs;  // the last belongs to the end symbol unless truncated
  bool truncated = false;               // cut before the end symbol
  bool looped = false;                  // cut because it repeated one phrase
  std::vector<float> attention;         // [token_log_probs, source tokens (and end)], if requested
};

// A word of a translation: the text between two spaces.
struct Word {
  std::string text;
  double log_prob;    // sum of the log-probabilities of its tokens
  double confidence;  // its probability, calibrated if the target is
};

// A hypothesis of a line as text, with those of its segments; `score` is their sum.
struct TextHypothesis {
  std::string text;
  double score = 0;
  std::vector<Hypothesis> pieces;
  std::vector<tt_word_pair> alignment = {};   // of words of line and text, if requested
  std::vector<Word> words = {};               // of the text, if requested
  std::optional<TextAlignment> aligned = {};  // of line and text, if requested
  std::vector<Term> terms = {};               // of the glossary in the line, if requested
};

// The n best translations of one line, best first; a blank line has one, which is empty.
struct Translation {
  std::vector<TextHypothesis> hypotheses;
  std::size_t sentences = 1;                      // that were translated one by one
  std::shared_ptr<const Glossary> glossary = {};  // that the terms refer to
};

}  // namespace translate_trt::runtime
