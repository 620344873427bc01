#include "core/alternatives.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>

#include "bundle/contract.h"
#include "core/constraints.h"

namespace translate_trt::runtime {

namespace {

// Scores the completion of an alternative, which has no free tokens if a loop was cut that began
// before them.
void score(const Sentence& sentence, Hypothesis& found) {
  found.score = *sentence.alternative;
  std::vector<double>& log_probs = found.token_log_probs;
  if (log_probs.size() < sentence.prefix.size()) return;
  const auto free = log_probs.begin() + static_cast<std::ptrdiff_t>(sentence.prefix.size());
  *std::prev(free) = *sentence.alternative;
  const auto count = std::max<std::int64_t>(1, log_probs.end() - free);
  found.score += std::accumulate(free, log_probs.end(), 0.0) / sentence.options.penalty(count);
}

}  // namespace

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
    next.prefix.push_back(unscored(one.tokens.back()));
    next.alternative = one.token_log_probs.back();
    next.options = *expanded.completion;
    next.options.num_hypotheses = next.options.beam_size;  // all that best_completion ranks
    next.suppressed = expanded.suppressed;
    next.constraints = expanded.constraints;
    made.push_back(std::move(next));
  }
  return made;
}

std::vector<Hypothesis> best_completion(const Sentence& sentence, std::vector<Hypothesis> found) {
  if (!sentence.alternative || found.empty()) return found;
  const auto rank = [&](const Hypothesis& one) {
    Reading reading(sentence.constraints);
    reading.read(one.tokens);
    return std::pair(one.truncated, reading.met());
  };
  const auto first = rank(found.front());
  std::vector<Hypothesis> best;
  for (Hypothesis& one : found) {
    if (rank(one) != first) continue;
    score(sentence, one);
    if (best.empty()) {
      best.push_back(std::move(one));
    } else if (one.score > best.front().score) {
      best.front() = std::move(one);
    }
  }
  return best;
}

}  // namespace translate_trt::runtime
