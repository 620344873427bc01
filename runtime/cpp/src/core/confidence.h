// Confidence of words: the probabilities of their tokens, calibrated (runtime/confidence.py).
#pragma once

#include <optional>
#include <vector>

#include "bundle/manifest.h"
#include "core/results.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Logistic calibration: the confidence of log-probability x is 1 / (1 + exp(-(slope x +
// intercept))).
struct Calibration {
  double slope, intercept;

  double confidence(double log_prob) const;
};

// Reads the calibration of a target; nullopt if it has none. Throws a bundle error if it is
// damaged.
std::optional<Calibration> read_calibration(const TargetEntry& target);

// The words of a translation in order. The end symbols of the pieces belong to no word. Without a
// calibration, a confidence is the product of the probabilities of the tokens.
std::vector<Word> words_of(const Tokenizer& tokenizer, const std::vector<Hypothesis>& pieces,
                           const std::optional<Calibration>& calibration);

}  // namespace translate_trt::runtime
