// The embedding, a step of the beam search, and cache slots.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "../kernels/beam_search.h"
#include "kernel_check.h"

namespace translate_trt {
namespace {

void test_embed() {
  constexpr std::size_t kSentences = 3, kBeams = 2, kColumns = 19, kTokens = 40, kPositions = 9;
  Numbers numbers;
  const auto table = numbers.floats(kTokens * kColumns), scales = numbers.floats(kTokens);
  const auto bytes = numbers.bytes(kTokens * kColumns);
  const auto position_table = numbers.floats(kPositions * kColumns);
  const auto tokens = numbers.integers(kSentences * kBeams, kTokens);
  const auto positions = numbers.integers(kSentences, kPositions);
  const float factor = std::sqrt(19.0F);
  const auto count = kSentences * kBeams * kColumns;
  std::vector<float> y(count), y8(count), right(count), right8(count);
  for (const bool source : {false, true}) {
    const Embedding embedding{kSentences,
                              kBeams,
                              kColumns,
                              tokens.data(),
                              source ? nullptr : positions.data(),
                              position_table.data(),
                              factor};
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = i / kColumns, column = i % kColumns;
      const auto token = static_cast<std::size_t>(tokens[row]);
      const auto at = token * kColumns + column;
      const auto position =
          source ? row % kBeams : static_cast<std::size_t>(positions[row / kBeams]);
      const float added = position_table[position * kColumns + column];
      right[i] = table[at] * factor + added;
      right8[i] = static_cast<float>(bytes[at]) * scales[token] * factor + added;
    }
    embed(embedding, table.data(), y.data());
    check_same("embed", y, right);
    embed8(embedding, bytes.data(), scales.data(), y8.data());
    check_same("embed8", y8, right8);
  }
}

void test_ancestry() {
  constexpr std::size_t kSentences = 4, kBeams = 3, kSlots = 11;
  constexpr float kHidden = -1e9F;
  Numbers numbers;
  auto now = numbers.floats(kSentences * kBeams * kSlots);
  for (std::size_t i = 0; i < now.size(); ++i) {
    // In the last sentence nearly all slots are taken.
    now[i] =
        now[i] < 0 || (i / (kBeams * kSlots) == kSentences - 1 && i % kSlots > 1) ? 0 : kHidden;
  }
  std::vector<float> next(now.size()), right(now);
  const Ancestry ancestry{kSentences, kBeams, kSlots, now.data(), next.data()};
  const auto taken = numbers.integers(kSentences * kBeams, kSlots);
  for (std::size_t row = 0; row < taken.size(); ++row) {
    right[row * kSlots + static_cast<std::size_t>(taken[row])] = 0;
  }
  extend_ancestry(ancestry, taken.data());
  check_same("extend_ancestry", next, right);

  const auto parents = numbers.integers(kSentences * kBeams, kBeams);
  std::vector<std::int64_t> slots(kSentences * kBeams, -1);
  bool full[kSentences];
  follow_ancestry(ancestry, parents.data(), slots.data(), full);
  for (std::size_t n = 0; n < kSentences; ++n) {
    std::vector<std::int64_t> free;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      bool is_free = true;
      for (std::size_t k = 0; k < kBeams; ++k) {
        const auto parent = static_cast<std::size_t>(parents[n * kBeams + k]);
        const float seen = now[(n * kBeams + parent) * kSlots + slot];
        CHECK(next[(n * kBeams + k) * kSlots + slot] == seen);
        is_free = is_free && seen < 0;
      }
      if (is_free) free.push_back(static_cast<std::int64_t>(slot));
    }
    CHECK(full[n] == (free.size() < kBeams));
    for (std::size_t k = 0; k < std::min(kBeams, free.size()); ++k) {
      CHECK(slots[n * kBeams + k] == free[k]);
    }
  }
  CHECK(full[kSentences - 1]);
}

// Sorts pairs by their number in descending order, stably, and keeps the first ones.
template <class T>
std::vector<std::pair<float, T>> best(std::vector<std::pair<float, T>> all, std::size_t count) {
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  all.resize(count);
  return all;
}

