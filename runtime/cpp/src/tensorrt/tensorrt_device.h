// A device that runs both engines of a target by TensorRT and CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "engines/device_buffers.h"
#include "tensorrt/cuda_queue.h"
#include "tensorrt/tensorrt_engine.h"
#include "translate_trt/device.h"

namespace translate_trt::runtime {

// Both engines of a target, on one GPU. Devices share them.
struct TensorRtEngines {
  // Loads both files on the calling thread's GPU, whose number is `gpu`. A bundle error if one does
  // not load, or is another than the contract declares.
  TensorRtEngines(int gpu, Profiles profiles, const std::filesystem::path& encoder,
                  const std::filesystem::path& step, const Contract& contract);

  int gpu;
  Profiles profiles;  // of both
  TensorRtEngine encoder, step;

  TensorRtEngine& engine(int role) { return role == TT_ENGINE_STEP ? step : encoder; }
};

// A queue with contexts of its own. A context is one thread's, and a captured graph is one
// context's (what a context keeps on the GPU depends on its shapes): each profile has one. They run
// one after another, so that one piece of scratch memory serves all.
class TensorRtDevice {
 public:
  explicit TensorRtDevice(std::shared_ptr<TensorRtEngines> engines);
  ~TensorRtDevice();
  TensorRtDevice(const TensorRtDevice&) = delete;
  TensorRtDevice& operator=(const TensorRtDevice&) = delete;

  CudaQueue& queue() { return queue_; }

  // Asks for a run of an engine. A backend error if the engine refuses.
  void launch(const tt_launch& work);

 private:
  nvinfer1::IExecutionContext& context(int role, std::size_t profile);

  // Contexts go before the queue's memory, which they work in, and before the engines.
  std::shared_ptr<TensorRtEngines> engines_;
  CudaQueue queue_;
  std::size_t scratch_bytes_;
  std::uint64_t scratch_;
  std::map<std::pair<int, std::size_t>, std::unique_ptr<nvinfer1::IExecutionContext>> contexts_;
};

// Functions of TensorRtDevice. Their context is a std::shared_ptr<TensorRtEngines>, which must live
// until the last device is opened.
tt_device_functions tensorrt_functions(std::shared_ptr<TensorRtEngines>& engines);

}  // namespace translate_trt::runtime
