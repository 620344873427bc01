// Portable kernels of a decoding step: the embedding, the beam search (docs/beam-search.md;
// comments refer to its rules), and the assignment of cache slots. Like those of kernels.h, they
// work on plain arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace translate_trt {

// Embedding lookup: table rows of the beams' or the source tokens times a factor, plus the position
// embedding.
struct Embedding {
  std::size_t sentences, beams, columns;  // N, K or S, d_model
  const std::int64_t* tokens;             // [N, K]
  const std::int64_t* positions;          // [N], of all beams; or null: 0, ..., S - 1
  const float* position_table;            // [..., columns]
  float factor;
};

void embed(const Embedding&, const float* table, float* y);
// Embedding lookup in an 8-bit table with one scale per row.
void embed8(const Embedding&, const std::int8_t* table, const float* scales, float* y);

// Value of forced_tokens that allows any token. A value t forces and scores token t; -2 - t forces
// token t without scoring it.
constexpr std::int64_t kFree = -1;

// The token that a value of forced_tokens forces; 0 for kFree.
inline std::int64_t forced_column(std::int64_t value) {
  return std::max<std::int64_t>(std::max(value, -2 - value), 0);
}

// Inputs and outputs of a search step: from candidates to live beams and the pool of finished
// hypotheses.
struct Selection {
  std::size_t sentences, beams, candidates;  // N, K, C

  const float* log_probabilities;  // [N, K, C]
  const std::int64_t* choices;     // [N, K, C], tokens of the candidates
  const float* looked_up;          // [N, K, 1 + U + D], log-probabilities of tokens to look up:
                                   // the forced token, those of constraints, and those of the tail
  std::int64_t end_token;

  const std::int64_t *forced_tokens, *min_lengths, *max_lengths;  // [N]
  const float *alphas, *betas;                                    // [N], of the length penalty
  const std::int64_t* num_hypotheses;                             // [N]
  const bool* early_stopping;                                     // [N]

  const float* log_probs;                                   // [N, K]
  const std::int64_t* positions;                            // [N]
  const bool* done;                                         // [N]
  const float* finished_scores;                             // [N, K]
  const std::int64_t *finished_lengths, *finished_parents;  // [N, K]
  const bool* finished_truncated;                           // [N, K]

  std::size_t marks;                  // B
  const std::int64_t* marked_tokens;  // [N, K, B]
  const float* marked_factors;        // [N, K, B], infinity for tokens that are no candidates

  std::size_t ranks;                       // R
  const float* noise;                      // [N, R], minus infinity for ranks that cannot be drawn
  const float *temperatures, *top_shares;  // [N], of samples

  std::size_t tails;                // D
  const std::int64_t* tail_tokens;  // [N, D], may be drawn, too; negative in unused entries
  const float* tail_noise;          // [N, D]

  std::size_t constraints;                  // U
  const std::int64_t* constraint_tokens;    // [N, U], negative in unused entries at the end
  const std::int64_t* constraint_progress;  // [N, K, U], of a beam continued by each of them
  const std::int64_t* other_progress;       // [N, K], of a beam continued by another token

  std::int64_t *parents, *next_tokens;                          // [N, K]
  float* next_log_probs;                                        // [N, K]
  std::int64_t* next_positions;                                 // [N]
  bool* next_done;                                              // [N]
  float* next_finished_scores;                                  // [N, K]
  std::int64_t *next_finished_lengths, *next_finished_parents;  // [N, K]
  bool* next_finished_truncated;                                // [N, K]
};

void select_beams(const Selection&);

// Ancestry masks [N, K, P]: 0 for the slots that a beam attends to.
struct Ancestry {
  std::size_t sentences, beams, slots;  // N, K, P
  const float* now;
  float* next;
};

// Makes the slot of each beam's own token visible. slots: [N, K].
void extend_ancestry(const Ancestry&, const std::int64_t* slots);

// Copies the ancestry of `parents` [N, K] and selects free slots [N, K] for the next tokens. full
// [N]: whether a sentence has fewer free slots than beams.
void follow_ancestry(const Ancestry&, const std::int64_t* parents, std::int64_t* slots, bool* full);

}  // namespace translate_trt