struct Step {
  std::size_t sentences, beams, candidates;
  Numbers numbers;
  std::vector<float> values = numbers.floats(sentences * beams * candidates, 4);
  std::vector<std::int64_t> choices = numbers.integers(values.size(), 12);
  std::vector<std::int64_t> forced_tokens = std::vector<std::int64_t>(sentences, kFree);
  std::vector<std::int64_t> positions = numbers.integers(sentences, 10);
  std::vector<std::int64_t> min_lengths = numbers.integers(sentences, 6);
  std::vector<std::int64_t> max_lengths = std::vector<std::int64_t>(sentences, 9);
  std::vector<float> alphas = numbers.floats(sentences), betas = std::vector<float>(sentences, 5);
  std::vector<std::int64_t> num_hypotheses = std::vector<std::int64_t>(sentences, 1);
  std::vector<float> log_probs = numbers.floats(sentences * beams, 3);
  std::vector<float> scores = numbers.floats(sentences * beams, 2);
  std::vector<std::int64_t> lengths = numbers.integers(sentences * beams, 9);
  std::vector<std::int64_t> pool_parents = numbers.integers(sentences * beams, beams);
  std::vector<char> truncated = std::vector<char>(sentences * beams);
  std::size_t marks = 0;
  std::vector<std::int64_t> marked_tokens = {};
  std::vector<float> marked_factors = {};
  std::size_t ranks = 0;
  std::vector<float> noise = {};
  std::vector<float> temperatures = std::vector<float>(sentences, 1), top_shares = temperatures;
  std::size_t tails = 0;
  std::vector<std::int64_t> tail_tokens = {};
  std::vector<float> tail_noise = {};
  std::size_t constraints = 0;
  std::vector<std::int64_t> constraint_tokens = {}, constraint_progress = {};
  std::vector<std::int64_t> other_progress = std::vector<std::int64_t>(sentences * beams);
  std::vector<float> looked_up = numbers.floats(sentences * beams);

  // Gives two of three sentences constraints of up to `count` different tokens.
  void constrain(std::size_t count) {
    constraints = count;
    looked_up = numbers.floats(sentences * beams * (1 + count + tails), 4);
    constraint_progress = numbers.integers(sentences * beams * count, 4);
    other_progress = numbers.integers(sentences * beams, 3);
    for (std::size_t n = 0; n < sentences; ++n) {
      for (std::size_t u = 0; u < count; ++u) {
        const bool is_used = n % 3 > 0 && u <= n % count;
        constraint_tokens.push_back(is_used ? static_cast<std::int64_t>((n + 5 * u) % 12) : -1);
      }
    }
  }

  // The tokens of a sentence's constraints.
  std::vector<std::int64_t> wanted(std::size_t n) const {
    std::vector<std::int64_t> tokens;
    for (auto i = n * constraints; i < (n + 1) * constraints; ++i) {
      if (constraint_tokens[i] >= 0) tokens.push_back(constraint_tokens[i]);
    }
    return tokens;
  }

  // Draws the next token of every other sentence from a few of its candidates.
  void draw(std::size_t count) {
    ranks = count;
    for (std::size_t n = 0; n < sentences; ++n) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const bool is_open = n % 2 == 0 && rank <= n % 4;
        noise.push_back(is_open ? static_cast<float>((n + rank * rank) * 7 % 5)
                                : -std::numeric_limits<float>::infinity());
      }
    }
  }

  // Lets every sentence with noise draw from `count` further tokens.
  void draw_tail(std::size_t count) {
    tails = count;
    looked_up = numbers.floats(sentences * beams * (1 + constraints + count), 4);
    tail_noise = numbers.floats(sentences * count, 3);
    for (std::size_t i = 0; i < sentences * count; ++i) {
      tail_tokens.push_back(i % 7 == 6 ? -1 : static_cast<std::int64_t>(i * 5 % 13));
    }
  }

  // Marks tokens of every beam; some entries are unused, and some tokens are banned.
  void mark(std::size_t count) {
    marks = count;
    for (std::size_t i = 0; i < sentences * beams * marks; ++i) {
      marked_tokens.push_back(i % 5 == 0 ? -1 : static_cast<std::int64_t>(i * 7 % 12));
      marked_factors.push_back(i % 3 == 0 ? std::numeric_limits<float>::infinity()
                                          : 1 + static_cast<float>(i % 4) / 2);
    }
  }

  // The factor of a token of a beam.
  float factor(std::size_t row, std::int64_t token) const {
    const auto first = marked_tokens.begin() + static_cast<std::ptrdiff_t>(row * marks);
    const auto found = std::find(first, first + static_cast<std::ptrdiff_t>(marks), token);
    if (found == first + static_cast<std::ptrdiff_t>(marks)) return 1;
    return marked_factors[static_cast<std::size_t>(found - marked_tokens.begin())];
  }
};

