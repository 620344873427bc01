#include "executor/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace translate_trt::runtime {

namespace {

// How long an idle thread watches for more tasks before it sleeps. Waking a thread takes as long as
// a small operator, and a small model has only one operator per step that is worth sharing: with a
// tenth of this, threads slept in every step of it.
constexpr std::chrono::microseconds kWatch{1000};
constexpr int kLooks = 64;  // between two looks at the clock

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int helpers) : helpers_(helpers) {}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::start() {
  try {
    for (int i = 0; i < helpers_; ++i) threads_.emplace_back([this] { help_callers(); });
  } catch (const std::system_error&) {
    // The callers and the threads that have started do the work.
  }
}

void ThreadPool::Work::help() {
  for (std::size_t i = next++; i < count; i = next++) task(data, i);
}

void ThreadPool::run(std::size_t count, Task task, void* data) {
  if (helpers_ == 0 || count < 2) {
    for (std::size_t i = 0; i < count; ++i) task(data, i);
    return;
  }
  std::call_once(started_, [this] { start(); });
  Work work{count, task, data};
  {
    const std::lock_guard lock(mutex_);
    works_.push_back(&work);
    ++number_;
  }
  posted_.notify_all();
  work.help();
  // No thread may begin to help any more, and those that have begun must end.
  {
    const std::lock_guard lock(mutex_);
    works_.erase(std::find(works_.begin(), works_.end(), &work));
  }
  while (work.helpers != 0) pause();
}

ThreadPool::Work* ThreadPool::find() {
  const auto found =
      std::find_if(works_.begin(), works_.end(), [](const Work* work) { return work->is_left(); });
  return found == works_.end() ? nullptr : *found;
}

void ThreadPool::help_callers() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (Work* work = find()) {
      ++work->helpers;
      lock.unlock();
      work->help();
      --work->helpers;  // the caller may return now, and its work end
      lock.lock();
      continue;
    }
    const std::size_t seen = number_;
    lock.unlock();
    const auto changed = [&] { return number_.load() != seen || ends_; };
    const auto until = std::chrono::steady_clock::now() + kWatch;
    while (!changed() && std::chrono::steady_clock::now() < until) {
      for (int i = 0; i < kLooks && !changed(); ++i) pause();
    }
    lock.lock();
    posted_.wait(lock, changed);
  }
}

}  // namespace translate_trt::runtime
