#include "backends/cuda_driver.h"

#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

#include "base/errors.h"
#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

constexpr const char* kRemedy =
    ". nvidia-smi shows whether the driver and the GPU work; without an NVIDIA GPU, leave device "
    "out.";

template <class Function>
void find(void* library, const std::string& path, const char* name, Function& function,
          bool required) {
  function = reinterpret_cast<Function>(find_function(library, name));
  if (function == nullptr && required) {
    throw backend_error(path + " is no CUDA driver that this library can use: it has no function " +
                        name + ". Update the GPU's driver; 470 or later is needed.");
  }
}

CudaDriver load(const std::string& path) {
  void* library = nullptr;
  try {
    library = open_library(path);
  } catch (const std::runtime_error& error) {
    throw backend_error("no NVIDIA GPU can be used: " + std::string(error.what()) + kRemedy);
  }
  CudaDriver driver;
#define TT_CUDA_FIND(member, name, parameters) find(library, path, name, driver.member, true);
#define TT_CUDA_FIND_LATER(member, name, parameters) \
  find(library, path, name, driver.member, false);
  TT_CUDA_FUNCTIONS(TT_CUDA_FIND)
  TT_CUDA_LATER_FUNCTIONS(TT_CUDA_FIND_LATER)
#undef TT_CUDA_FIND
#undef TT_CUDA_FIND_LATER
  driver.check(driver.init(0), "cuInit");
  return driver;
}

}  // namespace

const CudaDriver& CudaDriver::open(const std::string& path) {
  // Never destroyed, like the library itself.
  static auto* const opened = new std::map<std::string, CudaDriver>();
  static auto* const mutex = new std::mutex();
  const std::lock_guard lock(*mutex);
  const auto found = opened->find(path);
  if (found != opened->end()) return found->second;
  return opened->emplace(path, load(path)).first->second;
}

void CudaDriver::check(cuda::Result result, const char* what) const {
  if (result == cuda::kSuccess) return;
  if (result == cuda::kOutOfMemory) throw std::bad_alloc();
  const char* text = nullptr;
  if (error_text(result, &text) != cuda::kSuccess || text == nullptr) text = "unknown error";
  throw backend_error(std::string("the GPU's driver refused ") + what + ": " + text + " (" +
                      std::to_string(result) + ")" + kRemedy);
}

}  // namespace translate_trt::runtime