constexpr std::int64_t kEnd = 3;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Results of a step, by the kernel or by the rules of docs/beam-search.md.
struct Result {
  explicit Result(const Step& step)
      : parents(step.sentences * step.beams),
        tokens(parents),
        log_probs(parents.size()),
        positions(step.sentences),
        done(step.sentences),
        scores(parents.size()),
        lengths(parents),
        pool_parents(parents),
        truncated(parents) {}

  void check(const std::string& what, const Result& right) const {
    check_same(what + ", parents", parents, right.parents);
    check_same(what + ", tokens", tokens, right.tokens);
    check_same(what + ", log-probabilities", log_probs, right.log_probs);
    check_same(what + ", positions", positions, right.positions);
    check_same(what + ", done", done, right.done);
    check_same(what + ", scores", scores, right.scores);
    check_same(what + ", lengths", lengths, right.lengths);
    check_same(what + ", parents of the pool", pool_parents, right.pool_parents);
    check_same(what + ", truncated", truncated, right.truncated);
  }

  std::vector<std::int64_t> parents, tokens;
  std::vector<float> log_probs;
  std::vector<std::int64_t> positions, done;
  std::vector<float> scores;
  std::vector<std::int64_t> lengths, pool_parents, truncated;
};

Result selected(const Step& step, const bool* early, const bool* done) {
  Result found(step);
  std::vector<char> next_done(step.sentences), truncated(found.truncated.size());
  Selection s = {};
  s.sentences = step.sentences;
  s.beams = step.beams;
  s.candidates = step.candidates;
  s.log_probabilities = step.values.data();
  s.choices = step.choices.data();
  s.looked_up = step.looked_up.data();
  s.end_token = kEnd;
  s.forced_tokens = step.forced_tokens.data();
  s.min_lengths = step.min_lengths.data();
  s.max_lengths = step.max_lengths.data();
  s.alphas = step.alphas.data();
  s.betas = step.betas.data();
  s.num_hypotheses = step.num_hypotheses.data();
  s.early_stopping = early;
  s.log_probs = step.log_probs.data();
  s.positions = step.positions.data();
  s.done = done;
  s.finished_scores = step.scores.data();
  s.finished_lengths = step.lengths.data();
  s.finished_parents = step.pool_parents.data();
  s.finished_truncated = reinterpret_cast<const bool*>(step.truncated.data());
  s.marks = step.marks;
  s.marked_tokens = step.marked_tokens.data();
  s.marked_factors = step.marked_factors.data();
  s.ranks = step.ranks;
  s.noise = step.noise.data();
  s.temperatures = step.temperatures.data();
  s.top_shares = step.top_shares.data();
  s.tails = step.tails;
  s.tail_tokens = step.tail_tokens.data();
  s.tail_noise = step.tail_noise.data();
  s.constraints = step.constraints;
  s.constraint_tokens = step.constraint_tokens.data();
  s.constraint_progress = step.constraint_progress.data();
  s.other_progress = step.other_progress.data();
  s.parents = found.parents.data();
  s.next_tokens = found.tokens.data();
  s.next_log_probs = found.log_probs.data();
  s.next_positions = found.positions.data();
  s.next_done = reinterpret_cast<bool*>(next_done.data());
  s.next_finished_scores = found.scores.data();
  s.next_finished_lengths = found.lengths.data();
  s.next_finished_parents = found.pool_parents.data();
  s.next_finished_truncated = reinterpret_cast<bool*>(truncated.data());
  select_beams(s);
  found.truncated.assign(truncated.begin(), truncated.end());
  found.done.assign(next_done.begin(), next_done.end());
  return found;
}

