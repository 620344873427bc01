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
  // functions: of the compiled kernels. Throws std::runtime_error if the file cannot be read or a
  // node has no kernel.
  Program(const std::filesystem::path& path, const NodeFunctions& functions,
          std::shared_ptr<ThreadPool> threads);

  // Types by name.
  const std::map<std::string, Element>& inputs() const { return graph_.inputs; }
  const std::map<std::string, Element>& outputs() const { return graph_.outputs; }

  // Binds the graph to arrays in host memory; an output without an array is not kept. Every call of
  // the returned function runs the graph, and throws std::runtime_error if a node fails.
  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs,
                             std::shared_ptr<Scratch> scratch) const;

 private:
  // A node; without a kernel, its output is a view of its input with other axes.
  struct Step {
    std::shared_ptr<void> kernel;
    std::string name;  // of the operator
    std::vector<std::size_t> inputs, outputs;  // values
    std::vector<std::int64_t> axes;            // of a view: those to insert, in ascending order
  };

  struct Value {
    NodeTensor tensor;      // of a constant, with data
    std::size_t slot = 0;   // in scratch memory
    bool is_made = false;   // by a node
  };

  class Run;

  std::size_t index_of(const std::string& name);
  void add_view(const OnnxNode& node);
  void add_kernel(const OnnxNode& node, const NodeFunctions& functions);
  void assign_slots();

  OnnxGraph graph_;
  const NodeFunctions& functions_;
  std::shared_ptr<ThreadPool> threads_;
  std::map<std::string, std::size_t> names_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
};

}  // namespace translate_trt::runtime
