// GPUs and TensorRT's engines that the host plays, behind the fake headers beside this file. As a
// GPU, they do nothing before it is waited for; unlike one, they check every address, and say what
// a program does that a GPU would not forgive.
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
  std::string alias = {};  // input that an output is written over
};

// A tracing engine (tracing_engines.h).
struct FakeEngine {
  bool is_step = false;
  std::map<std::string, FakeTensor> tensors;
  std::int32_t profiles = 1;
  std::int64_t scratch_bytes = 1000;
  std::set<std::string> refused;  // inputs of which it takes no shape
  bool no_context = false;        // it makes none
  bool broken = false;            // it does not run
  bool crashes = false;           // it runs into an error that the GPU does not survive
};

FakeEngine fake_engine(bool is_step, std::int32_t profiles);

// All that there is, and what happened.
struct FakeMachine {
  int gpus = 2, capability_major = 8, capability_minor = 6;
  std::int32_t version = 110001;
  bool no_runtime = false;                     // TensorRT cannot be used at all
  std::map<std::string, cudaError_t> failing;  // by function
  std::map<std::string, FakeEngine> engines;   // by content of the file that has them

  std::map<std::string, int> calls;     // by function
  std::map<std::string, int> alive;     // by kind: what has been made and not freed
  std::vector<std::string> violations;  // what a GPU would not forgive
  std::set<std::thread::id> threads;    // that have chosen a GPU
  std::map<int, int> runs;              // of engines, by GPU
  bool is_lost = false;                 // it has met an error that it does not survive

  // The sum of `alive`.
  int left() const;
};

FakeMachine& fake_machine();

}  // namespace translate_trt::runtime
