#include "beam_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace translate_trt {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// The k best of the offered values, best first; of equal values, the first offered wins (rule 8).
class TopK {
 public:
  struct Entry {
    float value;
    std::size_t index;
  };

  explicit TopK(std::size_t count) : entries_(count) {}

  void clear() { size_ = 0; }

  void offer(float value, std::size_t index) {
    if (size_ < entries_.size()) {
      ++size_;
    } else if (!(value > entries_[size_ - 1].value)) {
      return;
    }
    auto entry = size_ - 1;
    for (; entry > 0 && value > entries_[entry - 1].value; --entry) {
      entries_[entry] = entries_[entry - 1];
    }
    entries_[entry] = {value, index};
  }

  // At least k values must have been offered.
  const Entry& operator[](std::size_t rank) const { return entries_[rank]; }

 private:
  std::vector<Entry> entries_;
  std::size_t size_ = 0;
};

// A continuation of a sentence with constraints.
struct Continuation {
  float value;
  std::size_t index;
  std::int64_t progress;
  std::size_t rank;  // among the continuations of equal progress
};

// A candidate: one of the best 2K continuations of a sentence.
struct Kept {
  float log_prob;
  std::int64_t parent, token;
};

struct Scratch {
  explicit Scratch(std::size_t beams)
      : best(2 * beams), few(beams), kept(2 * beams), drawn(beams) {}

  TopK best, few;
  std::vector<Continuation> all;  // of a sentence with constraints
  std::vector<Kept> kept;
  std::vector<float> values;        // of the candidates of a beam
  std::vector<std::size_t> ranked;  // candidates of a beam, best first
  std::vector<std::int64_t> drawn;  // tokens of the first candidate of each beam, if it is drawn
};

// ((beta + n) / (beta + 1)) ** alpha
float length_penalty(const Selection& s, std::size_t n, std::int64_t length) {
  const float beta = s.betas[n];
  return std::pow((beta + static_cast<float>(length)) / (beta + 1.0F), s.alphas[n]);
}

// Number of tokens that are looked up for each beam.
std::size_t lookups(const Selection& s) { return 1 + s.constraints + s.tails; }

// Rule 13: the log-probability of a candidate of beam `row` times the factor of its token.
float marked(const Selection& s, std::size_t row, std::int64_t token, float log_probability) {
  const auto* tokens = s.marked_tokens + row * s.marks;
  for (std::size_t b = 0; b < s.marks; ++b) {
    if (tokens[b] != token) continue;
    const float factor = s.marked_factors[row * s.marks + b];
    return std::isinf(factor) ? kImpossible : log_probability * factor;
  }
  return log_probability;
}

// Whether the next token of a sentence is drawn.
bool draws(const Selection& s, std::size_t n) {
  return s.ranks > 0 && s.noise[n * s.ranks] > kImpossible;
}

// Rule 14: leaves only the token that is drawn, in place of the first candidate of beam `row`.
void sample(const Selection& s, std::size_t n, std::size_t row, bool too_short, Scratch& scratch) {
  const auto* noise = s.noise + n * s.ranks;
  const auto* choices = s.choices + row * s.candidates;
  auto& values = scratch.values;
  auto& ranked = scratch.ranked;
  ranked.resize(s.candidates);
  std::iota(ranked.begin(), ranked.end(), std::size_t{0});
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](auto left, auto right) { return values[left] > values[right]; });
  std::size_t open = 0;  // ranks with noise; there may be fewer candidates
  while (open < s.ranks && noise[open] > kImpossible) ++open;
  const auto ranks = std::min(open, s.candidates);
  auto drawable = ranks;
  if (s.top_shares[n] < 1) {
    const auto share = [&](std::size_t rank) {
      return std::exp((values[ranked[rank]] - values[ranked[0]]) / s.temperatures[n]);
    };
    float total = 0, before = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) total += share(rank);
    drawable = 0;
    for (; drawable < ranks && !(before >= s.top_shares[n] * total); ++drawable) {
      before += share(drawable);
    }
  }
  float best = kImpossible, kept = values[ranked[0]];
  auto& drawn = scratch.drawn[row - n * s.beams];
  drawn = choices[ranked[0]];
  const auto offer = [&](float value, float added, std::int64_t token) {
    if (!(value + added > best)) return;
    best = value + added;
    kept = value;
    drawn = token;
  };
  for (std::size_t rank = 0; rank < drawable; ++rank) {
    offer(values[ranked[rank]], noise[rank], choices[ranked[rank]]);
  }
  // Of the tail, only tokens after the last rank, whose noise is that of their rank.
  const float worst = open > s.candidates ? kImpossible : values[ranked[ranks - 1]];
  const auto at_worst = choices[ranked[ranks - 1]];
  const auto* tail = s.looked_up + row * lookups(s) + 1 + s.constraints;
  for (std::size_t d = 0; d < s.tails; ++d) {
    const auto token = s.tail_tokens[n * s.tails + d];
    if (token < 0 || (too_short && token == s.end_token)) continue;
    const float value = marked(s, row, token, tail[d]);
    if (value < worst || (value == worst && token > at_worst)) {
      offer(value, s.tail_noise[n * s.tails + d], token);
    }
  }
  std::fill(values.begin(), values.end(), kImpossible);
  values[0] = kept;
}

