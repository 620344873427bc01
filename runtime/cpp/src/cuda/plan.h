// Plans: what a graph of the backend `cuda` launches at the exact sizes of a profile
// (export/plans/ writes them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "bundle/contract.h"
#include "bundle/profiles.h"
#include "bundle/safetensors.h"

namespace translate_trt::runtime {

inline constexpr const char* kPlanFormat = "1";

// A number, or an address: the distance in bytes from a base.
struct PlanValue {
  // Bases; those from kTensors on are the tensors of the plan.
  static constexpr std::uint32_t kNumber = 0, kWeights = 1, kArena = 2, kTensors = 3;

  std::uint32_t base = kNumber;
  std::uint64_t value = 0;
};

struct PlanKernel {
  struct Parameter {
    bool is_pointer;
    std::size_t size;  // in bytes, of the number or of what the pointer points to
  };
  struct Cubin {
    std::string tensor;   // of the weights' file
    unsigned int shared;  // bytes of dynamic shared memory
  };

  std::string entry;
  std::vector<Parameter> parameters;  // the last two are Triton's scratch pointers, which are null
  unsigned int threads;
  // Whether the kernel waits for the previous one itself (griddepcontrol.wait).
  bool dependent;
  std::map<int, Cubin> cubins;  // by compute capability, 86 for 8.6
};

// out[rows, columns] = a[rows, inner] b[inner, columns], in row-major order.
struct Matmul {
  struct Matrix {
    std::int64_t stride, step;  // elements between rows, and between the matrices of a batch
    bool transposed;            // stored as its transpose
    std::uint32_t alignment;    // of its address, in bytes
  };

  std::int64_t rows, columns, inner, batch;
  Matrix a, b, out;
  Type type, out_type;  // of a and b; of out and the bias
  bool has_bias, relu;
  std::uint32_t bias_alignment;
};

bool operator==(const Matmul& left, const Matmul& right);

struct KernelLaunch {
  std::size_t kernel;
  unsigned int grid[3];
  std::vector<PlanValue> arguments;  // without Triton's scratch pointers
};

struct MatmulLaunch {
  std::size_t matmul;
  PlanValue a, b, bias, out;
};

struct CopyLaunch {
  PlanValue target, source;
  std::uint64_t bytes;
};

struct FillLaunch {
  PlanValue target;
  int value;
  std::uint64_t bytes;
};

using PlanLaunch = std::variant<KernelLaunch, MatmulLaunch, CopyLaunch, FillLaunch>;

// The weights that plans use, in one block of memory.
struct WeightBlock {
  std::map<std::string, std::uint64_t> offsets;
  std::uint64_t size = 0;
};

struct Plan {
  std::vector<std::string> tensors;  // inputs and outputs of the graph; the bases from kTensors on
  std::vector<PlanKernel> kernels;
  std::vector<Matmul> matmuls;  // without repetitions
  std::vector<std::vector<PlanLaunch>> profiles;
  std::uint64_t arena = 0;  // bytes of the intermediate tensors of the largest profile
};

// Reads a plan. inputs, outputs: of the graph. profiles: of the manifest. beams: K, or 0 for an
// encoder. weights: also has the cubins. block: gets the weights that are not in it yet. Throws a
// bundle error if the plan is damaged, or if a launch leaves a tensor, a weight or the arena; what
// a kernel does with its arguments is known to its cubin alone.
Plan read_plan(const std::filesystem::path& path, const Specs& inputs, const Specs& outputs,
               const Profiles& profiles, std::int64_t beams, const SafeTensors& weights,
               WeightBlock& block);

}  // namespace translate_trt::runtime