void expect(const Step& s, const bool* early, const bool* done, std::size_t n, Result& right) {
  struct Continuation {
    std::int64_t parent, token, progress;
  };
  const auto wanted = s.wanted(n);
  const auto forced = s.forced_tokens[n];
  const float* noise = s.noise.data() + n * s.ranks;
  const bool draws = s.ranks > 0 && noise[0] > kNothing && forced == kFree;
  std::vector<std::pair<float, Continuation>> all;
  for (std::size_t k = 0; k < s.beams; ++k) {
    const auto row = n * s.beams + k;
    const auto parent = static_cast<std::int64_t>(k);
    std::vector<std::pair<float, std::size_t>> ranked;  // values of the candidates
    for (auto c = row * s.candidates; c < (row + 1) * s.candidates; ++c) {
      const bool too_short = s.positions[n] + 1 < s.min_lengths[n] && s.choices[c] == kEnd;
      const float factor = s.factor(row, s.choices[c]);
      const bool is_wanted = std::count(wanted.begin(), wanted.end(), s.choices[c]) > 0;
      const bool barred = forced != kFree || too_short || factor > 1e9F || is_wanted;
      ranked.push_back({barred ? kNothing : s.values[c] * factor, c});
    }
    const auto* looked_up = s.looked_up.data() + row * (1 + s.constraints + s.tails);
    if (draws) {
      using Token = std::pair<float, std::int64_t>;  // value and token
      auto order = best(ranked, ranked.size());
      std::size_t open = 0;
      while (open < s.ranks && noise[open] > kNothing) ++open;
      const auto ranks = std::min(order.size(), open);
      std::vector<std::pair<float, Token>> keys;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const auto [value, c] = order[rank];
        keys.push_back({value + noise[rank], {value, s.choices[c]}});
      }
      for (std::size_t d = 0; d < s.tails; ++d) {
        const auto token = s.tail_tokens[n * s.tails + d];
        const bool too_short = s.positions[n] + 1 < s.min_lengths[n] && token == kEnd;
        const float factor = s.factor(row, token);
        if (token < 0 || too_short || factor > 1e9F) continue;
        const Token one = {looked_up[1 + s.constraints + d] * factor, token};
        const auto [worst, c] = order[ranks - 1];
        if (open > ranks || one.first > worst) continue;  // all tokens, or this one, have ranks
        if (one.first == worst && token <= s.choices[c]) continue;
        keys.push_back({one.first + s.tail_noise[n * s.tails + d], one});
      }
      const auto [value, token] = best(std::move(keys), 1).front().second;
      all.push_back({value + s.log_probs[row], {parent, token, s.other_progress[row]}});
      for (std::size_t c = 1; c < s.candidates; ++c) {
        all.push_back({kNothing, {parent, s.choices[row * s.candidates + c], 0}});
      }
    } else {
      for (const auto& [value, c] : ranked) {
        all.push_back({value + s.log_probs[row], {parent, s.choices[c], s.other_progress[row]}});
      }
    }
    for (std::size_t u = 0; u < s.constraints; ++u) {
      const bool is_open = u < wanted.size() && forced == kFree;
      all.push_back({(is_open ? looked_up[1 + u] : kNothing) + s.log_probs[row],
                     {parent, u < wanted.size() ? wanted[u] : 0,
                      s.constraint_progress[row * s.constraints + u]}});
    }
    const float value = forced >= 0 ? looked_up[0] : forced == kFree ? kNothing : 0.0F;
    all.push_back(
        {value + s.log_probs[row], {parent, forced_column(forced), s.other_progress[row]}});
  }
  const auto count = all.size();
  auto kept = best(std::move(all), wanted.empty() ? 2 * s.beams : count);
  if (!wanted.empty()) {
    // Takes the best of every progress in turn.
    decltype(kept) taken;
    auto left = kept;
    while (!left.empty() && left.front().first > kNothing) {
      for (std::int64_t progress = 9; progress >= 0; --progress) {
        const auto next = std::find_if(left.begin(), left.end(), [&](const auto& one) {
          return one.second.progress == progress && one.first > kNothing;
        });
        if (next == left.end()) continue;
        taken.push_back(*next);
        left.erase(next);
      }
    }
    taken.insert(taken.end(), left.begin(), left.end());
    taken.resize(2 * s.beams);
    kept = std::move(taken);
  }
  // A greedy search keeps one candidate.
  for (std::size_t i = s.beams * s.beams; i < kept.size(); ++i) kept[i].first = kNothing;

  struct Finished {
    std::int64_t length, parent, truncated;
  };
  const auto length = s.positions[n] + 1;
  const auto penalty = [&](std::int64_t of) {
    return std::pow((s.betas[n] + static_cast<float>(of)) / (s.betas[n] + 1), s.alphas[n]);
  };
  std::vector<std::pair<float, Finished>> pool;
  std::vector<std::pair<float, Continuation>> live;
  for (std::size_t k = 0; k < s.beams; ++k) {
    const auto row = n * s.beams + k;
    pool.push_back({s.scores[row], {s.lengths[row], s.pool_parents[row], s.truncated[row]}});
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto& [value, one] = kept[i];
    const bool ends = one.token == kEnd;
    const bool enters = ends && !done[n] && (i < s.beams || !early[n]);
    pool.push_back({enters ? value / penalty(length) : kNothing, {length, one.parent, 0}});
    if (!ends) live.push_back({value, one});
  }
  for (const auto& [value, one] : kept) {
    if (one.token == kEnd) live.push_back({kNothing, one});
  }
  pool = best(std::move(pool), s.beams);
  live.resize(s.beams);
  float best_live = kNothing;
  for (const auto& [value, one] : live) best_live = std::max(best_live, value);
  const float worst = pool.back().first, bound = best_live / penalty(s.max_lengths[n]);
  const auto settled =
      std::count_if(pool.begin(), pool.end(), [=](const auto& one) { return bound <= one.first; });
  std::int64_t next = 0;  // live beam to truncate next
  for (auto& [score, one] : pool) {
    if (score > kNothing || done[n] || length < s.max_lengths[n]) continue;
    const float log_prob = live[static_cast<std::size_t>(next)].first;
    if (log_prob > kNothing) {
      score = log_prob / penalty(length);
      one = {length, next, 1};
    }
    ++next;
  }
  for (std::size_t k = 0; k < s.beams; ++k) {
    const auto row = n * s.beams + k;
    right.scores[row] = pool[k].first;
    right.lengths[row] = pool[k].second.length;
    right.pool_parents[row] = pool[k].second.parent;
    right.truncated[row] = pool[k].second.truncated;
    right.log_probs[row] = live[k].first;
    right.parents[row] = live[k].second.parent;
    right.tokens[row] = live[k].second.token;
  }
  const bool is_done = done[n] || (early[n] && worst > kNothing) ||
                       settled >= s.num_hypotheses[n] || length >= s.max_lengths[n];
  right.done[n] = is_done;
  right.positions[n] = is_done ? s.positions[n] : length;
}

