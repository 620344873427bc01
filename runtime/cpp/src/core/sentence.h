// A sentence to translate, and its history for the back-trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backends/backend.h"
#include "base/options.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

class Job;

// Identifies a caller; sentences of different callers take turns.
using Caller = std::uint64_t;

// A line, or a segment of a long line.
struct Sentence {
  std::size_t index;      // within its job
  Tokens tokens;          // without the end symbol; not empty
  Tokens prefix;          // forced first tokens, encoded like forced_tokens of the contract
  SearchOptions options;  // options of this sentence
  // Token sequences that the translation does not have (rule 13), the unknown symbol included.
  std::vector<Tokens> suppressed = {};
  // Phrases that the translation must have (rule 15), none of them empty.
  std::vector<Tokens> constraints = {};
  Caller caller = 0;         // set by the scheduler
  std::uint64_t number = 0;  // unique in a scheduler, which sets it
  Job* job = nullptr;        // owner; set by the job
  // Becomes true once the result is no longer needed, and the batch drops the sentence. May be
  // null.
  const std::atomic<bool>* dropped = nullptr;
  // Further sentences of its job whose searches are equal; set by the job, which has them, too.
  std::vector<const Sentence*> repeats = {};
  // Of an expansion (rule 12): options of the sentences that complete the tokens it finds.
  std::optional<SearchOptions> completion = {};
  // Of such a sentence: log-probability of the last token of its prefix.
  std::optional<double> alternative = {};

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  bool is_dropped() const { return dropped != nullptr && dropped->load(std::memory_order_relaxed); }
};

// Also keeps the sentence's job alive.
using SentencePtr = std::shared_ptr<const Sentence>;
using Sentences = std::vector<SentencePtr>;

// The T steps of a sentence's K beams, for the back-trace.
class History {
 public:
  // columns: attention columns to store; 0 for none.
  explicit History(std::int64_t beams, std::int64_t columns = 0);

  // Appends row `row` of a step.
  void append(const StepResult& step, std::int64_t row);

  // Tokens of a live beam after all steps.
  Tokens path(std::int64_t beam) const;

  // Whether a beam is live after all steps.
  bool is_live(std::int64_t beam) const;

  // Drops a beam after the last step.
  void drop(std::int64_t beam);

  std::int64_t size() const { return size_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t token(std::int64_t step, std::int64_t beam) const { return tokens_[at(step, beam)]; }
  std::int64_t parent(std::int64_t step, std::int64_t beam) const {
    return parents_[at(step, beam)];
  }
  float log_prob(std::int64_t step, std::int64_t beam) const { return log_probs_[at(step, beam)]; }
  const float* attention(std::int64_t step, std::int64_t beam) const {
    return attention_.data() + at(step, beam) * static_cast<std::size_t>(columns_);
  }

 private:
  std::size_t at(std::int64_t step, std::int64_t beam) const {
    return static_cast<std::size_t>(step * beams_ + beam);
  }

  std::int64_t beams_, columns_, size_ = 0;
  std::vector<std::int32_t> tokens_, parents_;  // [T, K]
  std::vector<float> log_probs_;                // [T, K]
  std::vector<float> attention_;                // [T, K, columns]
};

}  // namespace translate_trt::runtime
