// Noise of sampled tokens (rule 14 of docs/beam-search.md; runtime/sampling.py).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "backends/backend.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// The 64 bits that SplitMix64 (Steele et al. 2014, figure 17) makes of 64 bits.
std::uint64_t mix(std::uint64_t number);

// Collects the noise of the sentences of a batch.
class NoiseBuilder {
 public:
  explicit NoiseBuilder(std::int64_t rows) : rows_(rows) {}

  // Draws the token at a position of a sentence from its candidates.
  void add(std::int64_t row, const Sentence& sentence, std::int64_t position);

  SamplingNoise build() const;

 private:
  std::int64_t rows_;
  std::map<std::int64_t, std::vector<float>> noise_;  // by row
};

}  // namespace translate_trt::runtime
