// The scheduler: which pending sentences may share a batch, and which one is next.
//
// Sentences may share a batch if their beam size and attention option are equal, their lengths are
// similar, and their callers have similar numbers of sentences; they form a group. A worker serves
// several groups at the same time, with one batch per group. The batches share the worker's tokens
// and take turns step by step, so no group waits for the batch of another to drain. The share of a
// group in the time grows with the callers that wait for it, and with how long these have waited. A
// worker with the maximum number of groups drains its oldest batch once a group is pending that no
// worker serves.
//
// Within a group, callers take turns. A round consists of one sentence of every caller with pending
// sentences, longest first. A caller with thousands of sentences therefore does not delay others,
// and sentences that are pending when a round starts are admitted before later ones.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/search.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// Sentences with more tokens do not share a batch with shorter ones. The longest sentence
// determines the number of rows for batch_tokens, so shorter sentences would wait for it. Large
// callers are exempt: their sentences are admitted longest first, so those in a batch have similar
// lengths.
inline constexpr std::int64_t kLong = 64;

// Callers with more sentences do not share batches with smaller ones, whose sentences would wait
// for a row and then for the longer steps of a large batch.
inline constexpr std::int64_t kLarge = 8;

// Pending sentences join a running batch once they amount to this share of it.
inline constexpr double kJoin = 0.1;

// Sentences that may share a batch.
struct Group {
  int beam_size = 0;
  bool attention = false;
  bool is_long = false;     // more than kLong tokens
  bool is_large = false;    // of callers with more than kLarge sentences
  std::uint64_t alone = 0;  // number of a sentence that is retried alone; 0 for others

  bool operator<(const Group& other) const { return key() < other.key(); }
  bool operator==(const Group& other) const { return key() == other.key(); }

 private:
  std::tuple<int, bool, bool, bool, std::uint64_t> key() const {
    return {beam_size, attention, is_long, is_large, alone};
  }
};

// Numbers of sentences in a scheduler.
struct Load {
  std::size_t pending = 0;  // not yet in a batch
  std::size_t running = 0;  // in batches
};

// The queue that the workers of a service share. Thread-safe.
class Scheduler {
 public:
  // workers: number of workers, which are numbered from 0. batches: maximum number of batches per
  // worker. capacity: number of pending and running sentences at which `submit` refuses more; 0 for
  // no limit.
  Scheduler(int workers, int batches, std::size_t capacity);

  // ---- submission ----

  // Returns a new, unique caller.
  Caller new_caller();

  // Enqueues sentences and sets their caller and numbers. Throws TT_CAPACITY_EXCEEDED at capacity,
  // and a backend error if the scheduler is closed.
  void submit(const std::vector<std::shared_ptr<Sentence>>& sentences, Caller caller);

  // Enqueues further sentences of a job that was accepted, also at capacity.
  void submit_following(const std::vector<std::shared_ptr<Sentence>>& sentences, Caller caller);

  // Removes the dropped sentences of a job from the queue.
  void forget_dropped(const Job* job);

  // Refuses further sentences; workers stop after their current step.
  void close();

  Load load() const;

  // ---- workers ----

  // Returns a group for which the worker should start a batch, or nullopt. wait: wait until there
  // is a group or the scheduler is closed.
  std::optional<Group> next_group(int worker, bool wait);

  // Reports that the worker's batch of a group has drained or failed.
  void end(int worker, const Group& group);

  // Number of sentences that `take` would return now, dropped ones included.
  std::int64_t ready(int worker, const Group& group, const Capacity& capacity);

  // Removes sentences from the queue for the worker's batch of a group.
  Sentences take(int worker, const Group& group, const Capacity& capacity);

  // Share of the worker's time for its batch of a group, which has these running sentences: the
  // number of callers that are in the batch, where a caller in n batches counts 1 / n, or that only
  // wait for it; more, the longer these have waited.
  double share(int worker, const Group& group, const Sentences& sentences) const;

  // Reports that a running sentence has left its batch for good.
  void done(const Group& group, const Sentence& sentence);

  // Enqueues the sentences of a failed batch again, each for a batch of its own.
  void retry(const Group& group, const Sentences& sentences);

  bool is_closed() const;

 private:
  // Whether a sentence is taken later than another one: it is shorter, or of the same length and
  // arrived later.
  struct IsLater {
    bool operator()(const SentencePtr& one, const SentencePtr& other) const {
      return std::pair(one->length(), other->number) < std::pair(other->length(), one->number);
    }
  };
  using Queue = std::set<SentencePtr, IsLater>;  // the last one is next

  // Pending sentences of a group.
  struct Pending {
    std::map<Caller, Queue> callers;  // without those of the round
    Queue round;                      // at most one per caller
    std::set<Caller> of_round;        // the callers of its sentences
    std::size_t size = 0;
    // Number of admissions to all batches before the round, or before the first arrival.
    std::uint64_t round_began = 0;

    void add(Caller caller, const Sentences& sentences);
    // Tokens of the next sentence, the end symbol included. admitted: number of admissions so far.
    std::int64_t next_length(std::uint64_t admitted);
    Sentences take(std::int64_t count);
    void remove(const SentencePtr& sentence);
    // Number of callers, about: those that came after the round began are not added to its own.
    std::size_t caller_count() const { return std::max(callers.size(), round.size()); }
  };

  struct State {
    Pending pending;
    std::map<Caller, std::int64_t> running;  // sentences in batches, by caller
    std::uint64_t since = 0;                 // arrival number of its first pending sentence
  };

  // Called under the lock.
  void enqueue(const std::vector<std::shared_ptr<Sentence>>& sentences, Caller caller);
  void add(const Group& group, Caller caller, const Sentences& sentences);
  void stop(const Group& group, const Sentence& sentence);
  void left(const Sentence& sentence);
  void erase_if_idle(const Group& group);
  std::optional<Group> to_begin(int worker);
  std::optional<Group> unserved() const;
  bool yields(int worker, const Group& group);
  bool is_pending(const Group& group) const;
  bool serves(int worker, const Group& group) const;
  Capacity part(int worker, Capacity capacity) const;
  std::int64_t fair(const Group& group, const Capacity& capacity) const;

  const std::size_t batches_, capacity_;
  mutable std::mutex mutex_;
  std::condition_variable arrival_;
  std::map<Group, State> groups_;
  // Pending sentences and their groups, by job and number.
  std::map<std::pair<const Job*, std::uint64_t>, std::pair<SentencePtr, Group>> pending_;
  std::vector<std::vector<Group>> serves_;  // by worker, oldest first
  std::map<int, Group> next_;  // by worker, the group to serve once a batch has drained
  // Workers and groups whose batches have not taken a sentence yet.
  std::set<std::pair<int, Group>> fresh_;
  std::map<Caller, std::int64_t> sizes_;  // pending and running sentences by caller
  std::size_t size_ = 0;
  std::uint64_t numbers_ = 0, arrivals_ = 0, admitted_ = 0;
  Caller callers_ = Caller{1} << 63;  // numbers chosen by users are smaller
  bool closed_ = false;
};

}  // namespace translate_trt::runtime
