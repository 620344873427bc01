// Continuous batching: workers whose batches sentences of several jobs share.
#pragma once

#include <atomic>
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

namespace translate_trt::runtime {

// Processor cores that this process may use.
int available_cores();

// Load and totals; lines count with each of their segments.
struct Statistics {
  std::size_t pending = 0, running = 0;  // sentences
  std::uint64_t sentences = 0;           // that were translated
  std::uint64_t source_tokens = 0;       // of these
  std::uint64_t target_tokens = 0;       // of the best hypothesis of each
  std::uint64_t steps = 0;               // that batches took
  std::uint64_t rows = 0;                // of batches: a step with n sentences counts n
  double worker_seconds = 0;             // processor time of the workers' own threads
  double graph_seconds = 0;              // of it, within the graphs
};

// Any thread. The process that submits first is the only one that may submit.
class Service {
 public:
  struct Settings {
    int workers = 1;           // batches that take steps at once, a thread each
    int batches = 4;           // that a worker runs in turn, of sentences that cannot share one
    std::size_t capacity = 0;  // sentences, from which on `submit` refuses; 0: any number
  };
  // Makes a batch for sentences of these shared options; any worker.
  using SearchFactory = std::function<std::unique_ptr<Search>(const SearchOptions&)>;
  using Log = std::function<void(const std::string&)>;

  // No thread starts before the first job is submitted.
  Service(const Settings& settings, SearchFactory make_search, Log log);

  // Cancels all jobs, and waits for the steps that are under way. Not by a worker's thread, nor in
  // a process that was forked from the one that submitted.
  ~Service();

  // Begins to translate a job. caller: whose sentences take turns with those of other callers; 0:
  // the job is a caller of its own. TT_CAPACITY_EXCEEDED; TT_FORKED; a backend error if no thread
  // can be started, or a worker has ended before its time.
  void submit(const std::shared_ptr<Job>& job, Caller caller = 0);

  // Waits until the job has finished, its deadline has passed or that time has come; true: it has
  // finished.
  bool wait(const std::shared_ptr<Job>& job, Deadline until);

  // Drops what is left of a job, which then has failed with TT_CANCELLED.
  void cancel(const std::shared_ptr<Job>& job);

  Statistics statistics() const;

 private:
  struct RunningBatch;
  class WorkerSource;

  void start();
  void check_process() const;
  void work(int worker) noexcept;
  void serve(int worker);
  bool step(int worker, RunningBatch& turn);
  void count(const Sentence& sentence, const Hypothesis& best);
  void count(RunningBatch& turn, double started);
  void found(const Group& group, const SentencePtr& sentence, std::vector<Hypothesis> hypotheses);
  void failed(int worker, const RunningBatch& turn, const std::exception_ptr& error);
  void finish(const std::shared_ptr<Job>& job, const Error* error = nullptr);
  void fail(const std::shared_ptr<Job>& job, const Error& error);
  void forget(const Job& job);
  void expire();
  void fail_all(const Error& error);

  const Settings settings_;
  const SearchFactory make_search_;
  const Log log_;
  std::unique_ptr<Scheduler> scheduler_;
  std::atomic<int> process_ = 0;  // that submitted first; 0: none has
  mutable std::mutex mutex_;      // of what follows
  std::vector<std::thread> threads_;
  std::map<const Job*, std::shared_ptr<Job>> jobs_;
  std::multimap<Clock::time_point, std::weak_ptr<Job>> deadlines_;
  Statistics done_;
};

}  // namespace translate_trt::runtime
