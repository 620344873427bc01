// An engine of TensorRT, loaded and held against the contract (runtime/backends/tensorrt.py).
#pragma once

#include <NvInfer.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "bundle/contract.h"

namespace translate_trt::runtime {

// Of TensorRT's library, such as "10.15.1".
std::string tensorrt_version();

// The last errors that TensorRT reported in the calling thread, or in any where there are none of
// it; they are not told again.
std::string tensorrt_reasons();

// Used on the GPU that it was loaded on. Any thread may ask for contexts.
class TensorRtEngine {
 public:
  // Loads a file. inputs, outputs: what the engine must take and give, in the device's memory.
  // A bundle error if it does not load, or is another engine.
  TensorRtEngine(const std::filesystem::path& file, const Specs& inputs, const Specs& outputs);

  // A bundle error if it does not have as many profiles.
  void check_profiles(std::size_t count) const;

  // A bundle error if one of the caches is not written in place.
  void check_aliases(const Specs& caches) const;

  // Scratch memory that a context needs as it runs; 0: none.
  std::size_t scratch_bytes() const;

  // A context for a profile, whose scratch memory is the caller's to set. The stream is that which
  // it will run on. `profile`, for the message: its sizes. A backend error if there is none.
  std::unique_ptr<nvinfer1::IExecutionContext> context(std::size_t index,
                                                       const std::string& profile,
                                                       cudaStream_t stream);

 private:
  void check_tensors(const Specs& inputs, const Specs& outputs) const;

  // In this order: an engine goes before the runtime that loaded it.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::mutex mutex_;
};

}  // namespace translate_trt::runtime
