// Reader of ONNX files (onnx.proto of ONNX 1.16), as far as the executor needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../../kernels/node.h"

namespace translate_trt::runtime {

// Memory that starts at a cache line.
struct FreeMemory {
  void operator()(std::byte* data) const;
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

// Allocates that many bytes, uninitialized; even none have an address.
AlignedMemory allocate_aligned(std::size_t bytes);

struct OnnxAttribute {
  std::string name;
  float number = 0;
  std::vector<std::int64_t> integers;
};

struct OnnxNode {
  std::string domain, name;  // of the operator
  std::vector<std::string> inputs, outputs;
  std::vector<OnnxAttribute> attributes;
};

// A graph that is in order, but that the executor cannot run.
class NotRunnable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Memory of constants. Graphs that are read with one pool share equal constants, such as the
// embedding table of the encoder and the step.
class ConstantPool {
 public:
  // Returns memory with these contents, which belongs to the pool.
  void* keep(std::string_view bytes);

 private:
  std::multimap<std::size_t, AlignedMemory> memory_;  // by size
};

// A graph whose constants are in the file.
struct OnnxGraph {
  std::vector<OnnxNode> nodes;
  std::map<std::string, NodeTensor> constants;
  std::map<std::string, Element> inputs, outputs;  // types
};

// Reads the graph of a model. Throws NotRunnable, and std::runtime_error if the file cannot be read
// or is damaged.
OnnxGraph read_onnx(const std::filesystem::path& path, ConstantPool& pool);

}  // namespace translate_trt::runtime
