// A TensorRT engine that is checked against the contract (runtime/backends/tensorrt.py).
#pragma once

#include <NvInfer.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "backends/cuda_driver.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Version of the TensorRT library, such as "10.15.1".
std::string tensorrt_version();

// Returns and clears the last errors that TensorRT reported in the calling thread, or in any
// thread if this one has none.
std::string tensorrt_reasons();

// An engine on the GPU where it was loaded. Any thread may create contexts.
class TensorRtEngine {
 public:
  // Loads a file. inputs, outputs: required tensors, all in device memory. Throws a bundle error if
  // the engine does not load or has other tensors.
  TensorRtEngine(const std::filesystem::path& file, const Specs& inputs, const Specs& outputs);

  // Throws a bundle error if the engine has another number of profiles.
  void check_profiles(std::size_t count) const;

  // Throws a bundle error if a cache is not updated in place.
  void check_aliases(const Specs& caches) const;

  // Size in bytes of the scratch memory that a context needs.
  std::size_t scratch_bytes() const;

  // Creates an execution context for a profile. The caller sets its scratch memory. profile: name
  // of the profile for messages. stream: the stream that the context will run on. Throws a backend
  // error if TensorRT cannot create it.
  std::unique_ptr<nvinfer1::IExecutionContext> context(std::size_t index,
                                                       const std::string& profile,
                                                       cuda::Stream stream);

 private:
  void check_tensors(const Specs& inputs, const Specs& outputs) const;

  // In this order: the engine is destroyed before the runtime that loaded it.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::mutex mutex_;
};

}  // namespace translate_trt::runtime
