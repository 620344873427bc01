// The ONNX Runtime backend.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/onnxruntime_library.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

enum class Provider { kCpu, kCuda, kTensorRt };

// Device of the sessions: "cpu", "cuda", "cuda:1", "tensorrt" or "tensorrt:1".
struct SessionDevice {
  Provider provider = Provider::kCpu;
  int index = 0;
  std::string name = "cpu";
};

// Parses a device name; throws an option error if it is invalid.
SessionDevice read_device(const std::string& name);

// Settings of a backend.
struct Settings {
  int threads = 1;  // per operator of a batch
  int workers = 1;  // batches that run at the same time
  SessionDevice device;
  bool default_device = true;        // no device was set: the CPU, or the first GPU for engines
  std::string onnxruntime, kernels;  // as in tt_load_options; "" if not set
  std::function<void(const std::string&)> log;
};

class OnnxRuntimeBackend : public Backend {
 public:
  // Loads both graphs. Throws a bundle error if a graph does not load or differs from the contract,
  // a backend error if a library cannot be used, and an option error if a library does not exist.
  OnnxRuntimeBackend(const std::filesystem::path& encoder, const std::filesystem::path& step,
                     const Contract& contract, const Settings& settings);

  std::unique_ptr<Batch> batch(const SearchOptions& options,
                               std::int64_t start_token) const override;

  const std::string& version() const { return library_->version(); }
  const std::string& kernels() const { return kernels_; }

 private:
  std::shared_ptr<const OnnxRuntimeLibrary> library_;
  Contract contract_;
  std::string kernels_;
  std::int64_t spare_slots_ = 0;
  Owned<OrtSession> encoder_, step_;
};

}  // namespace translate_trt::runtime
