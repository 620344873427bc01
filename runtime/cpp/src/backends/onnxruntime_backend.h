// The ONNX Runtime backend.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/host_batch.h"
#include "backends/kernel_library.h"
#include "backends/onnxruntime_library.h"
#include "backends/onnxruntime_providers.h"
#include "backends/settings.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

class OnnxRuntimeBackend : public Backend {
 public:
  // Loads both graphs. Throws a bundle error if a graph does not load or differs from the contract,
  // and a backend error if the kernels cannot be used.
  OnnxRuntimeBackend(std::shared_ptr<const OnnxRuntimeLibrary> library,
                     const std::filesystem::path& encoder, const std::filesystem::path& step,
                     const Contract& contract, const CompiledKernels& kernels,
                     const Settings& settings);

  std::unique_ptr<Batch> batch(const SearchOptions& options,
                               std::int64_t start_token) const override;

  std::int64_t default_batch_tokens() const override;

 private:
  std::shared_ptr<const OnnxRuntimeLibrary> library_;
  Contract contract_;
  SessionDevice device_;
  std::function<ArrayPlace()> place_;  // of a new batch
  Owned<OrtMemoryInfo> device_memory_;
  Owned<OrtSession> encoder_, step_;
};

}  // namespace translate_trt::runtime
