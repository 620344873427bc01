// Pending sentences: which may share a batch, and which comes next.
//
// Sentences of equal shared options, like length and callers of like size share batches: a group. A
// worker serves several groups at once, a batch each, which share its tokens and take turns step by
// step; so no group waits until the batch of another one has run out. A worker with as many groups
// as it may have lets its oldest batch run out once a group is pending that no worker serves.
//
// Within a group, callers take turns: each round takes one sentence of every caller that has any
// pending, the longest first. So a caller with thousands of sentences does not delay the others,
// and sentences that are pending when a round is formed are taken before later ones.
#pragma once

#include <condition_variable>
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

// Sentences of more tokens share no batch with shorter ones, which would wait for their end: all
// sentences of a batch together have batch_tokens of the longest one's length. Large callers are
// exempt: their sentences are taken longest first, so that those of a batch are of like length.
inline constexpr std::int64_t kLong = 64;

// Sentences of callers that have more of them share no batch with those of small callers, which
// would wait for a row of it, and then for each of its longer steps.
inline constexpr std::int64_t kLarge = 8;

// Waiting sentences join a batch once there is capacity for them that is this share of it.
inline constexpr double kJoin = 0.1;

// Sentences that may share a batch.
struct Group {
  int beam_size = 0;
  bool attention = false;
  bool is_long = false;     // they have more than kLong tokens
  bool is_large = false;    // of callers with more than kLarge sentences
  std::uint64_t alone = 0;  // number of a sentence that a batch failed with, which shares with none

  bool operator<(const Group& other) const { return key() < other.key(); }
  bool operator==(const Group& other) const { return key() == other.key(); }

 private:
  std::tuple<int, bool, bool, bool, std::uint64_t> key() const {
    return {beam_size, attention, is_long, is_large, alone};
  }
};

// Sentences in a scheduler.
struct Load {
  std::size_t pending = 0;  // for a batch
  std::size_t running = 0;  // in batches
};

// What the workers of a service share. Any thread.
class Scheduler {
 public:
  // workers: how many there are, numbered from 0. batches: that a worker may run at once. capacity:
  // sentences, pending or running, from which on `submit` refuses; 0: any number.
  Scheduler(int workers, int batches, std::size_t capacity);

  // ---- for those who submit ----

  // A new caller, different from all others.
  Caller new_caller();

  // Makes sentences pending; sets their caller and numbers. TT_CAPACITY_EXCEEDED if there are too
  // many; a backend error if the scheduler was closed.
  void submit(const std::vector<std::shared_ptr<Sentence>>& sentences, Caller caller);

  // Removes pending sentences that were dropped.
  void forget_dropped();

  // Takes no more; workers end at their next step.
  void close();

  Load load() const;

  // ---- for workers ----

  // A group that the worker is to begin a batch of. wait: until there is one, or the scheduler is
  // closed. Nothing: there is none.
  std::optional<Group> next_group(int worker, bool wait);

  // The worker's batch of that group has run out, or has failed.
  void end(int worker, const Group& group);

  // How many `take` would give now, unless they are dropped.
  std::int64_t ready(int worker, const Group& group, const Capacity& capacity);

  // Sentences for the worker's batch of that group.
  Sentences take(int worker, const Group& group, const Capacity& capacity);

  // Callers in a batch of the worker; a caller in n of its batches counts 1 / n.
  double share(int worker, const Sentences& sentences) const;

  // A sentence of a batch has left the service.
  void done(const Group& group, const Sentence& sentence);

  // Makes sentences of a failed batch pending again, each for a batch of its own.
  void retry(const Group& group, const Sentences& sentences);

  bool is_closed() const;

 private:
  // The pending sentences of a group.
  struct Pending {
    std::map<Caller, Sentences> callers;  // of each, shortest first, but for those of the round
    Sentences round;                      // at most one of each caller, shortest first
    std::size_t size = 0;

    void add(Caller caller, const Sentences& sentences);
    std::int64_t next_length();  // of the next one, the end symbol included
    Sentences take(std::int64_t count);
    std::vector<SentencePtr> remove_dropped();
    std::set<Caller> all_callers() const;
  };

  struct State {
    Pending pending;
    std::map<Caller, std::int64_t> running;  // sentences in batches, by caller
    std::uint64_t since = 0;                 // when its sentences became pending, as a count
  };

  // All with the lock held.
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
  std::vector<std::vector<Group>> serves_;  // by worker, oldest first
  std::map<int, Group> next_;               // by worker, what it serves once a batch has run out
  // Workers and groups of whose batch no sentence has been taken yet.
  std::set<std::pair<int, Group>> fresh_;
  std::map<Caller, std::int64_t> sizes_;  // by caller, its sentences in the scheduler
  std::size_t size_ = 0;
  std::uint64_t numbers_ = 0, arrivals_ = 0;
  Caller callers_ = Caller{1} << 63;  // callers that users number are below
  bool closed_ = false;
};

}  // namespace translate_trt::runtime
