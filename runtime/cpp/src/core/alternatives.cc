#include "core/alternatives.h"

#include <cmath>
#include <utility>

namespace translate_trt::runtime {

Sentence expansion(Sentence sentence, std::optional<std::int64_t> beams) {
  const int count = sentence.options.alternatives;
  const int length = static_cast<int>(sentence.prefix.size()) + 1;
  sentence.completion = sentence.options;
  SearchOptions& options = sentence.options;
  options.beam_size = beams ? static_cast<int>(*beams) : count;
  options.num_hypotheses = count;
  options.length_penalty = 0;
  options.early_stopping = options.return_attention = options.loop_guard = false;
  options.max_length = length;
  options.min_length = length + 1;  // the end symbol is no alternative
  return sentence;
}

std::vector<Sentence> completions(const Sentence& expanded, const std::vector<Hypothesis>& found) {
  std::vector<Sentence> made;
  for (const Hypothesis& one : found) {
    const double prob = std::exp(one.token_log_probs.back());
    if (!made.empty() && prob < expanded.completion->min_alternative_prob) break;
    Sentence next = {};
    next.tokens = expanded.tokens;
    next.prefix = expanded.prefix;
    next.prefix.push_back(one.tokens.back());  // with its own log-probability
    next.options = *expanded.completion;
    next.suppressed = expanded.suppressed;
    next.constraints = expanded.constraints;
    made.push_back(std::move(next));
  }
  return made;
}

}  // namespace translate_trt::runtime
