// A fake TensorRT behind the fake header in this directory, on the fake CUDA driver. Its
// engines check every address and report violations of the API's rules.
#pragma once

#include <NvInfer.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "bundle/contract.h"

namespace translate_trt::runtime {

struct FakeTensor {
  nvinfer1::TensorIOMode mode;
  nvinfer1::DataType type;
  nvinfer1::TensorLocation location = nvinfer1::TensorLocation::kDEVICE;
  std::string alias = {};  // input that an output aliases
};

// A tracing engine (tracing_engines.h).
struct FakeEngine {
  bool is_step = false;
  std::map<std::string, FakeTensor> tensors;
  std::int32_t profiles = 1;
  std::int64_t scratch_bytes = 1000;
  std::set<std::string> refused;  // inputs whose shapes it rejects
  bool no_context = false;        // creating a context fails
  bool broken = false;            // enqueueing fails
  bool crashes = false;           // running it makes the GPU unusable
};

// Settings and history of the fake TensorRT. Its objects count in `FakeCuda::alive`.
struct FakeTensorRt {
  std::int32_t version = 110001;
  bool no_runtime = false;                    // creating a runtime fails
  std::map<std::string, FakeEngine> engines;  // by file content

  std::map<int, int> runs;  // engine runs by GPU
};

FakeTensorRt& fake_tensorrt();

// Forgets settings and history, and adds the engines `encoder` and `step`.
void switch_tensorrt_on();

}  // namespace translate_trt::runtime
