// Noise of sampled tokens (rule 14 of docs/beam-search.md; runtime/sampling.py).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "backends/backend.h"
#include "base/options.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// State of the noise of a sentence: that of its seed and source tokens, without the end symbol.
std::uint64_t noise_state(const SearchOptions& options, const Tokens& source);

// Collects the noise of the sentences of a batch.
class NoiseBuilder {
 public:
  NoiseBuilder(std::int64_t rows, std::int64_t vocabulary_size)
      : rows_(rows), vocabulary_size_(vocabulary_size) {}

  // Adds the noise of the token at a position of a sentence. state: its `noise_state`.
  void add(std::int64_t row, const SearchOptions& options, std::uint64_t state,
           std::int64_t position);

  SamplingNoise build() const;

 private:
  struct Noise {
    std::vector<float> by_rank, tail;
    std::vector<std::int64_t> tail_tokens;
  };

  std::int64_t rows_, vocabulary_size_;
  std::map<std::int64_t, Noise> noise_;  // by row
};

}  // namespace translate_trt::runtime