// Whether a sentence has constraints.
bool is_constrained(const Selection& s, std::size_t n) {
  return s.constraints > 0 && s.constraint_tokens[n * s.constraints] >= 0;
}

// Whether a token belongs to the constraints of a sentence.
bool is_wanted(const Selection& s, std::size_t n, std::int64_t token) {
  const auto* wanted = s.constraint_tokens + n * s.constraints;
  return std::find(wanted, wanted + s.constraints, token) != wanted + s.constraints;
}

// Rule 15: of the continuations in scratch.all, the best of each progress come first, then the
// second best, and so on, each time in descending order of progress.
void order_by_progress(Scratch& scratch) {
  auto& all = scratch.all;
  for (auto& one : all) {
    if (!(one.value > kImpossible)) one = {kImpossible, one.index, -1, 0};  // also NaN
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.progress != b.progress ? a.progress > b.progress : a.value > b.value;
  });
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].progress == all[i - 1].progress) all[i].rank = all[i - 1].rank + 1;
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    const bool a_lives = a.progress >= 0, b_lives = b.progress >= 0;
    return a_lives && b_lives ? a.rank < b.rank : a_lives && !b_lives;
  });
}

// Rules 2 and 15, with the restrictions of rules 10, 13 and 14: selects the best 2K candidates, or
// one in a greedy search.
void expand(const Selection& s, std::size_t n, Scratch& scratch) {
  // The columns of a beam: candidates, tokens of constraints, and the forced token.
  const auto forced_at = s.candidates + s.constraints, width = forced_at + 1;
  const bool is_forced = s.forced_tokens[n] != kFree;
  const bool too_short = s.positions[n] + 1 < s.min_lengths[n];
  const bool constrained = is_constrained(s, n), is_drawn = draws(s, n) && !is_forced;
  const auto* wanted = s.constraint_tokens + n * s.constraints;
  scratch.best.clear();
  scratch.all.clear();
  for (std::size_t k = 0; k < s.beams; ++k) {
    const auto row = n * s.beams + k;
    const auto offer = [&](float value, std::size_t column, std::int64_t progress) {
      if (constrained) {
        scratch.all.push_back({value + s.log_probs[row], k * width + column, progress, 0});
      } else {
        scratch.best.offer(value + s.log_probs[row], k * width + column);
      }
    };
    const auto other_progress = s.other_progress[row];
    const auto* values = s.log_probabilities + row * s.candidates;
    const auto* choices = s.choices + row * s.candidates;
    const auto* looked_up = s.looked_up + row * lookups(s);
    scratch.values.resize(s.candidates);
    for (std::size_t c = 0; c < s.candidates; ++c) {
      const bool barred = is_forced || (too_short && choices[c] == s.end_token) ||
                          (constrained && is_wanted(s, n, choices[c]));
      scratch.values[c] = barred ? kImpossible : marked(s, row, choices[c], values[c]);
    }
    if (is_drawn) sample(s, n, row, too_short, scratch);
    for (std::size_t c = 0; c < s.candidates; ++c) offer(scratch.values[c], c, other_progress);
    for (std::size_t u = 0; u < s.constraints; ++u) {
      const bool is_open = wanted[u] >= 0 && !is_forced;
      offer(is_open ? looked_up[1 + u] : kImpossible, s.candidates + u,
            s.constraint_progress[row * s.constraints + u]);
    }
    const float forced = s.forced_tokens[n] >= 0 ? looked_up[0] : is_forced ? 0.0F : kImpossible;
    offer(forced, forced_at, other_progress);
  }
  if (constrained) order_by_progress(scratch);
  for (std::size_t rank = 0; rank < 2 * s.beams; ++rank) {
    const auto value = constrained ? scratch.all[rank].value : scratch.best[rank].value;
    const auto index = constrained ? scratch.all[rank].index : scratch.best[rank].index;
    const auto beam = index / width, c = index % width;
    const auto* choices = s.choices + (n * s.beams + beam) * s.candidates;
    scratch.kept[rank] = {
        rank < s.beams * s.beams ? value : kImpossible,
        static_cast<std::int64_t>(beam),
        is_drawn && c == 0 ? scratch.drawn[beam]
        : c < s.candidates ? choices[c]
        : c < forced_at    ? std::max<std::int64_t>(wanted[c - s.candidates], 0)
                           : forced_column(s.forced_tokens[n]),
    };
  }
}

