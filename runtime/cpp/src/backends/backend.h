// Interface of the backends, which run the encoder and the step graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Sentences to admit to a batch.
struct Sources {
  std::vector<Tokens> tokens;                 // source tokens with the end symbol; never empty
  std::vector<std::int64_t> max_lengths;      // of the translations
  std::vector<const SearchOptions*> options;  // by sentence, with the beam size of the batch

  std::size_t size() const { return tokens.size(); }
};

// Results of a step on the host.
struct StepResult {
  std::vector<std::int64_t> tokens, parents;  // [N, K]
  std::vector<float> log_probs;               // [N, K]
  std::vector<char> done;                     // [N]
  std::vector<float> attention;               // [N, K, S] by parent beam, if requested
  std::int64_t source_size = 0;               // S of attention
};

using StepResults = std::vector<StepResult>;

// Rounds B, R, D or U of the inputs of a step up, because a batch binds its arrays anew when they
// change.
inline std::size_t rounded_count(std::size_t count) { return (count + 7) / 8 * 8; }

// Tokens of each beam whose log-probabilities a step multiplies by a factor (rule 13 of
// docs/beam-search.md), for all rows of a batch.
struct MarkedTokens {
  std::int64_t count = 0;            // of a beam, B
  std::vector<std::int64_t> tokens;  // [N, K, B], or kUnmarked
  std::vector<float> factors;        // [N, K, B], infinity for tokens that are no candidates

  bool empty() const { return count == 0; }
};

// Noise of the candidates of each sentence by rank, and of further tokens, of which a step draws
// the next token (rule 14), for all rows of a batch.
struct SamplingNoise {
  std::int64_t count = 0;                 // of a sentence, R
  std::vector<float> values;              // [N, R], minus infinity for ranks that cannot be drawn
  std::int64_t tail_count = 0;            // of a sentence, D
  std::vector<std::int64_t> tail_tokens;  // [N, D], kUnmarked in unused entries at the end
  std::vector<float> tail_values;         // [N, D]

  bool empty() const { return count == 0; }
};

// Progress of the hypotheses of each beam with constraints (rule 15), for all rows of a batch.
struct ConstraintProgress {
  std::int64_t count = 0;                // different tokens of a sentence's constraints, U
  std::vector<std::int64_t> tokens;      // [N, U], kUnmarked in unused entries at the end
  std::vector<std::int64_t> with_each;   // [N, K, U], progress with each of these tokens
  std::vector<std::int64_t> with_other;  // [N, K], progress with any other token

  bool empty() const { return count == 0; }
};

// Inputs of a step that depend on the hypotheses so far.
struct StepInputs {
  std::vector<std::int64_t> forced = {};  // of each row, or kFree; empty if all rows are free
  MarkedTokens marked = {};
  SamplingNoise noise = {};
  ConstraintProgress progress = {};
  // Whether those of the next step depend on the results of this one, even if all of these inputs
  // are empty.
  bool depends_on_results = false;

  // Whether the step after this one needs other inputs, or inputs that are not known yet.
  bool are_for_one_step() const {
    return !forced.empty() || !marked.empty() || !noise.empty() || !progress.empty() ||
           depends_on_results;
  }
};

// Adds the rows of a step in which a log-probability is NaN. beams: K.
void add_nan_rows(const StepResult& step, std::int64_t beams, std::set<std::int64_t>& rows);

// Finished hypotheses of one sentence; truncated ones (rule 6) come last, and unused entries have a
// score of minus infinity.
struct Pool {
  std::vector<float> scores;
  std::vector<std::int64_t> lengths, parents;
  std::vector<char> truncated;
};

using Rows = std::vector<std::int64_t>;

// A batch of sentences, one per row, and its tensors. Used by one thread at a time.
class Batch {
 public:
  virtual ~Batch() = default;

  // Number of rows N, idle rows included.
  virtual std::int64_t rows() const = 0;

  // Maximum number of sentences if the longest has that many tokens; nullopt if unlimited.
  virtual std::optional<std::int64_t> capacity_for(std::int64_t longest) const {
    static_cast<void>(longest);
    return std::nullopt;
  }

  // Removes all rows but those in `keep` (ascending) and admits new sentences. Called between two
  // steps, after `drain`. Returns the new rows of the kept sentences, and the rows of the new ones.
  virtual std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) = 0;

  // Runs one step, or several if the backend polls `done` less often and the inputs are not for one
  // step. The results are valid until the next call.
  virtual const StepResults& step(const StepInputs& inputs) = 0;

  // Returns the results of steps already enqueued, if any. They are valid until the next call.
  virtual const StepResults& drain() {
    static const StepResults none;
    return none;
  }

  // Finished hypotheses of a sentence after the last step that was returned.
  virtual Pool pool(std::int64_t row) const = 0;

  // Makes the row of an unfinished sentence idle.
  virtual void retire(std::int64_t row) = 0;

  // Drops a live beam of a sentence that has others. Called between two steps, after `drain`.
  virtual void drop(std::int64_t row, std::int64_t beam) = 0;

  // CPU time in seconds that the calling threads have spent in both graphs.
  virtual double graph_seconds() const { return 0; }
};

// The loaded encoder and step graph of one target. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  // Creates a batch. options: defaults for sentences without options of their own; beam size and
  // attention apply to all sentences.
  virtual std::unique_ptr<Batch> batch(const SearchOptions& options,
                                       std::int64_t start_token) const = 0;

  // Source tokens of a batch if the caller sets none. On CPUs, batches of 512 tokens translate the
  // most text (docs/performance.md).
  virtual std::int64_t default_batch_tokens() const { return 512; }

  // Maximum number of different tokens of a sentence's constraints; nullopt if unlimited.
  virtual std::optional<std::int64_t> most_constraint_tokens() const { return std::nullopt; }

  // Maximum number of batches per worker that fit into the memory of the device, at most `batches`.
  // Throws a backend error if not every worker's first one does.
  virtual int fitting_batches(int workers, int batches) const {
    static_cast<void>(workers);
    return batches;
  }
};

}  // namespace translate_trt::runtime
