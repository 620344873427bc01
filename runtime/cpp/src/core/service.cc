#include "core/service.h"

#include <algorithm>
#include <utility>

#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Error deadline_exceeded() {
  return Error(TT_DEADLINE_EXCEEDED, "the job's deadline passed before it was translated.");
}

}  // namespace

// A running batch of a worker.
struct Service::RunningBatch {
  Group group;
  double spent = 0;  // seconds of its steps, each divided by the callers in the batch
  std::unique_ptr<Search> search;
  double counted = 0;  // graph_seconds already in the statistics
};

// Feeds a worker's batch from the scheduler.
class Service::WorkerSource : public SentenceSource {
 public:
  WorkerSource(Scheduler& scheduler, int worker, const Group& group)
      : scheduler_(scheduler), worker_(worker), group_(group) {}

  // Sentences join as soon as the batch has capacity. In a small batch each admission copies the
  // batch, which takes at most a fraction of a step.
  bool should_join(const Capacity& capacity, std::int64_t size) override {
    const double least = std::max(1.0, static_cast<double>(size) * kJoin);
    return static_cast<double>(scheduler_.ready(worker_, group_, capacity)) >= least;
  }

  Sentences take(const Capacity& capacity) override {
    return scheduler_.take(worker_, group_, capacity);
  }

  void release(const Sentence& sentence) override { scheduler_.done(group_, sentence); }

 private:
  Scheduler& scheduler_;
  int worker_;
  const Group& group_;
};

Service::Service(const Settings& settings, SearchFactory make_search, Log log)
    : settings_(settings), make_search_(std::move(make_search)), log_(std::move(log)) {
  scheduler_ = std::make_unique<Scheduler>(std::max(settings_.workers, 1), settings_.batches,
                                           settings_.capacity);
  if (settings_.cache_bytes > 0) cache_.emplace(settings_.cache_bytes);
}

Service::~Service() {
  fail_all(Error(TT_CANCELLED, "the translator was freed before the job was translated."));
  for (std::thread& thread : threads_) thread.join();
}

// ---- submission ----

void Service::submit(const std::shared_ptr<Job>& job, Caller caller) {
  start();
  const auto left = answer(job, {false, Job::sentences(job)}).next;
  if (left.empty()) {
    finish(job);
    return;
  }
  scheduler_->submit(left, caller == 0 ? scheduler_->new_caller() : caller);
  {
    const std::lock_guard lock(mutex_);
    if (job->is_finished()) return;
    jobs_.emplace(job.get(), job);
    if (job->deadline) deadlines_.emplace(*job->deadline, job);
  }
  // The scheduler may have been closed before the job was registered.
  if (scheduler_->is_closed()) fail(job, backend_error("the translator has failed."));
}

bool Service::wait(const std::shared_ptr<Job>& job, Deadline until) {
  check_process();
  Deadline limit = until;
  if (job->deadline && (!limit || *job->deadline < *limit)) limit = job->deadline;
  if (settings_.workers == 0 ? serve_until_finished(job, limit) : job->wait(limit)) return true;
  if (!job->deadline || Clock::now() < *job->deadline) return false;
  fail(job, deadline_exceeded());
  return true;
}

void Service::cancel(const std::shared_ptr<Job>& job) {
  check_process();
  fail(job, Error(TT_CANCELLED, "the job was cancelled."));
}

Statistics Service::statistics() const {
  check_process();
  const Load load = scheduler_->load();
  const std::lock_guard lock(mutex_);
  Statistics found = done_;
  found.pending = load.pending;
  found.running = load.running;
  return found;
}

void Service::start() {
  check_process();
  const std::lock_guard lock(mutex_);
  if (!threads_.empty()) return;
  process_ = process_id();
  try {
    for (int worker = 0; worker < settings_.workers; ++worker) {
      threads_.emplace_back(&Service::work, this, worker);
    }
  } catch (const std::exception& error) {
    scheduler_->close();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();  // so that the destructor does not join them again
    throw backend_error(std::string("cannot start a thread: ") + error.what() +
                        ". Lower workers, and load the bundle again.");
  }
}

void Service::check_process() const {
  const int process = process_;
  if (process == 0 || process == process_id()) return;
  throw Error(TT_FORKED, "this translator was used by process " + std::to_string(process) +
                             ", whose threads this process (" + std::to_string(process_id()) +
                             "), forked from it, does not have. Load the bundle after the fork, or "
                             "translate first after it.");
}

