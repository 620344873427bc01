#include "core/scheduler.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/errors.h"

namespace translate_trt::runtime {

// ---- pending sentences of a group ----

void Scheduler::Pending::add(Caller caller, const Sentences& sentences) {
  callers[caller].insert(sentences.begin(), sentences.end());
  size += sentences.size();
}

std::int64_t Scheduler::Pending::next_length(std::uint64_t admitted) {
  if (round.empty()) {
    round_began = admitted;
    for (auto entry = callers.begin(); entry != callers.end();) {
      Queue& theirs = entry->second;
      round.insert(theirs.extract(std::prev(theirs.end())));
      of_round.insert(entry->first);
      entry = theirs.empty() ? callers.erase(entry) : std::next(entry);
    }
  }
  return (*round.rbegin())->length() + 1;
}

Sentences Scheduler::Pending::take(std::int64_t count) {
  Sentences taken;
  for (; !round.empty() && static_cast<std::int64_t>(taken.size()) < count; --size) {
    taken.push_back(std::move(round.extract(std::prev(round.end())).value()));
    of_round.erase(taken.back()->caller);
  }
  return taken;
}

void Scheduler::Pending::remove(const SentencePtr& sentence) {
  const auto entry = callers.find(sentence->caller);
  if (entry != callers.end() && entry->second.erase(sentence) > 0) {
    if (entry->second.empty()) callers.erase(entry);
  } else if (round.erase(sentence) > 0) {
    of_round.erase(sentence->caller);
  }
  --size;
}

// ---- submission ----

Scheduler::Scheduler(int workers, int batches, std::size_t capacity)
    : batches_(static_cast<std::size_t>(batches)),
      capacity_(capacity),
      serves_(static_cast<std::size_t>(workers)) {}

Caller Scheduler::new_caller() {
  const std::lock_guard lock(mutex_);
  return callers_++;
}

void Scheduler::submit(const std::vector<std::shared_ptr<Sentence>>& sentences, Caller caller) {
  const std::lock_guard lock(mutex_);
  if (!closed_ && capacity_ > 0 && size_ >= capacity_) {
    throw Error(TT_CAPACITY_EXCEEDED, "the translator has " + std::to_string(size_) +
                                          " sentences pending or running, and its capacity is " +
                                          std::to_string(capacity_) +
                                          ": submit again later, or load with more capacity.");
  }
  enqueue(sentences, caller);
}

void Scheduler::submit_following(const std::vector<std::shared_ptr<Sentence>>& sentences,
                                 Caller caller) {
  const std::lock_guard lock(mutex_);
  enqueue(sentences, caller);
}

void Scheduler::enqueue(const std::vector<std::shared_ptr<Sentence>>& sentences, Caller caller) {
  if (closed_) throw backend_error("the translator is closed, or has failed: load it again.");
  std::int64_t& theirs = sizes_[caller];
  theirs += static_cast<std::int64_t>(sentences.size());
  size_ += sentences.size();
  std::map<Group, Sentences> of_groups;
  for (const auto& sentence : sentences) {
    sentence->caller = caller;
    sentence->number = ++numbers_;
    Group group = {sentence->options.beam_size, sentence->options.return_attention};
    group.is_large = theirs > kLarge;
    group.is_long = !group.is_large && sentence->length() > kLong;
    of_groups[group].push_back(sentence);
  }
  for (const auto& [group, some] : of_groups) add(group, caller, some);
}

void Scheduler::forget_dropped(const Job* job) {
  const std::lock_guard lock(mutex_);
  auto entry = pending_.lower_bound({job, 0});
  while (entry != pending_.end() && entry->first.first == job) {
    const auto& [sentence, group] = entry->second;
    if (!sentence->is_dropped()) {
      ++entry;
      continue;
    }
    groups_.at(group).pending.remove(sentence);
    erase_if_idle(group);
    left(*sentence);
    entry = pending_.erase(entry);
  }
}

void Scheduler::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  arrival_.notify_all();
}

Load Scheduler::load() const {
  const std::lock_guard lock(mutex_);
  Load found;
  for (const auto& [group, state] : groups_) found.pending += state.pending.size;
  found.running = size_ - found.pending;
  return found;
}

bool Scheduler::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

// ---- workers ----

std::optional<Group> Scheduler::next_group(int worker, bool wait) {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (const std::optional<Group> group = to_begin(worker)) {
      serves_[static_cast<std::size_t>(worker)].push_back(*group);
      fresh_.insert({worker, *group});
      return group;
    }
    if (!wait) return std::nullopt;
    arrival_.wait(lock);
  }
  return std::nullopt;
}

