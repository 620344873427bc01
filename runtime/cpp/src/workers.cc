#include "workers.h"

#include <algorithm>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

#include "errors.h"

namespace translate_trt::runtime {

namespace {

// What the workers of one call share.
class Work {
 public:
  Work(const std::function<std::unique_ptr<Search>()>& make_search, const Sentences& sentences,
       std::size_t count, int workers, const std::function<void(const std::string&)>& log)
      : make_search_(make_search), log_(log), waiting_(sentences, workers), results_(count) {}

  // One worker's part; one that dies is replaced, and its sentences are tried once more. The first
  // error ends all workers.
  void run() noexcept {
    try {
      while (!run_search()) {
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }

  std::vector<std::vector<Hypothesis>> results() {
    if (error_ != nullptr) std::rethrow_exception(error_);
    return std::move(results_);
  }

  void fail(std::exception_ptr error) noexcept {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
    stop_ = true;
    for (Search* search : searches_) {
      try {
        search->cancel();
      } catch (...) {
        // It ends at its next step.
      }
    }
  }

 private:
  // True: nothing is left to do.
  bool run_search() {
    std::unique_ptr<Search> search;
    try {
      search = make_search_();
      enter(search.get());
      const auto found = [this](const Sentence& sentence, std::vector<Hypothesis> hypotheses) {
        results_[sentence.index] = std::move(hypotheses);
      };
      search->run(waiting_, found, stop_);
      leave(search.get());
      return true;
    } catch (const Error&) {
      leave(search.get());
      throw;
    } catch (const std::exception& error) {  // whatever the backend's library reports
      leave(search.get());
      if (stop_) return true;  // it was cancelled
      const Sentences sentences = search == nullptr ? Sentences() : search->unfinished();
      search.reset();  // which may hold memory that the next one needs
      give_back(sentences, error.what());
      return false;
    } catch (...) {  // what nobody should throw
      leave(search.get());
      throw;
    }
  }

  void enter(Search* search) {
    const std::lock_guard lock(mutex_);
    searches_.insert(search);
  }

  void leave(Search* search) {
    const std::lock_guard lock(mutex_);
    searches_.erase(search);
  }

  void give_back(const Sentences& sentences, const std::string& error) {
    {
      const std::lock_guard lock(mutex_);
      const bool again = std::any_of(sentences.begin(), sentences.end(), [this](const auto* one) {
        return retried_.count(one->index) > 0;
      });
      if (again || sentences.empty()) {
        throw backend_error(std::string("translation failed") + (again ? " twice" : "") + ": " +
                            error + ". If memory ran out, lower batch_tokens or workers.");
      }
      for (const Sentence* one : sentences) retried_.insert(one->index);
    }
    log_("a worker died (" + error + "); its " + std::to_string(sentences.size()) +
         " sentences are retried");
    waiting_.give_back(sentences);
  }

  const std::function<std::unique_ptr<Search>()>& make_search_;
  const std::function<void(const std::string&)>& log_;
  Waiting waiting_;
  std::vector<std::vector<Hypothesis>> results_;  // each place is written by one worker
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;               // of what follows
  std::set<std::size_t> retried_;  // sentences that a worker died with
  std::set<Search*> searches_;     // of all workers, but for dead ones
  std::exception_ptr error_;
};

}  // namespace

int available_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::vector<std::vector<Hypothesis>> search_all(
    const std::function<std::unique_ptr<Search>()>& make_search, const Sentences& sentences,
    std::size_t count, int workers, const std::function<void(const std::string&)>& log) {
  const auto most = static_cast<std::size_t>(std::max(workers, 1));
  const std::size_t used = std::max<std::size_t>(1, std::min(most, sentences.size()));
  Work work(make_search, sentences, count, static_cast<int>(used), log);
  std::vector<std::thread> threads;
  try {
    threads.reserve(used - 1);
    while (threads.size() + 1 < used) threads.emplace_back(&Work::run, &work);
  } catch (const std::exception& error) {
    work.fail(std::make_exception_ptr(
        backend_error(std::string("cannot start a thread: ") + error.what() + ". Lower workers.")));
  }
  work.run();
  for (std::thread& thread : threads) thread.join();
  return work.results();
}

}  // namespace translate_trt::runtime