// ---- workers ----

void Service::work(int worker) noexcept {
  std::vector<RunningBatch> batches;  // oldest first
  try {
    while (serve(worker, batches)) {
    }
  } catch (const std::exception& error) {
    fail_all(backend_error(std::string("a worker of the translator has ended (") + error.what() +
                           "), and the translator with it: load it again."));
  }
}

// Works in the caller's thread.
bool Service::serve_until_finished(const std::shared_ptr<Job>& job, Deadline until) {
  std::unique_lock turn(turn_, std::defer_lock);
  if (!until) {
    turn.lock();
  } else if (!turn.try_lock_until(*until)) {
    return job->wait(until);
  }
  try {
    // At least one step, so that a caller who polls makes progress.
    while (!job->wait(Clock::now()) && serve(0, own_batches_)) {
      if (until && Clock::now() >= *until) break;
    }
  } catch (const std::exception& error) {
    fail_all(backend_error(std::string("the work of the translator has ended (") + error.what() +
                           "), and the translator with it: load it again."));
  }
  return job->wait(Clock::now());
}

// Runs one step of the batches of several groups, which take turns. A worker thread waits for a
// group if there is none. Returns false if nothing is left to do.
bool Service::serve(int worker, std::vector<RunningBatch>& batches) {
  const auto spent_less = [](const RunningBatch& one, const RunningBatch& other) {
    return one.spent < other.spent;
  };
  if (scheduler_->is_closed()) return false;
  const double started = thread_seconds();
  const bool waits = batches.empty() && settings_.workers > 0;
  if (const auto group = scheduler_->next_group(worker, waits)) {
    const auto least = std::min_element(batches.begin(), batches.end(), spent_less);
    batches.push_back({*group, least == batches.end() ? 0 : least->spent, nullptr, 0});
  } else if (batches.empty()) {
    return false;
  }
  // On a tie, run the newest batch: its sentences have waited, and may finish soon.
  const auto batch =
      std::prev(std::min_element(batches.rbegin(), batches.rend(), spent_less).base());
  const auto begin = Clock::now();
  const bool goes_on = step(worker, *batch);
  if (goes_on) {
    const double share = scheduler_->share(worker, batch->group, batch->search->unfinished());
    batch->spent += seconds_since(begin) / std::max(share, 1.0);
  }
  expire();
  count(*batch, started);
  if (!goes_on) {
    scheduler_->end(worker, batch->group);
    batches.erase(batch);
  }
  return true;
}

// Adds a sentence, its repeats, and its best hypothesis to the statistics. is_known: the sentence
// was not searched either.
void Service::count(const Sentence& sentence, const Hypothesis& best, bool is_known) {
  const std::size_t all = 1 + sentence.repeats.size();
  const std::lock_guard lock(mutex_);
  done_.sentences += all;
  done_.source_tokens += all * sentence.tokens.size();
  done_.target_tokens += all * best.tokens.size();
  done_.repeated += is_known ? all : all - 1;
}

// Adds the processor time since the thread had used `started` seconds to the statistics.
void Service::count(RunningBatch& batch, double started) {
  const double graphs = batch.search == nullptr ? batch.counted : batch.search->graph_seconds();
  const std::lock_guard lock(mutex_);
  done_.graph_seconds += graphs - std::exchange(batch.counted, graphs);
  done_.worker_seconds += thread_seconds() - started;
}

// Advances a batch; returns false once it has drained or failed.
bool Service::step(int worker, RunningBatch& batch) {
  try {
    if (batch.search == nullptr) {
      SearchOptions shared;
      shared.beam_size = batch.group.beam_size;
      shared.return_attention = batch.group.attention;
      batch.search = make_search_(shared);
    }
    WorkerSource source(*scheduler_, worker, batch.group);
    const auto store = [&](const SentencePtr& sentence, auto hypotheses) {
      found(batch.group, sentence, std::move(hypotheses));
    };
    // Before a job may finish: a caller that waits for it may read the statistics.
    const auto count_steps = [&](const Progress& made) {
      const std::lock_guard lock(mutex_);
      done_.steps += static_cast<std::uint64_t>(made.steps);
      done_.rows += static_cast<std::uint64_t>(made.rows);
    };
    return batch.search->advance(source, store, count_steps).steps > 0;
  } catch (...) {
    failed(worker, batch, std::current_exception());
    return false;
  }
}