// Rule 3: moves candidates that end (with early stopping, only those among the best K) to the pool.
void retire(const Selection& s, std::size_t n, Scratch& scratch) {
  const auto length = s.positions[n] + 1;
  const float penalty = length_penalty(s, n, length);
  const auto pool = n * s.beams;
  auto& best = scratch.few;
  best.clear();
  for (std::size_t k = 0; k < s.beams; ++k) best.offer(s.finished_scores[pool + k], k);
  for (std::size_t rank = 0; rank < 2 * s.beams; ++rank) {
    const auto& one = scratch.kept[rank];
    const bool counts = rank < s.beams || !s.early_stopping[n];
    const bool enters = one.token == s.end_token && counts && !s.done[n];
    best.offer(enters ? one.log_prob / penalty : kImpossible, s.beams + rank);
  }
  for (std::size_t k = 0; k < s.beams; ++k) {
    const auto [score, index] = best[k];
    const bool is_new = index >= s.beams;
    s.next_finished_scores[pool + k] = score;
    s.next_finished_lengths[pool + k] = is_new ? length : s.finished_lengths[pool + index];
    s.next_finished_parents[pool + k] =
        is_new ? scratch.kept[index - s.beams].parent : s.finished_parents[pool + index];
    s.next_finished_truncated[pool + k] = !is_new && s.finished_truncated[pool + index];
  }
}

// Rule 4: keeps the first K candidates that do not end as live beams; returns the best
// log-probability.
float live_on(const Selection& s, std::size_t n, Scratch& scratch) {
  // Candidates that end fill up the beams, with a log-probability of minus infinity.
  const auto ends = [&](const Kept& one) { return one.token == s.end_token; };
  std::stable_partition(scratch.kept.begin(), scratch.kept.end(), std::not_fn(ends));
  float best = kImpossible;
  for (std::size_t k = 0; k < s.beams; ++k) {
    const auto& one = scratch.kept[k];
    const float log_prob = ends(one) ? kImpossible : one.log_prob;
    s.parents[n * s.beams + k] = one.parent;
    s.next_tokens[n * s.beams + k] = one.token;
    s.next_log_probs[n * s.beams + k] = log_prob;
    best = std::max(best, log_prob);
  }
  return best;
}

// Rule 5: whether a sentence is done.
bool is_done(const Selection& s, std::size_t n, float best_live) {
  const float* scores = s.next_finished_scores + n * s.beams;
  const bool full = s.early_stopping[n] && scores[s.beams - 1] > kImpossible;
  const float bound = best_live / length_penalty(s, n, s.max_lengths[n]);
  const auto settled =
      std::count_if(scores, scores + s.beams, [=](float score) { return bound <= score; });
  return s.done[n] || full || settled >= s.num_hypotheses[n] ||
         s.positions[n] + 1 >= s.max_lengths[n];
}