void Scheduler::end(int worker, const Group& group) {
  const std::lock_guard lock(mutex_);
  auto& groups = serves_[static_cast<std::size_t>(worker)];
  groups.erase(std::find(groups.begin(), groups.end(), group));
  fresh_.erase({worker, group});
}

std::int64_t Scheduler::ready(int worker, const Group& group, const Capacity& capacity) {
  const std::lock_guard lock(mutex_);
  if (!is_pending(group) || yields(worker, group)) return 0;
  const Capacity own = part(worker, capacity);
  Pending& pending = groups_.at(group).pending;
  return std::min({static_cast<std::int64_t>(pending.size), fair(group, own),
                   own.more(pending.next_length(admitted_))});
}

Sentences Scheduler::take(int worker, const Group& group, const Capacity& capacity) {
  const std::lock_guard lock(mutex_);
  Sentences taken;
  Capacity own = part(worker, capacity);
  while (is_pending(group) && !yields(worker, group)) {
    State& state = groups_.at(group);
    const std::int64_t count =
        std::min(own.more(state.pending.next_length(admitted_)), fair(group, own));
    const Sentences some = state.pending.take(count);
    if (some.empty()) break;
    for (const SentencePtr& sentence : some) {
      pending_.erase({sentence->job, sentence->number});
      if (sentence->is_dropped()) {
        left(*sentence);
        continue;
      }
      ++admitted_;
      ++state.running[sentence->caller];
      own.longest = std::max(own.longest, sentence->length() + 1);
      ++own.running;
      taken.push_back(sentence);
    }
    erase_if_idle(group);
  }
  fresh_.erase({worker, group});
  return taken;
}

double Scheduler::share(int worker, const Group& group, const Sentences& sentences) const {
  const std::lock_guard lock(mutex_);
  std::set<Caller> here;
  for (const SentencePtr& sentence : sentences) here.insert(sentence->caller);
  double share = 0;
  for (const Caller caller : here) {
    int batches = 0;
    for (const Group& other : serves_[static_cast<std::size_t>(worker)]) {
      const auto state = groups_.find(other);
      batches += state != groups_.end() && state->second.running.count(caller) > 0;
    }
    share += 1.0 / std::max(batches, 1);
  }
  if (!is_pending(group)) return share;
  const State& state = groups_.at(group);
  const Pending& pending = state.pending;
  const auto both = std::count_if(state.running.begin(), state.running.end(), [&](const auto& one) {
    return pending.callers.count(one.first) > 0 || pending.of_round.count(one.first) > 0;
  });
  const double waiting = static_cast<double>(pending.caller_count()) - static_cast<double>(both);
  double workers = 0, all = 0;
  for (std::size_t other = 0; other < serves_.size(); ++other) {
    workers += serves(static_cast<int>(other), group);
  }
  share += std::max(waiting, 0.0) / workers;
  if (group.is_large) return share;
  for (const auto& [other, of_other] : groups_) {
    all += static_cast<double>(of_other.pending.caller_count());
  }
  // Under first come, first served, a round takes about as many admissions as callers wait.
  const double late = static_cast<double>(admitted_ - pending.round_began) / all;
  return share * (1 + late * late);
}

void Scheduler::done(const Group& group, const Sentence& sentence) {
  const std::lock_guard lock(mutex_);
  stop(group, sentence);
  left(sentence);
}

void Scheduler::retry(const Group& group, const Sentences& sentences) {
  const std::lock_guard lock(mutex_);
  for (const SentencePtr& sentence : sentences) {
    stop(group, *sentence);
    Group alone = group;
    alone.alone = sentence->number;
    add(alone, sentence->caller, {sentence});
  }
}

// ---- under the lock ----

void Scheduler::add(const Group& group, Caller caller, const Sentences& sentences) {
  State& state = groups_[group];
  if (state.pending.size == 0) {
    state.since = ++arrivals_;
    state.pending.round_began = admitted_;
  }
  state.pending.add(caller, sentences);
  for (const SentencePtr& one : sentences) pending_[{one->job, one->number}] = {one, group};
  if (sentences.size() == 1) {
    arrival_.notify_one();
  } else {
    arrival_.notify_all();
  }
}

void Scheduler::stop(const Group& group, const Sentence& sentence) {
  auto& running = groups_.at(group).running;
  const auto entry = running.find(sentence.caller);
  if (--entry->second == 0) running.erase(entry);
  erase_if_idle(group);
}

void Scheduler::left(const Sentence& sentence) {
  --size_;
  const auto entry = sizes_.find(sentence.caller);
  if (--entry->second == 0) sizes_.erase(entry);
}