void test_select_beams() {
  std::uint32_t seed = 0;
  for (const std::size_t beams : {1, 2, 4, 7}) {
    for (const std::size_t candidates : {2, 8, 15}) {
      constexpr std::size_t kSentences = 30;
      Step step{kSentences, beams, candidates, Numbers(++seed)};
      bool early[kSentences], done[kSentences];
      for (std::size_t n = 0; n < kSentences; ++n) {
        early[n] = n % 2 == 1;
        done[n] = n % 7 == 3;
        step.num_hypotheses[n] = static_cast<std::int64_t>(1 + n % beams);
        if (n % 5 == 2) step.forced_tokens[n] = static_cast<std::int64_t>(n % 12);
        if (n % 5 == 4) step.forced_tokens[n] = -2 - static_cast<std::int64_t>(n % 12);
        // The first step: only one live beam, and an empty pool.
        for (std::size_t k = 0; k < beams && n % 3 == 0; ++k) {
          if (k > 0) step.log_probs[n * beams + k] = -1e9F;
          step.scores[n * beams + k] = kNothing;
        }
        // A finished sentence with a truncated hypothesis.
        if (done[n]) step.truncated[n * beams + beams - 1] = 1;
        // Ties, which keep their order.
        if (n % 4 == 1) {
          std::fill_n(step.values.data() + n * beams * candidates, beams * candidates, -1.5F);
          std::fill_n(step.log_probs.data() + n * beams, beams, -2.0F);
        }
      }
      for (const std::string changes : {"none", "marks", "tail", "constraints"}) {
        if (changes == "marks") {
          step.mark(3);
          step.draw(4);
        }
        if (changes == "tail") step.draw_tail(5);
        if (changes == "constraints") {
          step.ranks = 0;
          step.constrain(4);
        }
        Result right(step);
        for (std::size_t n = 0; n < kSentences; ++n) expect(step, early, done, n, right);
        selected(step, early, done)
            .check("select_beams " + std::to_string(beams) + " " + std::to_string(candidates) +
                       ", " + changes,
                   right);
      }
    }
  }
}

}  // namespace

void test_kernel_search() {
  test_embed();
  test_ancestry();
  test_select_beams();
}

}  // namespace translate_trt
