// Noise of sampled tokens (rule 14 of docs/beam-search.md; runtime/sampling.py).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "api/options.h"
#include "backends/backend.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// State of the noise of a sentence: that of its seed and source tokens, without the end symbol.
std::uint64_t noise_state(const SearchOptions& options, const Tokens& source);

// Collects the noise of the sentences of a batch.
class NoiseBuilder {
 public:
  explicit NoiseBuilder(std::int64_t rows) : rows_(rows) {}

  // Adds the noise of the token at a position of a sentence. state: its `noise_state`.
  void add(std::int64_t row, const SearchOptions& options, std::uint64_t state,
           std::int64_t position);

  SamplingNoise build() const;

 private:
  std::int64_t rows_;
  std::map<std::int64_t, std::vector<float>> noise_;  // by row
};

}  // namespace translate_trt::runtime
