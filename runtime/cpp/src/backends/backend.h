// What runs the two graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/options.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Sentences to start.
struct Sources {
  std::vector<Tokens> tokens;             // of each, the end symbol included; none is empty
  std::vector<std::int64_t> max_lengths;  // of each translation
  // Of each, with the beam size of the batch; empty, or null: those of the batch.
  std::vector<const SearchOptions*> options = {};

  std::size_t size() const { return tokens.size(); }
};

// What a step leaves with the host.
struct StepResult {
  std::vector<std::int64_t> tokens, parents;  // [N, K]
  std::vector<float> log_probs;               // [N, K]
  std::vector<char> done;                     // [N]
  std::vector<float> attention;  // [N, K, S] of the beams before selection, if asked for
  std::int64_t source_size = 0;  // S of attention
};

using StepResults = std::vector<StepResult>;

// Adds the rows of a step, of K beams each, that have a log-probability of NaN.
void add_nan_rows(const StepResult& step, std::int64_t beams, std::set<std::int64_t>& rows);

// The finished hypotheses of one sentence, those that were cut off last (rule 6); empty places
// score minus infinity.
struct Pool {
  std::vector<float> scores;
  std::vector<std::int64_t> lengths, parents;
  std::vector<char> truncated;
};

using Rows = std::vector<std::int64_t>;

// Sentences that are translated together, a row each, where the backend keeps its tensors. By one
// thread at a time.
class Batch {
 public:
  virtual ~Batch() = default;

  // N, idle rows included.
  virtual std::int64_t rows() const = 0;

  // How many sentences it takes if the longest has so many tokens; none: any number.
  virtual std::optional<std::int64_t> capacity_for(std::int64_t longest) const {
    static_cast<void>(longest);
    return std::nullopt;
  }

  // Between two steps, lets sentences go and others in, after `drain`. `keep`: rows to go on with,
  // ascending. Returns the rows that the kept sentences have now, and those of the new ones.
  virtual std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) = 0;

  // Takes a step, or as many as it takes before it looks at `done`. forced: the token that each row
  // must continue with, or kFree, and then it is one step; empty: all are free. The results are
  // valid until the next call.
  virtual const StepResults& step(const std::vector<std::int64_t>& forced) = 0;

  // The steps that were taken ahead, if any. As of `step`.
  virtual const StepResults& drain() {
    static const StepResults none;
    return none;
  }

  // What a sentence that is done has finished with.
  virtual Pool pool(std::int64_t row) const = 0;

  // Makes a row idle whose sentence has not finished.
  virtual void retire(std::int64_t row) = 0;

  // Seconds of the calling threads' processor time that both graphs have taken so far.
  virtual double graph_seconds() const { return 0; }
};

// The encoder and the step graph of one target, loaded; several threads may use it.
class Backend {
 public:
  virtual ~Backend() = default;

  // options: of sentences that come without any; beam size and attention are those of all.
  virtual std::unique_ptr<Batch> batch(const SearchOptions& options,
                                       std::int64_t start_token) const = 0;
};

}  // namespace translate_trt::runtime
