// Scheduling: which sentences share a batch, and in which order.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "core/job.h"
#include "core/scheduler.h"
#include "counting_backend.h"
#include "random.h"

namespace translate_trt::runtime {

namespace {

std::vector<std::shared_ptr<Sentence>> pointers(std::vector<Sentence> sentences) {
  std::vector<std::shared_ptr<Sentence>> found;
  for (Sentence& one : sentences) found.push_back(std::make_shared<Sentence>(std::move(one)));
  return found;
}

std::vector<std::int64_t> lengths(const Sentences& sentences) {
  std::vector<std::int64_t> found;
  for (const SentencePtr& one : sentences) found.push_back(one->length());
  return found;
}

using Lengths = std::vector<std::int64_t>;

void test_the_longest_first_but_not_before_those_that_came_earlier() {
  Scheduler scheduler(1, 1, 0);
  scheduler.submit(pointers(sentences_of({3, 5})), 1);
  scheduler.submit(pointers(sentences_of({4})), 2);
  const Group group = *scheduler.next_group(0, false);
  CHECK(lengths(scheduler.take(0, group, {1})) == Lengths({5}));  // starts a round: 5 and 4
  scheduler.submit(pointers(sentences_of({9})), 3);
  CHECK(lengths(scheduler.take(0, group, {100, 1, 6, 1})) == Lengths({4, 9, 3}));
}

void test_of_equal_sentences_the_first_is_first() {
  Scheduler scheduler(1, 1, 0);
  for (int i = 0; i < 3; ++i) scheduler.submit(pointers(sentences_of({4, 4})), 1);
  const Group group = *scheduler.next_group(0, false);
  std::uint64_t number = 0;
  for (const SentencePtr& one : scheduler.take(0, group, {100})) CHECK(one->number == ++number);
  CHECK(number == 6);
}

// Takes minutes if the time grows with the square of the number of sentences.
void test_many_sentences(bool of_one_caller) {
  constexpr std::size_t kMany = 50'000;
  Scheduler scheduler(1, 1, 0);
  const std::atomic<bool> dropped = true, wanted = false;
  std::deque<Job> jobs;
  for (std::size_t i = 0; i < kMany; ++i) {
    auto one = sentences_of({3 + i % 20});
    one[0].job = &jobs.emplace_back(nullptr);
    one[0].dropped = i % 2 == 0 ? &dropped : &wanted;
    scheduler.submit(pointers(one), of_one_caller ? 1 : i + 1);
  }
  const Group group = *scheduler.next_group(0, false);
  CHECK(scheduler.ready(0, group, {1}) == 1);  // begins a round
  for (const Job& job : jobs) scheduler.forget_dropped(&job);
  CHECK(scheduler.load().pending == kMany / 2);
}

void test_workers_of_a_group_get_like_numbers() {
  Scheduler scheduler(2, 1, 0);
  scheduler.submit(pointers(sentences_of({3, 3, 3, 3, 3})), 1);
  const Group group = *scheduler.next_group(0, false);
  CHECK(scheduler.take(0, group, {1000}).size() == 3);
  CHECK(*scheduler.next_group(1, false) == group);
  CHECK(scheduler.take(1, group, {1000}).size() == 2);
  CHECK(scheduler.load().pending == 0 && scheduler.load().running == 5);
}

void test_long_and_large_are_groups_of_their_own() {
  Scheduler scheduler(1, 4, 0);
  scheduler.submit(pointers(sentences_of({3, 70})), 1);
  scheduler.submit(pointers(sentences_of({3, 3, 3, 3, 70, 3, 3, 3, 3})), 2);
  std::vector<Group> groups;
  while (const auto group = scheduler.next_group(0, false)) groups.push_back(*group);
  CHECK(groups.size() == 3);
  CHECK(!groups[0].is_long && !groups[0].is_large);
  CHECK(groups[1].is_long && !groups[1].is_large);
  CHECK(!groups[2].is_long && groups[2].is_large);
  // Three batches share the worker's tokens, and the longest sentence of the large caller is first.
  CHECK(lengths(scheduler.take(0, groups[2], {3 * 71})) == Lengths({70}));
  CHECK(lengths(scheduler.take(0, groups[0], {3 * 71})) == Lengths({3}));
}

void test_a_group_that_no_worker_serves_ends_the_oldest_batch() {
  Scheduler scheduler(1, 1, 0);
  auto sentences = sentences_of({3, 3, 3});
  scheduler.submit(pointers(sentences), 1);
  const Group first = *scheduler.next_group(0, false);
  CHECK(scheduler.take(0, first, {8}).size() == 1);
  for (Sentence& one : sentences) one.options.beam_size = 2;
  scheduler.submit(pointers(sentences), 2);
  CHECK(scheduler.ready(0, first, {100, 1, 4, 1}) == 0);  // it must drain
  CHECK(scheduler.take(0, first, {100, 0, 0, 1}).empty());
  scheduler.end(0, first);
  CHECK(scheduler.next_group(0, false)->beam_size == 2);
}

void test_a_batch_goes_on_if_the_group_that_it_was_to_end_for_was_dropped() {
  Scheduler scheduler(1, 1, 0);
  scheduler.submit(pointers(sentences_of({3, 3, 3})), 1);
  const Group first = *scheduler.next_group(0, false);
  CHECK(scheduler.take(0, first, {8}).size() == 1);
  std::atomic<bool> dropped = false;
  auto others = sentences_of({3});
  others[0].options.beam_size = 2, others[0].dropped = &dropped;
  scheduler.submit(pointers(others), 2);
  CHECK(scheduler.ready(0, first, {100, 1, 4, 1}) == 0);
  dropped = true;
  scheduler.forget_dropped(nullptr);
  CHECK(scheduler.ready(0, first, {100, 1, 4, 1}) == 2);
}

void test_a_worker_helps_where_more_callers_wait_than_it_serves() {
  Scheduler scheduler(2, 2, 0);
  auto others = sentences_of({3});
  others[0].options.beam_size = 2;
  scheduler.submit(pointers(others), 1);
  const Group few = *scheduler.next_group(0, false);
  scheduler.take(0, few, {100});
  for (Caller caller = 2; caller < 6; ++caller) {
    scheduler.submit(pointers(sentences_of({3})), caller);
  }
  const Group many = *scheduler.next_group(1, false);
  CHECK(*scheduler.next_group(0, false) == many);
  CHECK(scheduler.share(0, many, scheduler.take(0, many, {100})) > 0.9);
}

// A closed loop of callers with one sentence each, which take steps instead of time: each caller
// submits its next sentence once it has its result.
class ClosedLoop {
 public:
  explicit ClosedLoop(int workers)
      : scheduler_(workers, 4, 0), workers_(static_cast<std::size_t>(workers)) {
    for (int i = 0; i < 200; ++i) submit();
  }

