// Checks devices by translate_trt/cuda.h on the first GPU. Prints "all passed".
// The exit code is 1 if a check fails, and 3 if there is no such GPU.

#include "cuda_checks.h"

int main() {
  namespace runtime = translate_trt::runtime;
  const std::string reason = runtime::run_cuda_checks(0);
  if (!reason.empty()) {
    std::cerr << reason << "\n";
    return 3;
  }
  if (runtime::failures == 0) std::cout << "all passed\n";
  return runtime::failures == 0 ? 0 : 1;
}
