// The loop over the step graph: one batch, whose rows sentences enter and leave between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "backends/backend.h"
#include "core/errors.h"
#include "core/results.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// Tokens that a sentence counts as at least: a step's work hardly depends on shorter lengths.
inline constexpr std::int64_t kSmallestCost = 8;

// How many sentences a batch has capacity for.
struct Capacity {
  // Source tokens of a batch, padding and end symbols included and no sentence counted as less than
  // kSmallestCost; a longer sentence runs alone.
  std::int64_t batch_tokens;
  std::int64_t running = 0;      // sentences that are in the batch already
  std::int64_t longest = 0;      // tokens of the longest of them, the end symbol included
  std::int64_t rows = 0;         // that the batch has
  const Batch* batch = nullptr;  // whose own capacity is a limit, too

  // Sentences that fit besides the running ones if the longest of them has so many tokens; at least
  // one if none runs.
  std::int64_t more(std::int64_t tokens) const;
};

// Where a batch takes its sentences from.
class SentenceSource {
 public:
  virtual ~SentenceSource() = default;

  // True if enough sentences are pending that it is worth interrupting the batch. size: sentences
  // that ran when any joined last; some have left since.
  virtual bool should_join(const Capacity& capacity, std::int64_t size) = 0;

  // Sentences to admit; at least one if the batch is empty and any are pending.
  virtual Sentences take(const Capacity& capacity) = 0;

  // A sentence that was taken has left the batch without a result, since it was dropped.
  virtual void release(const Sentence& sentence) = 0;
};

// Rule 7: the n best of a sentence that is done; none if no candidate of a step had a finite
// log-probability. source_end: attention has a column for the source's end symbol.
std::vector<Hypothesis> hypotheses(const Sentence& sentence, const History& history,
                                   const Pool& pool, bool source_end = true);

// What to say of a sentence that has none.
Error no_hypothesis(const Sentence& sentence);

// Steps that a batch took, and the sentences of all of them together; no steps: nothing is pending
// and all have finished.
struct Progress {
  std::int64_t steps = 0, rows = 0;
};

using Found = std::function<void(const SentencePtr&, std::vector<Hypothesis>)>;

// A batch and the sentences in its rows. By one thread at a time.
class Search {
 public:
  // options: beam size and attention of all sentences.
  Search(const Backend& backend, const SearchOptions& options, std::int64_t batch_tokens,
         std::int64_t start_token, std::int64_t end_token, bool source_end = true);

  // Admits sentences, takes a step, or several where the batch does, and retires what they finish.
  Progress advance(SentenceSource& source, const Found& found);

  // See `Batch`.
  double graph_seconds() const { return batch_->graph_seconds(); }

  // Sentences that were admitted and have not finished.
  Sentences unfinished() const;

 private:
  struct Running {
    SentencePtr sentence;
    History history;
  };

  void drop(SentenceSource& source);
  void retire(const StepResults& steps, const Found& found);
  void retire(const StepResult& step, const Found& found);
  bool should_admit(SentenceSource& source) const;
  bool admit(SentenceSource& source);
  Capacity capacity() const;
  Sources sources(const Sentences& sentences) const;
  std::vector<std::int64_t> forced() const;

  std::int64_t beams_, batch_tokens_, end_token_;
  bool attention_, source_end_;
  std::unique_ptr<Batch> batch_;
  std::map<std::int64_t, Running> rows_;  // not done yet
  Sentences admitting_;                   // taken, and on their way into rows
  std::int64_t size_ = 0;                 // sentences that ran when rows were assigned last
};

}  // namespace translate_trt::runtime
