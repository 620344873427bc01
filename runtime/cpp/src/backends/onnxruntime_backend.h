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
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Settings of a backend.
struct Settings {
  int threads = 1;  // per operator of a batch
  int workers = 1;  // batches that run at the same time
  SessionDevice device;
  bool default_device = true;  // no device was set: the CPU, or the first GPU for engines
  std::string onnxruntime, kernels, provider;  // as in tt_load_options; "" if not set
  std::int64_t max_source_length = 0, max_target_length = 0;  // of the bundle
  // Replaces the place of a batch's arrays. Tests use it to run the CPU provider on a fake device.
  std::function<ArrayPlace()> place;
  std::function<void(const std::string&)> log;
};

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
