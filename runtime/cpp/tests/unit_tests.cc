// Unit tests of libtranslate_trt. The exit code is 1 if a test fails.

#include "check.h"
#include "fake_cuda_driver/fake_driver.h"

int main() {
  namespace runtime = translate_trt::runtime;
  runtime::use_fake_driver(FAKE_CUDA_DRIVER);
  runtime::test_first_error();
  runtime::test_thread_pool();
#ifdef TRANSLATE_TRT_SINGLE_THREADED_TESTS
  runtime::test_text();
  runtime::test_prompt();
  runtime::test_search();
  runtime::test_host_batch();
  runtime::test_host_batch_arrays();
  runtime::test_host_batch_random();
  runtime::test_host_batch_memory();
  runtime::test_device_memory();
  runtime::test_device_batch();
  runtime::test_engine_record();
  runtime::test_scheduler();
  runtime::test_scheduler_random();
#endif
  runtime::test_cuda_device();
  runtime::test_tensorrt_device();
  runtime::test_plan_device();
  runtime::test_engine_bundle();
  runtime::test_service();
  runtime::test_interface();
  if (runtime::failures == 0) std::cout << "all passed\n";
  return runtime::failures == 0 ? 0 : 1;
}
