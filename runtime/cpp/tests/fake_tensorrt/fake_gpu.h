// Fake GPUs and TensorRT engines behind the fake headers in this directory. Like a GPU, they run
// work only when it is waited for; unlike a GPU, they check every address and record violations of
// the API's rules.
#pragma once

#include <NvInfer.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

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

FakeEngine fake_engine(bool is_step, std::int32_t profiles);

// The state and history of the fake machine.
struct FakeMachine {
  int gpus = 2, capability_major = 8, capability_minor = 6;
  std::int32_t version = 110001;
  bool no_runtime = false;                     // creating a runtime fails
  std::map<std::string, cudaError_t> failing;  // error by function
  std::map<std::string, FakeEngine> engines;   // by file content

  std::map<std::string, int> calls;     // by function
  std::map<std::string, int> alive;     // objects not freed, by kind
  std::vector<std::string> violations;  // violations of the rules
  std::set<std::thread::id> threads;    // threads that have set a GPU
  std::map<int, int> runs;              // engine runs by GPU
  bool is_lost = false;                 // whether a GPU error was fatal

  // The sum of `alive`.
  int left() const;
};

FakeMachine& fake_machine();

}  // namespace translate_trt::runtime
