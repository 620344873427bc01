// Exceptions of tasks of the compiled kernels.

#include <stdexcept>
#include <thread>
#include <vector>

#include "../kernels/first_error.h"
#include "check.h"

namespace translate_trt::runtime {

namespace {

void test_the_first_error_of_any_thread_is_thrown_once() {
  FirstError error;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { error.run([] { throw std::runtime_error("no memory"); }); });
  }
  for (std::thread& one : threads) one.join();
  int begun = 0;
  error.run([&] { ++begun; });
  CHECK(begun == 0);
  std::string what;
  try {
    error.rethrow();
  } catch (const std::runtime_error& thrown) {
    what = thrown.what();
  }
  CHECK(what == "no memory");
  error.rethrow();  // the error was cleared
  error.run([&] { ++begun; });
  CHECK(begun == 1);
}

}  // namespace

void test_first_error() { test_the_first_error_of_any_thread_is_thrown_once(); }

}  // namespace translate_trt::runtime