// Stores the results of the sentences of `next` whose searches are known; leaves the others.
Job::Progress Service::answer(const std::shared_ptr<Job>& job, Job::Progress progress) {
  if (!cache_) return progress;
  Job::Progress left = {progress.last};
  for (std::size_t i = 0; i < progress.next.size(); ++i) {
    const std::shared_ptr<Sentence> sentence = progress.next[i];
    auto known = cache_->find(search_key(*sentence));
    if (!known) {
      left.next.push_back(sentence);
      continue;
    }
    count(*sentence, known->front(), true);
    const Job::Progress more = Job::store(job, *sentence, std::move(*known));
    left.last = left.last || more.last;
    progress.next.insert(progress.next.end(), more.next.begin(), more.next.end());
  }
  return left;
}

void Service::found(const Group& group, const SentencePtr& sentence,
                    std::vector<Hypothesis> hypotheses) {
  const std::shared_ptr<Job> job(sentence, sentence->job);
  std::optional<Error> error;
  Job::Progress progress;
  // Before the job may finish, by this worker or another one: a caller that waits for it may read
  // the statistics.
  scheduler_->done(group, *sentence);
  try {
    // This error fails the sentence, not its batch.
    if (hypotheses.empty()) throw no_hypothesis(*sentence);
    count(*sentence, hypotheses.front());
    if (cache_) cache_->put(search_key(*sentence), hypotheses);
    progress = answer(job, Job::store(job, *sentence, std::move(hypotheses)));
    if (!progress.next.empty()) {
      scheduler_->submit_following(progress.next, sentence->caller);
      if (job->is_finished()) scheduler_->forget_dropped(job.get());  // cancelled before
    }
  } catch (const Error& thrown) {
    error = thrown;
  } catch (const std::exception& thrown) {
    error = Error(TT_INTERNAL_ERROR, thrown.what());
  }
  if (progress.last || error) finish(job, error ? &*error : nullptr);
}

// Retries the sentences of a failed batch once, one per batch; a second failure is final.
void Service::failed(int worker, const RunningBatch& batch, const std::exception_ptr& thrown) {
  Sentences sentences;
  if (batch.search != nullptr) sentences = batch.search->unfinished();
  // If no batch could be created, fail the next pending sentence.
  if (sentences.empty()) sentences = scheduler_->take(worker, batch.group, {1});
  if (sentences.empty()) return;
  std::optional<Error> known;
  std::string what;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    known = error;
    what = error.what();
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception of an unknown type";
  }
  if (batch.group.alone == 0 && !(known && sentences.size() == 1)) {
    log_("a batch failed (" + what + "); its " + std::to_string(sentences.size()) +
         " sentences are retried");
    scheduler_->retry(batch.group, sentences);
    return;
  }
  const Error error = known ? *known
                            : backend_error("translation failed twice: " + what +
                                            ". If memory ran out, lower batch_tokens or workers.");
  for (const SentencePtr& sentence : sentences) {
    scheduler_->done(batch.group, *sentence);
    fail({sentence, sentence->job}, error);
  }
}

// Fails the jobs whose deadline has passed.
void Service::expire() {
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Job>> expired;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [deadline, job] : deadlines_) {
      if (deadline > now) break;
      if (auto found = job.lock()) expired.push_back(std::move(found));
    }
  }
  for (const auto& job : expired) fail(job, deadline_exceeded());
}

void Service::finish(const std::shared_ptr<Job>& job, const Error* error) {
  if (!job->finish(error)) return;
  forget(*job);
  if (error != nullptr) scheduler_->forget_dropped(job.get());
  // Last, because it may submit and needs the capacity of the job's pending sentences.
  if (job->on_finish) job->on_finish();
}

void Service::fail(const std::shared_ptr<Job>& job, const Error& error) { finish(job, &error); }

void Service::forget(const Job& job) {
  const std::lock_guard lock(mutex_);
  jobs_.erase(&job);
  if (!job.deadline) return;
  const auto [first, last] = deadlines_.equal_range(*job.deadline);
  const auto entry = std::find_if(
      first, last, [&](const auto& entry) { return entry.second.lock().get() == &job; });
  if (entry != last) deadlines_.erase(entry);
}

void Service::fail_all(const Error& error) {
  scheduler_->close();
  std::map<const Job*, std::shared_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  for (const auto& [key, job] : jobs) fail(job, error);
}

}  // namespace translate_trt::runtime
