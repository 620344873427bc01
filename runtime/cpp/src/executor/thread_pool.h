// Threads that share the tasks of operators.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace translate_trt::runtime {

class ThreadPool {
 public:
  using Task = void (*)(void* data, std::size_t index);

  // helpers: threads that help the callers of `run`. They start with the first call, so that a
  // process may fork before.
  explicit ThreadPool(int helpers);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs task(data, 0), ..., task(data, count - 1) in this thread and in idle ones, and returns
  // once all have ended. Tasks must not throw. Thread-safe.
  void run(std::size_t count, Task task, void* data);

 private:
  // The tasks of one call.
  struct Work {
    std::size_t count;
    Task task;
    void* data;
    std::atomic<std::size_t> next{0};
    std::atomic<int> helpers{0};  // threads at work on it, which begin with mutex_ locked

    void help();
    bool is_left() const { return next.load(std::memory_order_relaxed) < count; }
  };

  void start();
  void help_callers();
  Work* find();  // with mutex_ locked

  const int helpers_;
  std::once_flag started_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<Work*> works_;            // guarded by mutex_
  std::atomic<std::size_t> number_{0};  // of calls so far, which idle threads watch
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

}  // namespace translate_trt::runtime
