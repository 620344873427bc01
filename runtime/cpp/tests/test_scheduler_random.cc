// Random callers and workers: the scheduler must agree with the test's own record of every
// sentence.

#include <algorithm>
#include <atomic>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "core/scheduler.h"
#include "counting_backend.h"
#include "random.h"

namespace translate_trt::runtime {

namespace {

struct SchedulerCase {
  int workers, batches;
  std::size_t capacity;
};

// Simulates all workers of a service in one thread: in each round, each worker steps one of its
// batches.
class Simulation {
 public:
  explicit Simulation(const SchedulerCase& one)
      : case_(one),
        scheduler_(one.workers, one.batches, one.capacity),
        batches_(static_cast<std::size_t>(one.workers)) {}

  // Returns false once a check has failed.
  bool round(bool with_traffic) {
    const int failures_before = failures;
    ++round_;
    // More pending sentences would only make the test slower.
    if (with_traffic && random_.chance(0.6) && scheduler_.load().pending < 120) submit();
    if (random_.chance(0.05)) drop();
    for (int worker = 0; worker < case_.workers; ++worker) turn(worker);
    forget_dropped();
    check_load();
    check_waiting();
    return failures == failures_before;
  }

  bool is_empty() const { return known_.empty(); }

  void close() {
    scheduler_.submit({sentence(3)}, 1);
    scheduler_.close();
    CHECK(scheduler_.is_closed() && !scheduler_.next_group(0, true));
    CHECK(contains(thrown([&] { scheduler_.submit({sentence(3)}, 1); }), "is closed"));
  }

 private:
  static constexpr std::int64_t kBatchTokens = 200;
  static constexpr std::int64_t kMostSteps = 12;
  // Maximum number of rounds, times workers, until a caller's sentence of a group enters a batch.
  // The maximum of 41 seeds was 741, with one worker: groups get batches one after another,
  // sentences take up to 12 steps, and batches take turns.
  static constexpr std::int64_t kMostRounds = 1000;

  // The record of a sentence until it has left.
  struct Known {
    std::shared_ptr<Sentence> sentence;
    Group group;
    bool is_running = false;
    std::int64_t steps;  // steps until it is done
  };

  struct SimulatedBatch {
    Group group;
    double spent = 0;
    Sentences running = {};
    std::int64_t size = 0;  // running sentences after the last admission
    bool has_begun = false;
  };

  // Pending sentences of a caller in a group.
  struct Waiting {
    std::int64_t since = 0;               // round of the last admission, or of the first arrival
    std::map<Caller, int> taken_by = {};  // admissions of other callers since then
  };

  std::shared_ptr<Sentence> sentence(std::size_t length) {
    return std::make_shared<Sentence>(sentences_of({length}).front());
  }

  // ---- callers ----

  void submit() {
    const bool is_new = random_.chance(0.3);
    const Caller caller = is_new ? scheduler_.new_caller() : 1 + random_.below(6);
    if (is_new) CHECK(callers_.insert(caller).second && caller > 6);
    flags_.emplace_back(false);
    std::vector<std::shared_ptr<Sentence>> sentences;
    const std::size_t count = 1 + random_.below(random_.chance(0.1) ? 30 : 4);
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_long = random_.chance(0.1);
      sentences.push_back(sentence(1 + random_.below(20) + (is_long ? kLong : 0)));
      sentences.back()->options.beam_size = random_.chance(0.7) ? 1 : 4;
      sentences.back()->options.return_attention = random_.chance(0.1);
      sentences.back()->dropped = &flags_.back();
    }
    const bool is_full = case_.capacity > 0 && known_.size() >= case_.capacity;
    const std::string error = thrown([&] { scheduler_.submit(sentences, caller); });
    CHECK(contains(error, "TT_CAPACITY_EXCEEDED") == is_full && error.empty() != is_full);
    if (is_full) return;
    const auto is_theirs = [&](const auto& one) { return one.second.sentence->caller == caller; };
    const auto before = std::count_if(known_.begin(), known_.end(), is_theirs);
    const bool is_large = before + static_cast<std::int64_t>(count) > kLarge;
    for (const auto& one : sentences) {
      CHECK(one->caller == caller);
      const Group group = {one->options.beam_size, one->options.return_attention,
                           !is_large && one->length() > kLong, is_large};
      add({one, group, false, random_.between(1, kMostSteps)});
    }
  }

  void add(const Known& one) {
    CHECK(known_.emplace(one.sentence->number, one).second);
    waiting_.try_emplace({one.group, one.sentence->caller}, Waiting{round_});
  }

  // Cancels all sentences that were submitted together with a random unfinished one.
  void drop() {
    if (known_.empty()) return;
    const auto entry = std::next(known_.begin(), random_.between(0, size(known_) - 1));
    const auto* flag = entry->second.sentence->dropped;
    const auto is_it = [flag](const auto& one) { return &one == flag; };
    *std::find_if(flags_.begin(), flags_.end(), is_it) = true;
  }

