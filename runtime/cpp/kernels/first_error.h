// The first exception of tasks that run in threads of the host.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

namespace translate_trt {

// Stores the first exception of a set of tasks: exceptions must not leave callbacks of the
// host.
class FirstError {
 public:
  // Runs a task, unless an earlier one has failed. Thread-safe.
  template <class Task>
  void run(const Task& task) noexcept {
    if (has_failed()) return;
    try {
      task();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  // Rethrows the first exception, if any. Called once all tasks have ended.
  void rethrow() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }

  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace translate_trt
