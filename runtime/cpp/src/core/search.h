// The decoding loop over the step graph, for one batch that sentences enter and leave between
// steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backends/backend.h"
#include "base/errors.h"
#include "bundle/manifest.h"
#include "core/constraints.h"
#include "core/loops.h"
#include "core/marks.h"
#include "core/results.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// Minimum cost of a sentence in tokens: shorter sources hardly make a step cheaper.
inline constexpr std::int64_t kSmallestCost = 8;

// Capacity of a batch.
struct Capacity {
  // Source tokens of a batch, padding and end symbols included, with at least kSmallestCost per
  // sentence. A longer sentence runs alone.
  std::int64_t batch_tokens;
  std::int64_t running = 0;      // sentences in the batch
  std::int64_t longest = 0;      // tokens of the longest running sentence with the end symbol
  std::int64_t rows = 0;         // rows of the batch
  const Batch* batch = nullptr;  // batch whose own capacity limits this one, if any

  // Number of further sentences that fit if the longest has `tokens` tokens; at least one for an
  // empty batch.
  std::int64_t more(std::int64_t tokens) const;
};

// The source of a batch's sentences.
class SentenceSource {
 public:
  virtual ~SentenceSource() = default;

  // Whether enough sentences are pending to interrupt the batch. size: number of running sentences
  // after the last admission.
  virtual bool should_join(const Capacity& capacity, std::int64_t size) = 0;

  // Returns sentences to admit; at least one if the batch is empty and any are pending.
  virtual Sentences take(const Capacity& capacity) = 0;

  // Reports that a cancelled sentence has left the batch without a result.
  virtual void release(const Sentence& sentence) = 0;
};

// Returns the n best hypotheses of a finished sentence (rule 7); none if all candidates of a step
// had log-probabilities that are not finite. source_end: attention has a column for the source's
// end symbol. guard: the sentence's loop guard, or null.
std::vector<Hypothesis> hypotheses(const Sentence& sentence, const History& history,
                                   const Pool& pool, bool source_end = true,
                                   const LoopGuard* guard = nullptr);

// The error of a sentence without hypotheses.
Error no_hypothesis(const Sentence& sentence);

// Steps that a batch ran, and the rows of all of them; no steps if no sentence is pending or
// running.
struct Progress {
  std::int64_t steps = 0, rows = 0;
};

using Found = std::function<void(const SentencePtr&, std::vector<Hypothesis>)>;
using Stepped = std::function<void(const Progress&)>;

// A batch and the sentences in its rows. Used by one thread at a time.
class Search {
 public:
  // options: beam size and attention of all sentences; other options are per sentence.
  Search(const Backend& backend, const SearchOptions& options, std::int64_t batch_tokens,
         const ModelDescription& model);

  // Admits sentences, runs one step or several (see Batch::step), and retires finished sentences.
  // stepped: called after the steps, before `found` for the sentences that they finish.
  Progress advance(SentenceSource& source, const Found& found, const Stepped& stepped = {});

  // See Batch::graph_seconds.
  double graph_seconds() const { return batch_->graph_seconds(); }

  // Admitted sentences that have not finished.
  Sentences unfinished() const;

 private:
  // A beam that left the search after `length` tokens because it repeated one phrase.
  struct Dropped {
    float score;
    std::int64_t length, beam;
  };

  struct Running {
    SentencePtr sentence;
    History history;
    std::optional<LoopGuard> guard;
    std::uint64_t noise_state = 0;  // of a sentence whose tokens are drawn
    std::int64_t checked = 0;       // steps at the last check for a loop
    std::vector<Dropped> dropped = {};
  };

  using RunningRows = std::map<std::int64_t, Running>;

  void drop(SentenceSource& source);
  void retire(const StepResults& steps, const Found& found);
  void retire(const StepResult& step, const Found& found);
  static bool is_loop_check_due(Running& running);
  bool has_loop(const Running& running) const;
  void drop_loops(RunningRows::iterator entry, const Found& found);
  RunningRows::iterator finish(RunningRows::iterator entry, const Found& found);
  bool should_admit(SentenceSource& source) const;
  bool admit(SentenceSource& source);
  Capacity capacity() const;
  Sources sources(const Sentences& sentences) const;
  StepInputs step_inputs() const;
  bool changes_tokens() const;
  std::vector<std::int64_t> forced() const;
  using Readings = std::map<std::int64_t, std::vector<Reading>>;  // of beams, by row
  std::vector<Tokens> live_tokens(const History& history) const;
  Readings readings() const;
  MarkedTokens marked(const Readings& readings) const;
  SamplingNoise noise() const;
  ConstraintProgress progress(Readings readings) const;

  std::int64_t beams_, batch_tokens_, end_token_, vocabulary_size_;
  bool attention_, source_end_;
  std::unique_ptr<Batch> batch_;
  RunningRows rows_;       // unfinished sentences by row
  Sentences admitting_;    // taken from the source, not in rows yet
  std::int64_t size_ = 0;  // running sentences after the last admission
};

}  // namespace translate_trt::runtime