// Rule 6: at the maximum length, fills unused entries of the pool with the best live hypotheses.
void cut_off(const Selection& s, std::size_t n) {
  const auto length = s.positions[n] + 1;
  if (s.done[n] || length < s.max_lengths[n]) return;
  const float penalty = length_penalty(s, n, length);
  const auto pool = n * s.beams;
  std::size_t entry = 0;
  while (entry < s.beams && s.next_finished_scores[pool + entry] > kImpossible) ++entry;
  for (std::size_t beam = 0; entry < s.beams; ++entry, ++beam) {
    const float log_prob = s.next_log_probs[pool + beam];
    if (!(log_prob > kImpossible)) continue;  // also skips NaN
    s.next_finished_scores[pool + entry] = log_prob / penalty;
    s.next_finished_lengths[pool + entry] = length;
    s.next_finished_parents[pool + entry] = static_cast<std::int64_t>(beam);
    s.next_finished_truncated[pool + entry] = true;
  }
}

const float* position_of(const Embedding& e, std::size_t row) {
  const auto position =
      e.positions == nullptr ? row % e.beams : static_cast<std::size_t>(e.positions[row / e.beams]);
  return e.position_table + position * e.columns;
}

}  // namespace

void embed(const Embedding& e, const float* table, float* y) {
  for (std::size_t row = 0; row < e.sentences * e.beams; ++row, y += e.columns) {
    const auto* x = table + static_cast<std::size_t>(e.tokens[row]) * e.columns;
    const auto* position = position_of(e, row);
    for (std::size_t i = 0; i < e.columns; ++i) y[i] = x[i] * e.factor + position[i];
  }
}

void embed8(const Embedding& e, const std::int8_t* table, const float* scales, float* y) {
  for (std::size_t row = 0; row < e.sentences * e.beams; ++row, y += e.columns) {
    const auto token = static_cast<std::size_t>(e.tokens[row]);
    const auto* x = table + token * e.columns;
    const auto* position = position_of(e, row);
    const float scale = scales[token];
    for (std::size_t i = 0; i < e.columns; ++i) {
      y[i] = static_cast<float>(x[i]) * scale * e.factor + position[i];
    }
  }
}

void select_beams(const Selection& s) {
  Scratch scratch(s.beams);
  for (std::size_t n = 0; n < s.sentences; ++n) {
    expand(s, n, scratch);
    retire(s, n, scratch);
    const float best_live = live_on(s, n, scratch);
    const bool done = is_done(s, n, best_live);
    cut_off(s, n);
    s.next_done[n] = done;
    // A finished sentence stays at a valid position while others in the batch continue.
    s.next_positions[n] = done ? s.positions[n] : s.positions[n] + 1;
  }
}

void extend_ancestry(const Ancestry& a, const std::int64_t* slots) {
  std::copy_n(a.now, a.sentences * a.beams * a.slots, a.next);
  for (std::size_t row = 0; row < a.sentences * a.beams; ++row) {
    a.next[row * a.slots + static_cast<std::size_t>(slots[row])] = 0;
  }
}

void follow_ancestry(const Ancestry& a, const std::int64_t* parents, std::int64_t* slots,
                     bool* full) {
  TopK freest(a.beams);
  std::vector<float> nearest(a.slots);  // by slot, the highest value of all beams
  for (std::size_t n = 0; n < a.sentences; ++n) {
    const auto* now = a.now + n * a.beams * a.slots;
    auto* next = a.next + n * a.beams * a.slots;
    std::fill(nearest.begin(), nearest.end(), kImpossible);
    for (std::size_t k = 0; k < a.beams; ++k, next += a.slots) {
      std::copy_n(now + static_cast<std::size_t>(*parents++) * a.slots, a.slots, next);
      for (std::size_t slot = 0; slot < a.slots; ++slot) {
        nearest[slot] = std::max(nearest[slot], next[slot]);
      }
    }
    freest.clear();
    for (std::size_t slot = 0; slot < a.slots; ++slot) freest.offer(-nearest[slot], slot);
    for (std::size_t k = 0; k < a.beams; ++k) *slots++ = static_cast<std::int64_t>(freest[k].index);
    *full++ = freest[a.beams - 1].value == 0;
  }
}

}  // namespace translate_trt
