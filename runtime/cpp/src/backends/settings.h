// Settings of a backend.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backends/host_batch.h"

namespace translate_trt::runtime {

enum class Provider { kCpu, kCuda, kTensorRtRtx };

// Device of the sessions: "cpu", "cuda", "cuda:1", "tensorrt-rtx" or "tensorrt-rtx:1".
struct SessionDevice {
  Provider provider = Provider::kCpu;
  int index = 0;
  std::string name = "cpu";
};

// Parses a device name; throws an option error if it is invalid.
SessionDevice read_device(const std::string& name);

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

}  // namespace translate_trt::runtime
