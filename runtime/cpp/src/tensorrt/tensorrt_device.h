// The device that runs both engines of a target with TensorRT and CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "cuda/cuda_device.h"
#include "engines/device_buffers.h"
#include "tensorrt/tensorrt_engine.h"
#include "translate_trt/device.h"

namespace translate_trt::runtime {

// Both engines of a target on one GPU, shared by all devices.
struct TensorRtEngines {
  // Loads both files in the calling thread's current context, `gpu`. Throws a bundle error if an
  // engine does not load or differs from the contract.
  TensorRtEngines(std::shared_ptr<const CudaContext> gpu, Profiles encoder_profiles,
                  Profiles step_profiles, const std::filesystem::path& encoder,
                  const std::filesystem::path& step, const Contract& contract);

  std::shared_ptr<const CudaContext> gpu;
  Profiles encoder_profiles, step_profiles;
  TensorRtEngine encoder, step;

  // Size in bytes of the scratch memory of a device.
  std::size_t scratch_bytes() const;

  TensorRtEngine& engine(int role) { return role == TT_ENGINE_STEP ? step : encoder; }
  const Profiles& profiles(int role) const {
    return role == TT_ENGINE_STEP ? step_profiles : encoder_profiles;
  }
};

// A device with its own execution contexts, one per engine and profile: a context must not be
// shared between threads, and a captured graph depends on the shapes that its context has on the
// GPU. Contexts run one after another and share one scratch buffer.
class TensorRtDevice : public CudaDevice {
 public:
  explicit TensorRtDevice(std::shared_ptr<TensorRtEngines> engines);
  ~TensorRtDevice() override;

  // Throws a backend error if the engine rejects the inputs.
  void launch(const tt_launch& work) override;

 private:
  nvinfer1::IExecutionContext& context(int role, std::size_t profile);

  // Contexts are destroyed before the queue, whose memory they use, and before the engines.
  std::shared_ptr<TensorRtEngines> engines_;
  std::size_t scratch_bytes_;
  std::uint64_t scratch_;
  std::map<std::pair<int, std::size_t>, std::unique_ptr<nvinfer1::IExecutionContext>> contexts_;
};

}  // namespace translate_trt::runtime
