// Runs libtranslate_trt_cuda, which is linked to the CUDA runtime, on the fake runtime: this
// program loads the fake one by the same name first.

#include "cuda_checks.h"
#include "fake_cuda.h"

int main() {
  namespace runtime = translate_trt::runtime;
  const std::string reason = runtime::run_cuda_checks(1);
  if (!reason.empty()) std::cerr << reason << "\n";
  for (const std::string& one : runtime::fake_cuda().violations) std::cerr << one << "\n";
  const bool passed = reason.empty() && runtime::failures == 0 &&
                      runtime::fake_cuda().violations.empty() && runtime::fake_cuda().left() == 0 &&
                      runtime::fake_cuda().calls["cudaGraphLaunch"] == 3;
  if (passed) std::cout << "all passed\n";
  return passed ? 0 : 1;
}
