// Threads that share the tasks of operators.

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "executor/thread_pool.h"

namespace translate_trt::runtime {

namespace {

// The tasks of a call, which count how often each has run.
struct Counts {
  std::vector<std::atomic<int>> of_task;

  explicit Counts(std::size_t count) : of_task(count) {}

  static void run(void* data, std::size_t index) { ++static_cast<Counts*>(data)->of_task[index]; }
  bool are(int expected) const {
    for (const auto& one : of_task) {
      if (one != expected) return false;
    }
    return true;
  }
};

void test_every_task_of_every_caller_runs_once(int helpers) {
  constexpr int kCalls = 300;
  ThreadPool pool(helpers);
  std::atomic<int> right = 0;
  const auto call = [&](std::size_t tasks) {
    Counts counts(tasks);
    for (int i = 0; i < kCalls; ++i) {
      pool.run(tasks, Counts::run, &counts);
      if (counts.are(i + 1)) ++right;
      if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // helpers sleep
    }
  };
  std::vector<std::thread> callers;
  for (const std::size_t tasks : {1, 2, 7}) callers.emplace_back(call, tasks);
  for (std::thread& caller : callers) caller.join();
  CHECK(right == 3 * kCalls);
}

}  // namespace

void test_thread_pool() {
  for (const int helpers : {0, 1, 3}) test_every_task_of_every_caller_runs_once(helpers);
}

}  // namespace translate_trt::runtime
