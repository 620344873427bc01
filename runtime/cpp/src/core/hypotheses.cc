// Back-trace of hypotheses from a history (rule 7 of docs/beam-search.md).

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/search.h"

namespace translate_trt::runtime {

namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// An entry of the pool: live beam `parent` ended, or was truncated, after `length` tokens.
struct Finished {
  double score;
  std::int64_t length, parent;
  bool truncated;
};

// Traces back one hypothesis. columns: of its attention.
Hypothesis trace_back(const History& history, const SearchOptions& options, const Finished& entry,
                      std::int64_t columns) {
  // The end symbol is not stored in a beam.
  const std::int64_t traced = entry.truncated ? entry.length : entry.length - 1;
  const auto count = static_cast<std::size_t>(traced);
  Hypothesis found;
  found.score = entry.score;
  found.truncated = entry.truncated;
  found.tokens.resize(count);
  std::vector<std::int64_t> beams(count);  // beam that each token was selected from
  std::vector<double> cumulative(count);   // after each token
  std::int64_t beam = entry.parent;
  for (std::int64_t step = traced - 1; step >= 0; --step) {
    const auto position = static_cast<std::size_t>(step);
    cumulative[position] = history.log_prob(step, beam);
    found.tokens[position] = history.token(step, beam);
    beam = beams[position] = history.parent(step, beam);
  }
  if (!entry.truncated) {
    beams.push_back(entry.parent);
    cumulative.push_back(entry.score * options.penalty(entry.length));
  }
  double before = 0;
  for (const double now : cumulative) {
    found.token_log_probs.push_back(now - std::exchange(before, now));
  }
  if (options.return_attention) {
    for (std::size_t step = 0; step < beams.size(); ++step) {
      const float* row = history.attention(static_cast<std::int64_t>(step), beams[step]);
      found.attention.insert(found.attention.end(), row, row + columns);
    }
  }
  return found;
}

}  // namespace

Error no_hypothesis(const Sentence& sentence) {
  return backend_error("the model produced no finite probabilities for a sentence of " +
                       std::to_string(sentence.length()) +
                       " source tokens. Its weights hold NaN or infinity, or its values overflow: "
                       "check the checkpoint with translate-trt verify, or use a target of higher "
                       "precision, such as onnx-fp32.");
}

std::vector<Hypothesis> hypotheses(const Sentence& sentence, const History& history,
                                   const Pool& pool, bool source_end) {
  const SearchOptions& options = sentence.options;
  std::vector<Finished> entries;
  for (std::size_t i = 0; i < pool.scores.size(); ++i) {
    const double score = pool.scores[i];
    if (!(score > kImpossible)) continue;  // also skips NaN
    entries.push_back({score, pool.lengths[i], pool.parents[i], pool.truncated[i] != 0});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Finished& one, const Finished& other) {
    return one.score > other.score;
  });
  const auto best =
      std::min<std::size_t>(entries.size(), static_cast<std::size_t>(options.num_hypotheses));
  const std::int64_t columns = sentence.length() + (source_end ? 1 : 0);
  std::vector<Hypothesis> found;
  for (std::size_t i = 0; i < best; ++i) {
    found.push_back(trace_back(history, options, entries[i], columns));
  }
  return found;
}

}  // namespace translate_trt::runtime
