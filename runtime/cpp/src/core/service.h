// Continuous batching: workers whose batches are shared by the sentences of several jobs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/job.h"
#include "core/scheduler.h"
#include "core/search_cache.h"

namespace translate_trt::runtime {

// Current load and totals; each segment of a long line counts as a sentence.
struct Statistics {
  std::size_t pending = 0, running = 0;  // sentences
  std::uint64_t sentences = 0;           // sentences translated
  std::uint64_t source_tokens = 0;       // of the translated sentences
  std::uint64_t target_tokens = 0;       // of their best hypotheses
  std::uint64_t repeated = 0;            // sentences that had the result of an equal one
  std::uint64_t steps = 0;               // steps of all batches
  std::uint64_t rows = 0;                // rows of all steps: a step with n sentences counts n
  double worker_seconds = 0;             // CPU time of the worker threads
  double graph_seconds = 0;              // the part of worker_seconds inside the graphs
};

// A mutex with a deadline. GCC's thread sanitizer does not know how std::timed_mutex waits.
class TimedMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    free_.wait(lock, [this] { return !locked_; });
    locked_ = true;
  }

  bool try_lock_until(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    if (!free_.wait_until(lock, until, [this] { return !locked_; })) return false;
    return locked_ = true;
  }

  void unlock() {
    const std::lock_guard lock(mutex_);
    locked_ = false;
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool locked_ = false;
};

// Thread-safe. Only the process that submits first may submit further jobs.
class Service {
 public:
  struct Settings {
    int workers = 1;              // worker threads; 0: callers of `wait` do the work
    int batches = 4;              // maximum number of batches that a worker runs in turn
    std::size_t capacity = 0;     // sentences at which `submit` refuses more; 0: no limit
    std::size_t cache_bytes = 0;  // limit of the results that are kept for equal sentences
  };
  // Creates a batch for sentences with these shared options. Called by any worker.
  using SearchFactory = std::function<std::unique_ptr<Search>(const SearchOptions&)>;
  using Log = std::function<void(const std::string&)>;

  // Starts no threads before the first job is submitted.
  Service(const Settings& settings, SearchFactory make_search, Log log);

  // Cancels all jobs and waits for the running steps. Must not run in a worker thread, or in a
  // process forked from the one that submitted.
  ~Service();

  // Enqueues a job. caller: callers take turns; 0 makes the job a caller of its own. Throws
  // TT_CAPACITY_EXCEEDED, TT_FORKED, or a backend error if threads cannot be started or a worker
  // has failed.
  void submit(const std::shared_ptr<Job>& job, Caller caller = 0);

  // Waits until the job has finished, its deadline has passed, or `until` has passed; returns
  // whether the job has finished. Without worker threads, callers take turns at the work of all
  // jobs, each until its own job has finished, and at least for one step.
  bool wait(const std::shared_ptr<Job>& job, Deadline until);

  // Cancels an unfinished job, which then fails with TT_CANCELLED.
  void cancel(const std::shared_ptr<Job>& job);

  Statistics statistics() const;

 private:
  struct RunningBatch;
  class WorkerSource;

  void start();
  void check_process() const;
  void work(int worker) noexcept;
  bool serve(int worker, std::vector<RunningBatch>& batches);
  bool serve_until_finished(const std::shared_ptr<Job>& job, Deadline until);
  bool step(int worker, RunningBatch& batch);
  void count(const Sentence& sentence, const Hypothesis& best, bool is_known = false);
  void count(RunningBatch& batch, double started);
  Job::Progress answer(const std::shared_ptr<Job>& job, Job::Progress progress);
  void found(const Group& group, const SentencePtr& sentence, std::vector<Hypothesis> hypotheses);
  void failed(int worker, const RunningBatch& batch, const std::exception_ptr& error);
  void finish(const std::shared_ptr<Job>& job, const Error* error = nullptr);
  void fail(const std::shared_ptr<Job>& job, const Error& error);
  void forget(const Job& job);
  void expire();
  void fail_all(const Error& error);

  const Settings settings_;
  const SearchFactory make_search_;
  const Log log_;
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<SearchCache> cache_;
  std::atomic<int> process_ = 0;           // process that submitted first; 0 before
  TimedMutex turn_;                        // of callers that work, guards own_batches_
  std::vector<RunningBatch> own_batches_;  // of these callers, oldest first
  mutable std::mutex mutex_;               // guards the members below
  std::vector<std::thread> threads_;
  std::map<const Job*, std::shared_ptr<Job>> jobs_;
  std::multimap<Clock::time_point, std::weak_ptr<Job>> deadlines_;
  Statistics done_;
};

}  // namespace translate_trt::runtime
