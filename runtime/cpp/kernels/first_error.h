// The first exception of tasks that run in somebody else's threads.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

namespace translate_trt {

// Keeps what tasks throw: no exception may leave a function that ONNX Runtime calls back.
class FirstError {
 public:
  // Any thread. Nothing is begun once a task has failed.
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

  // Throws what was thrown first, if anything was. Once all tasks have ended.
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