  // Runs at the end of a round, so that batches also meet cancelled sentences.
  void forget_dropped() {
    scheduler_.forget_dropped(nullptr);
    for (auto entry = known_.begin(); entry != known_.end();) {
      const Known& one = entry->second;
      if (one.is_running || !one.sentence->is_dropped()) {
        ++entry;
        continue;
      }
      const auto key = std::pair(one.group, one.sentence->caller);
      entry = known_.erase(entry);
      // The removed sentence may have held the turn.
      restart_waiting(key);
    }
  }

  // ---- workers ----

  // Like `Service::serve`.
  void turn(int worker) {
    auto& batches = batches_[static_cast<std::size_t>(worker)];
    const auto spent_less = [](const SimulatedBatch& one, const SimulatedBatch& other) {
      return one.spent < other.spent;
    };
    if (const auto group = scheduler_.next_group(worker, false)) {
      CHECK(pending(*group) > 0);
      for (const SimulatedBatch& other : batches) CHECK(!(other.group == *group));
      const auto least = std::min_element(batches.begin(), batches.end(), spent_less);
      batches.push_back({*group, least == batches.end() ? 0 : least->spent});
      CHECK(size(batches) <= case_.batches);
    } else if (batches.empty()) {
      CHECK(scheduler_.load().pending == 0);
      return;
    }
    const auto batch =
        std::prev(std::min_element(batches.rbegin(), batches.rend(), spent_less).base());
    if (step(worker, *batch)) {
      const double share = scheduler_.share(worker, batch->group, batch->running);
      check_share(worker, *batch, share);
      batch->spent += 1 / std::max(share, 1.0);
    } else {
      scheduler_.end(worker, batch->group);
      batches.erase(batch);
    }
  }

  // Like `Service::step` and `Search::advance`. Returns false once the batch has drained or failed.
  bool step(int worker, SimulatedBatch& batch) {
    constexpr double kFails = 0.004;
    if (!std::exchange(batch.has_begun, true) && random_.chance(kFails)) {
      take(worker, batch, {1});
      fail(batch);
      return false;
    }
    const auto release = [&](const auto& is_over) {
      const auto left =
          std::stable_partition(batch.running.begin(), batch.running.end(),
                                [&](const SentencePtr& one) { return !is_over(one); });
      for (auto one = left; one != batch.running.end(); ++one) leave(batch.group, **one);
      batch.running.erase(left, batch.running.end());
    };
    release([](const SentencePtr& one) { return one->is_dropped(); });
    if (!admit(worker, batch)) return false;
    if (random_.chance(kFails)) {
      fail(batch);
      return false;
    }
    release([&](const SentencePtr& one) { return --known_.at(one->number).steps == 0; });
    return true;
  }

  bool admit(int worker, SimulatedBatch& batch) {
    Capacity capacity = {kBatchTokens, size(batch.running), 0, batch.size};
    for (const SentencePtr& one : batch.running) {
      capacity.longest = std::max(capacity.longest, one->length() + 1);
    }
    const std::int64_t idle = batch.size - capacity.running;
    const std::int64_t ready = scheduler_.ready(worker, batch.group, capacity);
    if (idle * 4 < batch.size &&
        static_cast<double>(ready) < kJoin * static_cast<double>(batch.size)) {
      return true;
    }
    const bool has_dropped = pending(batch.group, true) > 0;
    const std::int64_t taken = take(worker, batch, capacity);
    // Sentences of a later round may be longer, so fewer fit.
    if (!has_dropped) CHECK(taken <= ready && (taken > 0) == (ready > 0));
    batch.size = size(batch.running);
    return batch.size > 0;
  }

  // Returns their number.
  std::int64_t take(int worker, SimulatedBatch& batch, const Capacity& capacity) {
    const Sentences taken = scheduler_.take(worker, batch.group, capacity);
    for (const auto& [number, one] : known_) {
      if (!is_pending(one, batch.group) || !one.sentence->is_dropped()) continue;
      restart_waiting({one.group, one.sentence->caller});
    }
    std::int64_t longest = std::max(capacity.longest, kSmallestCost);
    for (const SentencePtr& one : taken) {
      const auto entry = known_.find(one->number);
      CHECK(entry != known_.end());
      if (entry == known_.end()) continue;
      CHECK(!entry->second.is_running && entry->second.group == batch.group);
      CHECK(!one->is_dropped());
      entry->second.is_running = true;
      longest = std::max(longest, one->length() + 1);
      batch.running.push_back(one);
      take_turns(batch.group, one->caller);
    }
    const auto groups = size(batches_[static_cast<std::size_t>(worker)]);
    const bool fits = size(batch.running) * longest <= capacity.batch_tokens / groups;
    CHECK(taken.empty() || fits || size(batch.running) == 1);
    return size(taken);
  }

