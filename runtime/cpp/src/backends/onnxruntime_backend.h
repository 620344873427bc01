// ONNX Runtime as a backend.
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

// Where sessions run: "cpu", "cuda", "cuda:1", "tensorrt", "tensorrt:1".
struct SessionDevice {
  Provider provider = Provider::kCpu;
  int index = 0;
  std::string name = "cpu";
};

// An option error if it is none of these.
SessionDevice read_device(const std::string& name);

// How to run.
struct Settings {
  int threads = 1;  // within one operation of a batch
  int workers = 1;  // batches that run at once
  SessionDevice device;
  bool default_device = true;        // none was chosen: the processor, or the first GPU for engines
  std::string onnxruntime, kernels;  // of tt_load_options; "": not given
  std::function<void(const std::string&)> log;
};

class OnnxRuntimeBackend : public Backend {
 public:
  // Loads both graphs. A bundle error if one does not load, or has not the inputs and outputs of
  // the contract; a backend error if a library cannot be used; an option error if one does not
  // exist.
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
