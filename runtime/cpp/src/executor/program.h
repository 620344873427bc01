// A graph that runs without ONNX Runtime: every node has a compiled kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../../kernels/node.h"
#include "backends/tensor.h"
#include "executor/onnx_graph.h"
#include "executor/thread_pool.h"

namespace translate_trt::runtime {

// Memory of intermediate results, which grows as needed. Used by one thread at a time.
class Scratch {
 public:
  // Returns at least that many bytes, aligned to cache lines. A slot keeps its memory.
  std::byte* slot(std::size_t index, std::size_t bytes);

 private:
  struct Block {
    AlignedMemory data;
    std::size_t capacity = 0;
  };

  std::vector<Block> blocks_;
};

// A loaded graph. Thread-safe.
class Program {
 public:
  // functions: of the compiled kernels. Throws NotRunnable if a node has no kernel, and
  // std::runtime_error if the file cannot be read or is damaged.
  Program(const std::filesystem::path& path, const NodeFunctions& functions,
          std::shared_ptr<ConstantPool> constants, std::shared_ptr<ThreadPool> threads);

  // Types by name.
  const std::map<std::string, Element>& inputs() const { return graph_.inputs; }
  const std::map<std::string, Element>& outputs() const { return graph_.outputs; }

  // Binds the graph to arrays in host memory; an output without an array is not kept. Every call of
  // the returned function runs the graph, and throws std::runtime_error if a node fails.
  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs,
                             std::shared_ptr<Scratch> scratch) const;

 private:
  enum class Kind { kKernel, kUnsqueeze, kSqueeze, kShape };

  // A node. Unsqueeze and Squeeze make views of their input.
  struct Step {
    Kind kind = Kind::kKernel;
    std::shared_ptr<void> kernel;
    std::string name;                          // of the operator
    std::vector<std::size_t> inputs, outputs;  // values
    std::vector<std::int64_t> axes;  // to insert or drop, ascending; of Shape, from where to where

    bool is_view() const { return kind == Kind::kUnsqueeze || kind == Kind::kSqueeze; }
  };

  struct Value {
    NodeTensor tensor;     // of a constant, with data
    bool is_made = false;  // by a node, in memory of its own
    std::size_t slot = 0;  // of that memory in scratch memory
  };

  class Run;

  std::size_t index_of(const std::string& name);
  bool add_standard(const OnnxNode& node);
  void add_kernel(const OnnxNode& node, const NodeFunctions& functions);
  void assign_slots();

  const std::shared_ptr<ConstantPool> constants_;
  OnnxGraph graph_;
  const NodeFunctions& functions_;
  std::shared_ptr<ThreadPool> threads_;
  std::map<std::string, std::size_t> names_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
};

}  // namespace translate_trt::runtime
