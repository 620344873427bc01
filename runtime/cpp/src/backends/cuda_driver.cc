#include "backends/cuda_driver.h"

#include <map>
#include <mutex>
#include <stdexcept>

#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

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
    throw no_gpu(error.what());
  }
  CudaDriver driver;
#define TT_CUDA_FIND(member, name, parameters) find(library, path, #name, driver.member, true);
#define TT_CUDA_FIND_LATER(member, name, parameters) \
  find(library, path, #name, driver.member, false);
  TT_CUDA_FUNCTIONS(TT_CUDA_FIND)
  TT_CUDA_LATER_FUNCTIONS(TT_CUDA_FIND_LATER)
#undef TT_CUDA_FIND
#undef TT_CUDA_FIND_LATER
  const cuda::Result result = driver.init(0);
  if (result != cuda::kSuccess) throw no_gpu(driver.text_of(result));
  return driver;
}

}  // namespace

std::string cuda_driver_path() {
  const std::string given = environment_value("TRANSLATE_TRT_CUDA_DRIVER");
  return given.empty() ? kCudaDriver : given;
}

const CudaDriver& CudaDriver::open(const std::string& path) {
  // Never destroyed, like the library itself.
  static auto* const opened = new std::map<std::string, CudaDriver>();
  static auto* const mutex = new std::mutex();
  const std::lock_guard lock(*mutex);
  const auto found = opened->find(path);
  if (found != opened->end()) return found->second;
  return opened->emplace(path, load(path)).first->second;
}

void CudaDriver::check(cuda::Result result, const char* function) const {
  if (result == cuda::kSuccess) return;
  if (result == cuda::kOutOfMemory) {
    throw backend_error(std::string("the GPU is out of memory. ") + kUseLessMemory);
  }
  throw backend_error(std::string(function) + " failed: " + text_of(result) + ".");
}

void CudaDriver::copy_rows(cuda::Address target, std::size_t target_pitch, cuda::Address source,
                           std::size_t source_pitch, std::size_t width, std::size_t rows,
                           cuda::Stream stream) const {
  if (rows == 1 || (target_pitch == width && source_pitch == width)) {
    check(copy(target, source, width * rows, stream), "cuMemcpyDtoDAsync");
    return;
  }
  cuda::Copy2d blocks = {};
  blocks.source_type = blocks.target_type = cuda::kDeviceMemory;
  blocks.source = source, blocks.source_pitch = source_pitch;
  blocks.target = target, blocks.target_pitch = target_pitch;
  blocks.width = width, blocks.height = rows;
  check(copy_2d(&blocks, stream), "cuMemcpy2DAsync");
}

std::string CudaDriver::text_of(cuda::Result error) const {
  const char* text = nullptr;
  const bool is_known = error_text(error, &text) == cuda::kSuccess && text != nullptr;
  return is_known ? text : "error " + std::to_string(error);
}

Error no_gpu(const std::string& reason) {
  return backend_error("no NVIDIA GPU can be used: " + reason +
                       ". nvidia-smi shows what the driver sees. Without an NVIDIA GPU, choose an "
                       "onnx target, and leave device out.");
}

}  // namespace translate_trt::runtime
