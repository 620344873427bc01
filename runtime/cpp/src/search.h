// The loop over the step graph (runtime/search.py): run, keep (token, parent), look at `done`; then
// trace back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backend.h"
#include "results.h"

namespace translate_trt::runtime {

// What a sentence counts at least, in source tokens of a batch: a step's work hardly depends on it.
inline constexpr std::int64_t kSmallestCost = 8;

// One to translate.
struct Sentence {
  std::size_t index;  // by which its result is told from others
  Tokens tokens;      // without the end symbol; not empty
  Tokens prefix;      // forced first tokens, as forced_tokens in the contract has them
  // Its own, with the beam size of the search that takes it; null: those of the search.
  const SearchOptions* options = nullptr;

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
};

using Sentences = std::vector<const Sentence*>;

// Sentences that no batch has taken yet, longest first; several workers may take from it.
class Waiting {
 public:
  // sentences: in any order; they must outlive this. workers: that will take from it.
  Waiting(Sentences sentences, int workers);

  bool empty() const;

  // The longest that still fit into a batch of so many source tokens, beside those that are in it
  // already, of which the longest has `longest` tokens with the end symbol; the batch has `rows`.
  Sentences take(std::int64_t batch_tokens, std::int64_t beside = 0, std::int64_t longest = 0,
                 std::int64_t rows = 0);

  // Lets sentences wait again that were taken before.
  void give_back(const Sentences& sentences);

 private:
  void sort();

  Sentences sentences_;
  int workers_;
  mutable std::mutex mutex_;
};

// What the host keeps of the steps, for the back-trace.
struct Trace {
  std::int64_t first = 0;  // number of the step that the list begins with
  std::vector<StepResult> steps;

  std::int64_t end() const { return first + static_cast<std::int64_t>(steps.size()); }
  void forget(std::int64_t before);
};

// The steps of one sentence within a trace, of a batch with so many beams.
class SentenceTrace {
 public:
  SentenceTrace(const Trace& trace, std::int64_t row, std::int64_t begin, std::int64_t beams);

  std::int64_t size() const { return size_; }
  std::int64_t token(std::int64_t step, std::int64_t beam) const;
  std::int64_t parent(std::int64_t step, std::int64_t beam) const;
  float log_prob(std::int64_t step, std::int64_t beam) const;
  const float* attention(std::int64_t step, std::int64_t beam) const;

 private:
  const StepResult& step_at(std::int64_t step) const;
  std::size_t place(std::int64_t beam) const;

  const Trace& trace_;
  std::int64_t row_, begin_, beams_, size_;
};

// Rules 6 and 7: the n best of a sentence that is done; at least one, or a backend error.
// source_end: attention has a column for the source's end symbol.
std::vector<Hypothesis> hypotheses(const Sentence& sentence, const SentenceTrace& trace,
                                   const Pool& pool, const SearchOptions& options,
                                   bool source_end = true);

using Found = std::function<void(const Sentence&, std::vector<Hypothesis>)>;

// One worker: a batch, the sentences in its rows and what their steps left behind. By one thread,
// but for `cancel`.
class Search {
 public:
  Search(const Backend& backend, const SearchOptions& options, std::int64_t batch_tokens,
         std::int64_t start_token, std::int64_t end_token, bool source_end = true);

  // Translates until nobody waits and all are done, or `stop` is set.
  void run(Waiting& waiting, const Found& found, const std::atomic<bool>& stop);

  // Lets a call of the backend that is under way end early; `run` may throw an error of it.
  void cancel() { batch_->cancel(); }

  // What this worker has taken and not found, should it have failed.
  Sentences unfinished() const;

 private:
  struct Running {
    const Sentence* sentence;
    std::int64_t begin;  // number of its first step
  };

  void take_in(StepResult result, const Found& found);
  bool has_idle_places(const Waiting& waiting) const;
  bool fill(Waiting& waiting);
  const SearchOptions& options_of(const Sentence& sentence) const;
  Sources sources(const Sentences& sentences) const;
  std::vector<std::int64_t> forced() const;

  SearchOptions options_;
  std::int64_t batch_tokens_, end_token_;
  bool source_end_;
  std::unique_ptr<Batch> batch_;
  std::map<std::int64_t, Running> rows_;  // not done yet
  Sentences taken_;                       // on their way into rows
  std::int64_t size_ = 0;                 // rows that were running when places were last given
  Trace trace_;
};

}  // namespace translate_trt::runtime
