// Back-trace of hypotheses from a history (rule 7 of docs/beam-search.md).

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/errors.h"
#include "core/constraints.h"
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

// Cuts a truncated hypothesis that ends in a loop after the first copy of its phrase. columns: of
// the attention.
void drop_loop(Hypothesis& found, const LoopGuard& guard, const SearchOptions& options,
               std::int64_t columns) {
  const std::size_t repeated = found.truncated ? guard.loop_length(found.tokens) : 0;
  if (repeated == 0) return;
  const std::size_t length = found.tokens.size() - repeated;
  found.tokens.resize(length);
  found.token_log_probs.resize(length);
  if (options.return_attention) {
    found.attention.resize(length * static_cast<std::size_t>(columns));
  }
  const auto& log_probs = found.token_log_probs;
  found.score = std::accumulate(log_probs.begin(), log_probs.end(), 0.0) /
                options.penalty(static_cast<std::int64_t>(length));
  found.looped = true;
}

// Puts hypotheses that have more of the constraints before those that have less (rule 15).
void put_complete_first(std::vector<Hypothesis>& found, const std::vector<Tokens>& constraints) {
  if (constraints.empty()) return;
  std::vector<std::pair<std::size_t, Hypothesis>> counted;
  for (Hypothesis& one : found) {
    Reading reading(constraints);
    reading.read(one.tokens);
    const std::size_t met = reading.met();
    counted.emplace_back(met, std::move(one));
  }
  std::stable_sort(counted.begin(), counted.end(),
                   [](const auto& one, const auto& other) { return one.first > other.first; });
  std::transform(counted.begin(), counted.end(), found.begin(),
                 [](auto& one) { return std::move(one.second); });
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
                                   const Pool& pool, bool source_end, const LoopGuard* guard) {
  const SearchOptions& options = sentence.options;
  std::vector<Finished> entries;
  for (std::size_t i = 0; i < pool.scores.size(); ++i) {
    const double score = pool.scores[i];
    if (!(score > kImpossible)) continue;  // also skips NaN
    entries.push_back({score, pool.lengths[i], pool.parents[i], pool.truncated[i] != 0});
  }
  const std::int64_t columns = sentence.length() + (source_end ? 1 : 0);
  const auto count = static_cast<std::size_t>(options.num_hypotheses);
  const auto is_better = [](const auto& one, const auto& other) {
    return one.truncated != other.truncated ? other.truncated : one.score > other.score;
  };
  std::stable_sort(entries.begin(), entries.end(), is_better);
  // Without its loop a hypothesis has another score, and a truncated one may lack constraints: all
  // are traced back first.
  static const std::vector<Tokens> none;  // the order of alternatives is that of their tokens
  const auto& constraints = sentence.completion ? none : sentence.constraints;
  const bool reorders = guard != nullptr || !constraints.empty();
  if (!reorders && entries.size() > count) entries.resize(count);
  std::vector<Hypothesis> found;
  for (const Finished& entry : entries) {
    found.push_back(trace_back(history, options, entry, columns));
    if (guard != nullptr) drop_loop(found.back(), *guard, options, columns);
  }
  if (reorders) {
    std::stable_sort(found.begin(), found.end(), is_better);
    put_complete_first(found, constraints);
    if (found.size() > count) found.resize(count);
  }
  return found;
}

}  // namespace translate_trt::runtime