  // Returns the waits of short and of long sentences, in order.
  std::pair<Lengths, Lengths> run() {
    while (waits_.first.size() + waits_.second.size() < 2000) {
      ++now_;
      for (std::size_t worker = 0; worker < workers_.size(); ++worker) turn(worker);
    }
    std::sort(waits_.first.begin(), waits_.first.end());
    std::sort(waits_.second.begin(), waits_.second.end());
    return waits_;
  }

 private:
  struct LoopBatch {
    Group group;
    double spent = 0;
    Sentences running = {};
    std::vector<std::int64_t> left = {};  // steps of each sentence
  };

  void submit() {
    const bool is_long = random_.chance(0.4);
    const auto length = static_cast<std::size_t>(is_long ? random_.between(kLong + 1, 2 * kLong)
                                                         : random_.between(10, kLong));
    const auto sentences = pointers(sentences_of({length}));
    scheduler_.submit(sentences, scheduler_.new_caller());
    since_[sentences.front()->number] = now_;
  }

  // Like `Service::serve`.
  void turn(std::size_t index) {
    const int worker = static_cast<int>(index);
    std::vector<LoopBatch>& batches = workers_[index];
    const auto spent_less = [](const LoopBatch& one, const LoopBatch& other) {
      return one.spent < other.spent;
    };
    if (const auto group = scheduler_.next_group(worker, false)) {
      const auto least = std::min_element(batches.begin(), batches.end(), spent_less);
      batches.push_back({*group, least == batches.end() ? 0 : least->spent});
    }
    const auto batch = std::min_element(batches.begin(), batches.end(), spent_less);
    if (batch == batches.end()) return;
    Capacity capacity = {512, static_cast<std::int64_t>(batch->running.size())};
    for (const SentencePtr& one : batch->running) {
      capacity.longest = std::max(capacity.longest, one->length() + 1);
    }
    for (const SentencePtr& one : scheduler_.take(worker, batch->group, capacity)) {
      batch->running.push_back(one);
      batch->left.push_back(one->length());
    }
    if (batch->running.empty()) {
      scheduler_.end(worker, batch->group);
      batches.erase(batch);
      return;
    }
    const Sentences stepped = std::exchange(batch->running, {});
    const std::vector<std::int64_t> before = std::exchange(batch->left, {});
    for (std::size_t i = 0; i < stepped.size(); ++i) {
      if (before[i] > 1) {
        batch->running.push_back(stepped[i]);
        batch->left.push_back(before[i] - 1);
        continue;
      }
      scheduler_.done(batch->group, *stepped[i]);
      Lengths& waits = batch->group.is_long ? waits_.second : waits_.first;
      waits.push_back(now_ - since_.at(stepped[i]->number));
      submit();
    }
    const double share = scheduler_.share(worker, batch->group, batch->running);
    batch->spent += 1 / std::max(share, 1.0);
  }

  Random random_ = Random(7);
  Scheduler scheduler_;
  std::vector<std::vector<LoopBatch>> workers_;
  std::map<std::uint64_t, std::int64_t> since_;  // step of its submission, by number
  std::pair<Lengths, Lengths> waits_;
  std::int64_t now_ = 0;
};

void test_callers_of_all_lengths_wait_alike() {
  for (const int workers : {1, 2}) {
    auto [shorter, longer] = ClosedLoop(workers).run();
    const auto median = [](const Lengths& waits) { return waits[waits.size() / 2]; };
    CHECK(shorter.back() <= 3 * median(shorter));
    CHECK(longer.back() <= 3 * median(longer));
    // A long sentence takes three times the steps, and a row of half as many.
    CHECK(median(longer) <= 6 * median(shorter));
  }
}

}  // namespace

void test_scheduler() {
  test_the_longest_first_but_not_before_those_that_came_earlier();
  test_of_equal_sentences_the_first_is_first();
  test_many_sentences(true);
  test_many_sentences(false);
  test_workers_of_a_group_get_like_numbers();
  test_long_and_large_are_groups_of_their_own();
  test_a_group_that_no_worker_serves_ends_the_oldest_batch();
  test_a_batch_goes_on_if_the_group_that_it_was_to_end_for_was_dropped();
  test_a_worker_helps_where_more_callers_wait_than_it_serves();
  test_callers_of_all_lengths_wait_alike();
}

}  // namespace translate_trt::runtime
