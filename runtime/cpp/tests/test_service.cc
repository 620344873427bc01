// Jobs of many threads on a fake backend: each finishes once, with its own result.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/search_cache.h"
#include "core/service.h"
#include "counting_backend.h"

namespace translate_trt::runtime {

namespace {

using std::chrono::milliseconds;

// Creates a line for each length, whose translation lists the lengths of its hypotheses.
std::shared_ptr<Job> job_with(std::vector<Sentence> sentences) {
  auto job =
      std::make_shared<Job>([](std::size_t, const std::vector<std::vector<Hypothesis>>& sentences) {
        TextHypothesis line;
        for (const auto& found : sentences)
          line.text += std::to_string(found[0].tokens.size()) + " ";
        return Translation{{line}};
      });
  for (Sentence& one : sentences) job->add_line({std::move(one)});
  return job;
}

std::shared_ptr<Job> job_of(const std::vector<std::size_t>& lengths) {
  return job_with(sentences_of(lengths));
}

// Sentences of which all with the same length are equal.
std::vector<Sentence> equal_sentences(const std::vector<std::size_t>& lengths) {
  std::vector<Sentence> sentences = sentences_of(lengths);
  for (Sentence& one : sentences) std::fill(one.tokens.begin(), one.tokens.end(), 5);
  return sentences;
}

std::string texts(const std::shared_ptr<Job>& job) {
  std::string found;
  for (const Translation& line : job->translations()) found += line.hypotheses[0].text;
  return found;
}

// A service whose batches call a function before each step, until the service is destroyed.
struct Counting {
  explicit Counting(const Service::Settings& settings,
                    std::function<void(std::int64_t)> before_step = {})
      : backend([before_step] { return std::make_unique<CountingBatch>(before_step); }),
        service(
            settings,
            [this](const SearchOptions& shared) {
              return std::make_unique<Search>(backend, shared, 100, kModel);
            },
            [this](const std::string& message) {
              const std::lock_guard lock(mutex);
              log += message + "\n";
            }) {}

  CountingBackend backend;
  std::mutex mutex;
  std::string log;
  Service service;
};

// A gate that blocks the steps of a service until it is opened.
class Gate {
 public:
  ~Gate() { open(); }

  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

  // Waits until a step has reached the gate.
  void reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }

