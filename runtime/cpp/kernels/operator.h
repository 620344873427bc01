// Declaration and execution of operators.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "first_error.h"
#include "kernels.h"
#include "operators.h"
#include "workspace.h"

namespace translate_trt {

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr auto kHalf = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
constexpr auto kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
constexpr auto kInt8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
constexpr auto kBool = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;

using Types = std::vector<ONNXTensorElementDataType>;
using Shape = std::vector<std::int64_t>;

// The declaration of an operator. declarations.cc, which is generated, has all of them.
struct Declaration {
  std::string name;
  Types inputs, outputs;
  std::vector<std::string> attributes;
  std::vector<std::string> axes;  // letters of each input's sizes; none if the kernel checks them
};

// An input or output by the name that ports.h, which is generated, gives to it.
template <class T>
struct Port {
  std::size_t index;
};

// Sizes by the letters of a declaration.
class Sizes {
 public:
  Sizes() { sizes_.fill(-1); }

  std::int64_t operator[](char letter) const {
    return sizes_.at(static_cast<std::size_t>(letter - 'A'));
  }
  std::size_t count(char letter) const { return static_cast<std::size_t>((*this)[letter]); }

  // Takes the sizes of a shape. Returns whether each letter has one size.
  bool match(const std::string& letters, const Shape& shape) {
    if (letters.size() != shape.size()) return false;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      std::int64_t& size = sizes_.at(static_cast<std::size_t>(letters[i] - 'A'));
      if (size >= 0 && size != shape[i]) return false;
      size = shape[i];
    }
    return true;
  }

 private:
  std::array<std::int64_t, 26> sizes_;
};

// A running operator: its inputs and outputs, and the executor of its kernel.
class OperatorContext final : public Executor {
 public:
  OperatorContext(OrtKernelContext* raw, WorkspacePool& workspaces, const Declaration& declaration)
      : context_(raw), workspaces_(workspaces), declaration_(declaration) {}

  // Checks the shapes of the inputs against the declaration.
  Sizes sizes() const {
    Sizes sizes;
    for (std::size_t i = 0; i < declaration_.axes.size(); ++i) {
      if (sizes.match(declaration_.axes[i], shape(i))) continue;
      throw std::invalid_argument("translate_trt: the shape of input " + std::to_string(i) +
                                  " of " + declaration_.name + " is not " + declaration_.axes[i] +
                                  " with the sizes of the inputs before it");
    }
    return sizes;
  }

  Shape shape(std::size_t input) const {
    return context_.GetInput(input).GetTensorTypeAndShapeInfo().GetShape();
  }

  template <class T>
  const T* input(std::size_t index) const {
    return context_.GetInput(index).GetTensorData<T>();
  }

  template <class T>
  const T* input(Port<T> port) const {
    return input<T>(port.index);
  }

  template <class T>
  T* output(std::size_t index, const Shape& shape) {
    return context_.GetOutput(index, shape).GetTensorMutableData<T>();
  }

  template <class T>
  T* output(Port<T> port, const Shape& shape) {
    return output<T>(port.index, shape);
  }

  // Runs tasks in the threads of the session. Rethrows the first exception once all tasks have
  // ended.
  void run(std::size_t count, const TaskFunction& task) override {
    if (count == 1) {
      task.run(task.closure, 0);
      return;
    }
    Tasks tasks = {task, {}};
    context_.ParallelFor(
        [](void* data, std::size_t index) {
          auto& given = *static_cast<Tasks*>(data);
          given.error.run([&] { given.task.run(given.task.closure, index); });
        },
        count, 0, &tasks);
    tasks.error.rethrow();
  }

  WorkspacePool& workspaces() override { return workspaces_; }

 private:
  struct Tasks {
    const TaskFunction& task;
    FirstError error;
  };

  Ort::KernelContext context_;
  WorkspacePool& workspaces_;
  const Declaration& declaration_;
};

inline void require(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(std::string("translate_trt: ") + what);
  }
}

inline std::size_t element_count(const Shape& shape, std::size_t first, std::size_t last) {
  std::size_t result = 1;
  for (auto i = first; i < last; ++i) {
    result *= static_cast<std::size_t>(shape[i]);
  }
  return result;
}

