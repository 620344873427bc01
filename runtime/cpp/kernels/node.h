// Interface of the operators to what runs them: ONNX Runtime (onnxruntime_operators.cc), or the
// executor of libtranslate_trt. The two libraries have C++ runtimes of their own, so it consists of
// plain data and functions, and errors are texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

namespace translate_trt {

// Types of elements, with ONNX's numbers.
enum class Element : std::int32_t {
  kFloat = 1,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kHalf = 10,
};

// Bytes of an element; 0 of a type that has no number above.
inline std::size_t element_size(Element type) {
  switch (type) {
    case Element::kInt8:
    case Element::kBool:
      return 1;
    case Element::kHalf:
      return 2;
    case Element::kFloat:
    case Element::kInt32:
      return 4;
    case Element::kInt64:
      return 8;
  }
  return 0;
}

// The sizes of a tensor's axes.
class Shape {
 public:
  static constexpr std::size_t kMaxAxes = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) {
    for (const auto size : sizes) push_back(size);
  }

  std::size_t size() const { return axes_; }
  bool empty() const { return axes_ == 0; }
  const std::int64_t* begin() const { return sizes_; }
  const std::int64_t* end() const { return sizes_ + axes_; }
  std::int64_t operator[](std::size_t axis) const { return sizes_[axis]; }
  std::int64_t at(std::size_t axis) const {
    if (axis >= axes_) throw std::invalid_argument("translate_trt: a tensor has too few axes");
    return sizes_[axis];
  }
  std::int64_t& back() {
    at(0);
    return sizes_[axes_ - 1];
  }
  std::int64_t back() const { return const_cast<Shape&>(*this).back(); }
  void push_back(std::int64_t size) {
    if (axes_ == kMaxAxes) throw std::invalid_argument("translate_trt: a tensor has too many axes");
    sizes_[axes_++] = size;
  }

  bool operator==(const Shape& other) const {
    if (axes_ != other.axes_) return false;
    for (std::size_t i = 0; i < axes_; ++i) {
      if (sizes_[i] != other.sizes_[i]) return false;
    }
    return true;
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }

  // Number of elements of the axes from `first` to before `last`.
  std::size_t count(std::size_t first, std::size_t last) const {
    std::size_t result = 1;
    for (auto i = first; i < last; ++i) result *= static_cast<std::size_t>(sizes_[i]);
    return result;
  }
  std::size_t count() const { return count(0, axes_); }

 private:
  std::size_t axes_ = 0;
  std::int64_t sizes_[kMaxAxes] = {};
};

struct NodeTensor {
  Element type = Element::kFloat;
  Shape shape;
  void* data = nullptr;
};

// An attribute of a node: a number, or integers.
struct NodeAttribute {
  const char* name;
  float number;
  const std::int64_t* integers;
  std::size_t count;
};

// A node of a graph.
struct NodeDescription {
  const char* name;          // of the operator
  const NodeTensor* inputs;  // those that are not constant have no data
  std::size_t input_count;
  Element* outputs;  // types, which `make` writes
  std::size_t output_count;
  const NodeAttribute* attributes;
  std::size_t attribute_count;
};

// What a running node works with.
struct NodeHost {
  void* self;
  const NodeTensor* const* inputs;
  // Memory of an output, valid until the next node runs; null if there is none.
  void* (*output)(void* self, std::size_t index, const Shape& shape);
  // Runs task(data, 0), ..., task(data, count - 1) once each, in any order and possibly in
  // parallel.
  void (*run)(void* self, std::size_t count, void (*task)(void*, std::size_t), void* data);
};

// The functions for an executor. An error is the text of a message that is valid until the next
// call from the same thread.
struct NodeFunctions {
  // Returns a kernel; null, without an error, if the operator has none on this processor. Constants
  // must stay valid as long as the kernel.
  void* (*make)(const NodeDescription& node, const char** error);
  // Runs a kernel, possibly in several threads at once. Returns the error, or null.
  const char* (*run)(const void* kernel, const NodeHost& host);
  void (*destroy)(void* kernel);
};

}  // namespace translate_trt
