// What a step does besides the model's layers, for any processor: the embedding before them, the
// beam search after them (docs/beam-search.md, whose rules the comments name), and the slots of the
// caches. Plain arrays in, plain arrays out, as in kernels.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace translate_trt {

// Rows of a table at the tokens of the beams, times a factor, plus the position of their sentence.
struct Embedding {
  std::size_t sentences, beams, columns;  // N, K, d_model
  const std::int64_t* tokens;             // [N, K]
  const std::int64_t* positions;          // [N]
  const float* position_table;            // [..., columns]
  float factor;
};

void embed(const Embedding&, const float* table, float* y);
// In 8 bits, with a scale for each row.
void embed8(const Embedding&, const std::int8_t* table, const float* scales, float* y);

// Of what stands in forced_tokens: any token may come next. -2 - t is a token t that is given: its
// log-probability does not count.
constexpr std::int64_t kFree = -1;

// The token that a value of forced_tokens stands for, of kFree the first.
inline std::int64_t forced_column(std::int64_t value) {
  return std::max<std::int64_t>(std::max(value, -2 - value), 0);
}

// From the candidates of all beams to the next beams and the pool of finished hypotheses.
struct Selection {
  std::size_t sentences, beams, candidates;  // N, K, C

  const float* log_probabilities;  // [N, K, C]
  const std::int64_t* choices;     // [N, K, C], their tokens
  const float* forced;             // [N, K], log-probability of the forced token
  std::int64_t end_token;

  const std::int64_t *forced_tokens, *min_lengths, *max_lengths;  // [N]
  const float *alphas, *betas;                                    // [N], of the length penalty
  const bool* early_stopping;                                     // [N]

  const float* log_probs;                                   // [N, K]
  const std::int64_t* positions;                            // [N]
  const bool* done;                                         // [N]
  const float* finished_scores;                             // [N, K]
  const std::int64_t *finished_lengths, *finished_parents;  // [N, K]
  const bool* finished_truncated;                           // [N, K]

  std::int64_t *parents, *next_tokens;                          // [N, K]
  float* next_log_probs;                                        // [N, K]
  std::int64_t* next_positions;                                 // [N]
  bool* next_done;                                              // [N]
  float* next_finished_scores;                                  // [N, K]
  std::int64_t *next_finished_lengths, *next_finished_parents;  // [N, K]
  bool* next_finished_truncated;                                // [N, K]
};

void select_beams(const Selection&);

// Which slots are in each beam's past, ancestry [N, K, P].
struct Ancestry {
  std::size_t sentences, beams, slots;  // N, K, P
  const float* now;
  float* next;
};

// Each beam sees the slot of its own token, too; slots [N, K].
void extend_ancestry(const Ancestry&, const std::int64_t* slots);

// Of the beams that continue `parents` [N, K]; the slots [N, K] for their tokens, which are in no
// beam's past, and whether there are fewer of these [N].
void follow_ancestry(const Ancestry&, const std::int64_t* parents, std::int64_t* slots, bool* full);

}  // namespace translate_trt