  void operator()() {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false, is_reached_ = false;
};

void test_every_line_of_every_job_is_found() {
  for (const int workers : {0, 1, 3}) {
    Counting counting({workers, 4, 0});
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::size_t round = 0; round < 20; ++round) {
          std::vector<std::size_t> lengths;
          std::string expected;
          for (std::size_t i = 0; i < 1 + (thread + round) % 20; ++i) {
            lengths.push_back(1 + (7 * i + thread) % 90);
            expected += std::to_string(lengths.back()) + " ";
          }
          const auto job = job_of(lengths);
          counting.service.submit(job, thread % 2);
          CHECK(counting.service.wait(job, std::nullopt) && texts(job) == expected);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Statistics found = counting.service.statistics();
    CHECK(found.pending + found.running == 0 && found.rows >= found.steps);
    CHECK(found.sentences > 1000 && found.source_tokens == found.target_tokens);
  }
}

void test_lines_without_sentences() {
  Counting counting({1, 4, 0});
  const auto job = job_of({});
  job->add_line({});
  std::atomic<int> told = 0;
  job->on_finish = [&] { ++told; };
  counting.service.submit(job);
  CHECK(counting.service.wait(job, std::nullopt) && texts(job).empty() && told == 1);
}

void test_who_arrives_joins_the_batch_that_is_under_way() {
  Gate gate;
  std::vector<std::int64_t> rows;
  Counting counting({1, 4, 0}, [&](std::int64_t now) {
    rows.push_back(now);
    gate();
  });
  const auto first = job_of({5}), second = job_of({2});
  counting.service.submit(first);
  gate.reached();
  counting.service.submit(second);
  gate.open();
  CHECK(counting.service.wait(second, std::nullopt) && counting.service.wait(first, std::nullopt));
  CHECK(rows[0] == 1 && rows[1] == 2);
}

void test_a_cancelled_job_leaves_its_batch() {
  Gate gate;
  std::atomic<int> steps = 0;
  Counting counting({1, 4, 0}, [&](std::int64_t) {
    ++steps;
    gate();
  });
  const auto job = job_of({20, 20, 20}), pending = job_of({2});
  std::atomic<int> told = 0;
  job->on_finish = [&] { ++told; };
  counting.service.submit(job);
  gate.reached();
  counting.service.submit(pending);
  counting.service.cancel(pending);
  CHECK(counting.service.statistics().pending == 0);
  CHECK(!counting.service.wait(job, Clock::now() + milliseconds(1)));
  counting.service.cancel(job);
  counting.service.cancel(job);
  CHECK(counting.service.wait(job, std::nullopt) && told == 1);
  CHECK(contains(thrown([&] { job->translations(); }), "TT_CANCELLED the job was cancelled"));
  gate.open();
  const auto other = job_of({3});
  counting.service.submit(other);
  CHECK(counting.service.wait(other, std::nullopt) && texts(other) == "3 ");
  CHECK(steps <= 5);  // the running step, and those of the other job
  const Statistics found = counting.service.statistics();
  CHECK(found.pending == 0 && found.running == 0 && found.sentences == 1);
}

void test_deadlines() {
  Gate gate;
  Counting counting({1, 4, 0}, [&](std::int64_t) { gate(); });
  const auto waited = job_of({9}), told = job_of({9}), patient = job_of({9});
  waited->deadline = told->deadline = Clock::now() + milliseconds(20);
  patient->deadline = Clock::now() + std::chrono::hours(24);
  std::atomic<bool> is_told = false;
  told->on_finish = [&] { is_told = true; };
  for (const auto& job : {waited, told, patient}) counting.service.submit(job);
  CHECK(counting.service.wait(waited, std::nullopt));  // although no step finishes
  CHECK(contains(thrown([&] { waited->translations(); }), "TT_DEADLINE_EXCEEDED"));
  gate.open();
  CHECK(counting.service.wait(patient, std::nullopt) && texts(patient) == "9 ");
  CHECK(is_told && contains(thrown([&] { told->translations(); }), "TT_DEADLINE_EXCEEDED"));
}

void test_capacity_of_service() {
  Gate gate;
  Counting counting({1, 4, 2}, [&](std::int64_t) { gate(); });
  const auto full = job_of({3, 3}), refused = job_of({3});
  std::atomic<int> told = 0;
  refused->on_finish = [&] { ++told; };
  counting.service.submit(full);
  CHECK(contains(thrown([&] { counting.service.submit(refused); }), "TT_CAPACITY_EXCEEDED"));
  gate.open();
  CHECK(counting.service.wait(full, std::nullopt) && told == 0);
}

void test_capacity_is_free_before_the_callback() {
  Gate gate;
  Counting counting({1, 4, 2}, [&](std::int64_t) { gate(); });
  const auto cancelled = job_of({90, 90}), next = job_of({3}), last = job_of({4});
  cancelled->on_finish = [&] { counting.service.submit(next); };
  next->on_finish = [&] { counting.service.submit(last); };
  counting.service.submit(cancelled);
  gate.reached();  // with one sentence in the batch and one pending
  counting.service.cancel(cancelled);
  gate.open();
  CHECK(counting.service.wait(next, std::nullopt) && counting.service.wait(last, std::nullopt));
  CHECK(texts(next) + texts(last) == "3 4 ");
}

void test_a_batch_that_fails_is_retried() {
  std::atomic<int> steps = 0;
  Counting counting({1, 4, 0}, [&](std::int64_t) {
    if (++steps == 3) throw std::runtime_error("out of order");
  });
  const auto job = job_of({4, 4, 4});
  counting.service.submit(job);
  CHECK(counting.service.wait(job, std::nullopt) && texts(job) == "4 4 4 ");
  CHECK(contains(counting.log, "a batch failed (out of order); its 3 sentences are retried"));
}

void test_a_sentence_that_fails_twice_fails_its_job_alone() {
  // Batches of one row fail, as does the very first batch.
  std::atomic<bool> is_first = true;
  Counting counting({1, 4, 0}, [&](std::int64_t rows) {
    if (is_first.exchange(false) || rows == 1) throw std::runtime_error("out of order");
  });
  const auto job = job_of({4, 4, 4});
  counting.service.submit(job);
  CHECK(counting.service.wait(job, std::nullopt));
  CHECK(contains(thrown([&] { job->translations(); }),
                 "TT_BACKEND_ERROR translation failed twice: out of order"));
  const auto other = job_of({3, 3});
  counting.service.submit(other);
  CHECK(counting.service.wait(other, std::nullopt) && texts(other) == "3 3 ");
}

void test_equal_sentences_of_a_job_are_searched_once() {
  Counting counting({1, 4, 2});  // two sentences would fill the capacity
  std::vector<Sentence> sentences = equal_sentences({3, 2, 3, 3, 2, 3});
  sentences.back().options.min_length = 1;  // not equal
  const auto job = job_with(std::move(sentences));
  counting.service.submit(job);
  CHECK(counting.service.wait(job, std::nullopt) && texts(job) == "3 2 3 3 2 3 ");
  const Statistics found = counting.service.statistics();
  CHECK(found.sentences == 6 && found.repeated == 3 && found.source_tokens == 16);
  CHECK(found.rows == 3 + 2 + 3);
}

void test_equal_sentences_of_jobs_are_searched_once_with_a_cache() {
  for (const std::size_t cache_bytes : {std::size_t{0}, std::size_t{1} << 20}) {
    Counting counting({1, 4, 0, cache_bytes});
    std::uint64_t rows = 0;
    for (const std::size_t other : {6, 7}) {
      rows = counting.service.statistics().rows;
      const auto job = job_with(equal_sentences({4, other, 4}));
      counting.service.submit(job);
      CHECK(counting.service.wait(job, std::nullopt));
      CHECK(texts(job) == "4 " + std::to_string(other) + " 4 ");
    }
    const Statistics found = counting.service.statistics();
    CHECK(found.sentences == 6 && found.repeated == (cache_bytes > 0 ? 3 : 2));
    CHECK(found.rows - rows == (cache_bytes > 0 ? 7 : 11));
    const auto known = job_with(equal_sentences({7, 6}));
    std::atomic<int> told = 0;
    known->on_finish = [&] { ++told; };
    counting.service.submit(known);
    CHECK(told == 1 || cache_bytes == 0);  // it finishes without a worker
    CHECK(counting.service.wait(known, std::nullopt) && texts(known) == "7 6 ");
    CHECK((counting.service.statistics().rows == found.rows) == (cache_bytes > 0));
  }
}

void test_a_full_cache_forgets_what_nobody_asks_for() {
  const auto of_tokens = [](std::size_t count) {
    Hypothesis one;
    one.tokens.resize(count, 5);
    return std::vector{one};
  };
  SearchCache cache(4096);
  cache.put("large", of_tokens(600));
  CHECK(!cache.find("large"));
  for (const char* key : {"a", "b", "c"}) cache.put(key, of_tokens(100));
  CHECK(cache.find("a") && cache.find("a")->front().tokens.size() == 100);
  cache.put("d", of_tokens(100));
  CHECK(!cache.find("b") && cache.find("a") && cache.find("c") && cache.find("d"));
  cache.put("all", of_tokens(400));
  CHECK(cache.find("all") && !cache.find("a") && !cache.find("c") && !cache.find("d"));
}

void change(bool& value) { value = !value; }
void change(int& value) { ++value; }
void change(double& value) { value += 0.5; }
void change(LengthPenaltyForm& value) { value = LengthPenaltyForm::kLength; }
void change(std::optional<int>& value) { value = 0; }
void change(std::optional<std::string>& value) { value = ""; }

void test_searches_with_another_option_or_token_are_not_equal() {
  const Sentence same = equal_sentences({3}).front();
  std::vector<Sentence> others;
#define TT_OPTION(type, name, value, range, demand) \
  others.push_back(same);                           \
  change(others.back().options.name);
#include "base/search_options.inc"
  others.resize(others.size() + 6, same);
  auto other = others.rbegin();
  (other++)->tokens.push_back(5);
  (other++)->prefix = {5};
  (other++)->suppressed = {{5}};
  (other++)->constraints = {{5, 6}};
  (other++)->constraints = {{5}, {6}};
  (other++)->completion.emplace();
  std::set<std::string> keys = {search_key(same), search_key(equal_sentences({3}).front())};
  CHECK(keys.size() == 1);
  for (const Sentence& one : others) keys.insert(search_key(one));
  CHECK(keys.size() == 1 + others.size());
}

void test_callers_work_without_worker_threads() {
  std::set<std::thread::id> threads;
  int steps = 0;
  Counting counting({0, 4, 0}, [&](std::int64_t) {
    threads.insert(std::this_thread::get_id());
    if (++steps == 2) throw std::runtime_error("out of order");
  });
  const auto first = job_of({5, 2}), second = job_of({3}), late = job_of({9});
  for (const auto& job : {first, second}) counting.service.submit(job);
  CHECK(steps == 0 && !second->is_finished());
  CHECK(counting.service.wait(second, std::nullopt) && texts(second) == "3 ");
  CHECK(counting.service.wait(first, std::nullopt) && texts(first) == "5 2 ");
  CHECK(contains(counting.log, "a batch failed (out of order)"));
  const auto polled = job_of({6});
  counting.service.submit(polled);
  int polls = 0;
  while (!counting.service.wait(polled, Clock::now())) ++polls;
  CHECK(polls > 0 && texts(polled) == "6 ");
  late->deadline = Clock::now();
  counting.service.submit(late);
  CHECK(counting.service.wait(late, std::nullopt));
  CHECK(contains(thrown([&] { late->translations(); }), "TT_DEADLINE_EXCEEDED"));
  const auto cancelled = job_of({9}), left = job_of({9});
  for (const auto& job : {cancelled, left}) counting.service.submit(job);
  counting.service.cancel(cancelled);
  CHECK(!counting.service.wait(left, Clock::now()) && cancelled->is_finished());
  CHECK(threads == std::set{std::this_thread::get_id()});
}

void test_what_is_left_at_the_end_is_cancelled() {
  std::shared_ptr<Job> running = job_of({5}), pending = job_of({6});
  {
    Gate gate;
    Counting counting({1, 1, 0}, [&](std::int64_t) { gate(); });
    counting.service.submit(running);
    gate.reached();
    counting.service.submit(pending);
    gate.open();
  }
  for (const auto& job : {running, pending}) {
    CHECK(job->is_finished());
    const std::string error = thrown([&] { job->translations(); });
    CHECK(error.empty() || contains(error, "TT_CANCELLED the translator was freed"));
  }
}

}  // namespace

void test_service() {
  test_every_line_of_every_job_is_found();
  test_lines_without_sentences();
  test_who_arrives_joins_the_batch_that_is_under_way();
  test_a_cancelled_job_leaves_its_batch();
  test_deadlines();
  test_capacity_of_service();
  test_capacity_is_free_before_the_callback();
  test_a_batch_that_fails_is_retried();
  test_a_sentence_that_fails_twice_fails_its_job_alone();
  test_equal_sentences_of_a_job_are_searched_once();
  test_equal_sentences_of_jobs_are_searched_once_with_a_cache();
  test_a_full_cache_forgets_what_nobody_asks_for();
  test_searches_with_another_option_or_token_are_not_equal();
  test_callers_work_without_worker_threads();
  test_what_is_left_at_the_end_is_cancelled();
}

}  // namespace translate_trt::runtime