const std::vector<Declaration>& declarations();

// Looks up a declaration by name; throws if it is missing.
const Declaration& declaration(const std::string& name);

// Attributes and constant inputs of a node that a session creates.
class NodeInfo {
 public:
  NodeInfo(const OrtKernelInfo* info, const Declaration& declaration)
      : info_(info), declaration_(declaration) {}

  const Declaration& declaration() const { return declaration_; }

  template <class T>
  T attribute(const std::string& name) const {
    check(name);
    return info_.GetAttribute<T>(name.c_str());
  }

  template <class T>
  std::vector<T> attributes(const std::string& name) const {
    check(name);
    return info_.GetAttributes<T>(name.c_str());
  }

  // Throws with this message if the input is not constant.
  Ort::ConstValue constant(std::size_t input, const char* message) const {
    int is_constant = 0;
    const auto tensor = info_.GetTensorConstantInput(input, &is_constant);
    require(is_constant != 0, message);
    return tensor;
  }

 private:
  void check(const std::string& name) const {
    const auto& all = declaration_.attributes;
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw std::logic_error(declaration_.name + " declares no attribute " + name +
                             ": see export/fused_ops/declarations.py");
    }
  }

  const Ort::ConstKernelInfo info_;
  const Declaration& declaration_;
};

// The kernel of one node in a session. Node(kernels, variant, info) is made with the session;
// run(context) is called at every step, by several threads at once.
template <class Node>
class Compiled {
 public:
  Compiled(const Kernels& kernels, const typename Node::Variant& variant, const NodeInfo& info)
      : node_(kernels, variant, info), declaration_(info.declaration()) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    try {
      OperatorContext context(raw, *workspaces_, declaration_);
      node_.run(context);
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
    }
  }

 private:
  const Node node_;
  const Declaration& declaration_;
  const std::shared_ptr<WorkspacePool> workspaces_ = WorkspacePool::shared();
};

// An operator as ONNX Runtime asks for it.
template <class Node>
class Operator : public Ort::CustomOpBase<Operator<Node>, Compiled<Node>, true> {
 public:
  Operator(const Declaration& declaration, const Kernels& kernels, typename Node::Variant variant)
      : declaration_(declaration), kernels_(kernels), variant_(variant) {}

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info,
                              void** kernel) const noexcept {
    try {
      *kernel = new Compiled<Node>(kernels_, variant_, NodeInfo(info, declaration_));
      return nullptr;
    } catch (const std::exception& error) {
      return api.CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
    }
  }

  const char* GetName() const { return declaration_.name.c_str(); }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  std::size_t GetInputTypeCount() const { return declaration_.inputs.size(); }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return declaration_.inputs[i]; }
  std::size_t GetOutputTypeCount() const { return declaration_.outputs.size(); }
  ONNXTensorElementDataType GetOutputType(std::size_t i) const { return declaration_.outputs[i]; }

 private:
  const Declaration& declaration_;
  const Kernels& kernels_;
  const typename Node::Variant variant_;
};

struct NoVariant {};

// The operators that have kernels on this processor.
class Registry {
 public:
  explicit Registry(const Kernels& kernels) : kernels_(kernels), domain_("translate_trt") {}

  const Kernels& kernels() const { return kernels_; }
  const Ort::CustomOpDomain& domain() const { return domain_; }
  const std::string& names() const { return names_; }

  // ONNX Runtime keeps pointers to operators as long as a session lives, and sessions may live
  // until the process ends: operators are created once and never deleted.
  template <class Node>
  void add(const std::string& name, typename Node::Variant variant = {}) {
    domain_.Add(new Operator<Node>(declaration(name), kernels_, variant));
    names_ += name + '\n';
  }

 private:
  const Kernels& kernels_;
  Ort::CustomOpDomain domain_;
  std::string names_;
};

void add_attention_operators(Registry& registry);  // attention_operators.cc
void add_search_operators(Registry& registry);     // search_operators.cc

}  // namespace translate_trt