  // A round takes one sentence of each caller, and a caller that arrives during a round is in the
  // next one, so no other caller is admitted three times before it.
  void take_turns(const Group& group, Caller caller) {
    for (auto& [key, waiting] : waiting_) {
      if (!(key.first == group) || key.second == caller) continue;
      CHECK(++waiting.taken_by[caller] <= 2);
    }
    restart_waiting({group, caller});
  }

  // Restarts the wait for the caller's next sentence of the group, if any. A cancelled sentence may
  // use the caller's turn until the end of the round.
  void restart_waiting(const std::pair<Group, Caller>& key) {
    waiting_.erase(key);
    bool waits = false;
    for (const auto& [number, one] : known_) {
      if (!is_pending(one, key.first) || one.sentence->caller != key.second) continue;
      if (one.sentence->is_dropped()) return;
      waits = true;
    }
    if (waits) waiting_[key] = {round_};
  }

  // Like `Service::failed`.
  void fail(SimulatedBatch& batch) {
    if (batch.group.alone > 0) {
      for (const SentencePtr& one : batch.running) leave(batch.group, *one);
    } else {
      scheduler_.retry(batch.group, batch.running);
      for (const SentencePtr& one : batch.running) {
        Known again = known_.at(one->number);
        again.group.alone = one->number;
        again.is_running = false;
        known_.erase(one->number);
        add(again);
      }
    }
    batch.running.clear();
  }

  void leave(const Group& group, const Sentence& sentence) {
    scheduler_.done(group, sentence);
    CHECK(known_.erase(sentence.number) == 1);
  }

  // ---- invariants ----

  template <class Container>
  static std::int64_t size(const Container& container) {
    return static_cast<std::int64_t>(container.size());
  }

  static bool is_pending(const Known& one, const Group& group) {
    return !one.is_running && one.group == group;
  }

  std::int64_t pending(const Group& group, bool only_dropped = false) const {
    return std::count_if(known_.begin(), known_.end(), [&](const auto& entry) {
      const Known& one = entry.second;
      return is_pending(one, group) && (!only_dropped || one.sentence->is_dropped());
    });
  }

  void check_load() const {
    const auto running = std::count_if(known_.begin(), known_.end(),
                                       [](const auto& one) { return one.second.is_running; });
    const Load load = scheduler_.load();
    CHECK(static_cast<std::int64_t>(load.running) == running);
    CHECK(load.pending + load.running == known_.size());
    std::int64_t in_batches = 0;
    for (const auto& batches : batches_) {
      for (const SimulatedBatch& batch : batches) in_batches += size(batch.running);
    }
    CHECK(in_batches == running);
  }

  void check_waiting() const {
    for (const auto& [key, waiting] : waiting_) {
      CHECK((round_ - waiting.since) * case_.workers <= kMostRounds);
    }
  }

  // The share of a caller is at least its part of the worker's own batches, over the groups of its
  // sentences. Those that wait add to it.
  void check_share(int worker, const SimulatedBatch& batch, double share) const {
    std::set<Caller> callers;
    for (const SentencePtr& one : batch.running) callers.insert(one->caller);
    double least = 0, most = 0;
    for (const Caller caller : callers) {
      int own = 0, all = 0;
      for (const SimulatedBatch& other : batches_[static_cast<std::size_t>(worker)]) {
        const auto is_theirs = [&](const SentencePtr& one) { return one->caller == caller; };
        own += std::any_of(other.running.begin(), other.running.end(), is_theirs);
        all += std::any_of(known_.begin(), known_.end(), [&](const auto& entry) {
          const Known& one = entry.second;
          return one.is_running && one.group == other.group && is_theirs(one.sentence);
        });
      }
      least += 1.0 / all, most += 1.0 / own;
    }
    CHECK(share > least - 1e-9 && (share < most + 1e-9 || pending(batch.group) > 0));
  }

  SchedulerCase case_;
  Random random_ = Random(20240608);
  std::list<std::atomic<bool>> flags_;  // must outlive the scheduler, whose sentences point to it
  Scheduler scheduler_;
  std::vector<std::vector<SimulatedBatch>> batches_;  // by worker
  std::map<std::uint64_t, Known> known_;              // by number
  std::map<std::pair<Group, Caller>, Waiting> waiting_;
  std::set<Caller> callers_;
  std::int64_t round_ = 0;
};

}  // namespace

void test_scheduler_random() {
  for (const SchedulerCase& one :
       {SchedulerCase{1, 1, 0}, SchedulerCase{1, 4, 0}, SchedulerCase{2, 4, 40},
        SchedulerCase{3, 2, 0}, SchedulerCase{4, 1, 100}}) {
    Simulation simulation(one);
    bool is_right = true;
    for (int round = 0; is_right && round < 800; ++round) is_right = simulation.round(true);
    for (int round = 0; is_right && round < 800; ++round) {
      if (simulation.is_empty()) break;
      is_right = simulation.round(false);
    }
    if (!is_right) {
      std::cerr << one.workers << " workers of " << one.batches << " batches\n";
      continue;
    }
    CHECK(simulation.is_empty());
    simulation.close();
  }
}

}  // namespace translate_trt::runtime