void Scheduler::erase_if_idle(const Group& group) {
  const auto entry = groups_.find(group);
  if (entry->second.pending.size == 0 && entry->second.running.empty()) groups_.erase(entry);
}

std::optional<Group> Scheduler::to_begin(int worker) {
  const auto& own_groups = serves_[static_cast<std::size_t>(worker)];
  if (own_groups.size() >= batches_) return std::nullopt;
  const bool all_busy = std::none_of(serves_.begin(), serves_.end(),
                                     [](const auto& groups) { return groups.empty(); });
  const auto next = next_.find(worker);
  if (next != next_.end()) {
    const Group group = next->second;
    next_.erase(next);
    if (is_pending(group) && !serves(worker, group)) return group;
  }
  // A worker without a batch takes precedence.
  if (!own_groups.empty() && !all_busy) return std::nullopt;
  if (const std::optional<Group> group = unserved()) return group;
  // If every group has a worker, the group with the most pending sentences gets another one: a
  // worker without a batch or, if all are busy, a worker whose own groups have less than half as
  // many callers, because a worker's batches share its tokens.
  const Group* most = nullptr;
  for (const auto& [group, state] : groups_) {
    if (state.pending.size == 0 || serves(worker, group)) continue;
    if (most == nullptr || state.pending.size > groups_.at(*most).pending.size) most = &group;
  }
  if (most == nullptr) return std::nullopt;
  if (own_groups.empty()) return *most;
  std::size_t own_callers = 0;
  for (const Group& group : own_groups) {
    const auto entry = groups_.find(group);
    if (entry == groups_.end()) continue;
    own_callers += std::max(entry->second.pending.caller_count(), entry->second.running.size());
  }
  if (groups_.at(*most).pending.caller_count() <= 2 * own_callers) return std::nullopt;
  return *most;
}

// The group without a worker that has been pending longest.
std::optional<Group> Scheduler::unserved() const {
  const Group* first = nullptr;
  for (const auto& [group, state] : groups_) {
    if (state.pending.size == 0) continue;
    bool served = false;
    for (std::size_t worker = 0; worker < serves_.size(); ++worker) {
      const auto next = next_.find(static_cast<int>(worker));
      served = served || serves(static_cast<int>(worker), group) ||
               (next != next_.end() && next->second == group);
    }
    if (!served && (first == nullptr || state.since < groups_.at(*first).since)) first = &group;
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

// Whether the batch, if it is the worker's oldest, should drain so that the worker can serve
// another group.
bool Scheduler::yields(int worker, const Group& group) {
  const auto& own_groups = serves_[static_cast<std::size_t>(worker)];
  if (fresh_.count({worker, group}) > 0 || !(group == own_groups.front())) return false;
  const auto next = next_.find(worker);
  if (next != next_.end()) {
    if (is_pending(next->second)) return true;
    next_.erase(next);
  }
  const bool full = std::all_of(serves_.begin(), serves_.end(),
                                [this](const auto& groups) { return groups.size() >= batches_; });
  const std::optional<Group> found = full ? unserved() : std::nullopt;
  if (found) next_[worker] = *found;
  return found.has_value();
}

bool Scheduler::is_pending(const Group& group) const {
  const auto entry = groups_.find(group);
  return entry != groups_.end() && entry->second.pending.size > 0;
}

bool Scheduler::serves(int worker, const Group& group) const {
  const auto& groups = serves_[static_cast<std::size_t>(worker)];
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

// Capacity of one of the worker's batches, which share its tokens evenly.
Capacity Scheduler::part(int worker, Capacity capacity) const {
  capacity.batch_tokens /=
      static_cast<std::int64_t>(serves_[static_cast<std::size_t>(worker)].size());
  return capacity;
}

// Number of sentences that a batch may admit so that sentences are spread evenly over the workers.
std::int64_t Scheduler::fair(const Group& group, const Capacity& capacity) const {
  std::int64_t others = 0;  // workers with batches, but none of this group
  for (std::size_t worker = 0; worker < serves_.size(); ++worker) {
    others += !serves_[worker].empty() && !serves(static_cast<int>(worker), group);
  }
  const State& state = groups_.at(group);
  auto all = static_cast<std::int64_t>(state.pending.size);
  for (const auto& [caller, count] : state.running) all += count;
  const std::int64_t workers =
      std::max<std::int64_t>(static_cast<std::int64_t>(serves_.size()) - others, 1);
  const std::int64_t share = (all + workers - 1) / workers;
  return std::max<std::int64_t>(share - capacity.running, capacity.running > 0 ? 0 : 1);
}

}  // namespace translate_trt::runtime
