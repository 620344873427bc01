// CHECK, which prints and counts failed conditions.
#pragma once

#include <iostream>
#include <string>
#include <thread>

#include "base/errors.h"

namespace translate_trt::runtime {

inline int failures = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " << #condition << "\n"; \
      ++failures;                                                             \
    }                                                                         \
  } while (false)

// The error that a function throws, as "STATUS message"; "" if it throws none.
template <class Function>
std::string thrown(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return std::string(tt_status_name(error.status())) + " " + error.what();
  }
  return "";
}

// Runs the work of a worker in its own thread.
template <class Work>
void in_a_worker(const Work& work) {
  std::thread(work).join();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The tests of each file.
void test_first_error();
void test_thread_pool();
void test_text();
void test_prompt();
void test_search();
void test_host_batch();
void test_host_batch_arrays();
void test_host_batch_random();
void test_host_batch_memory();
void test_device_batch();
void test_device_memory();
void test_engine_record();
void test_cuda_device();
void test_tensorrt_device();
void test_plan_device();
void test_engine_bundle();
void test_scheduler();
void test_scheduler_random();
void test_service();
void test_interface();

}  // namespace translate_trt::runtime
