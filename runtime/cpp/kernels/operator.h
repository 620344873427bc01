// What all operators have in common: how they are declared, and how they run.
#pragma once

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

// One operator while it runs: its inputs and outputs, and what its kernel runs on.
class Call final : public Executor {
 public:
  Call(OrtKernelContext* context, WorkspacePool& workspaces)
      : context_(context), workspaces_(workspaces) {}

  Shape shape(std::size_t input) const {
    return context_.GetInput(input).GetTensorTypeAndShapeInfo().GetShape();
  }

  template <class T>
  const T* input(std::size_t index) const {
    return context_.GetInput(index).GetTensorData<T>();
  }

  template <class T>
  T* output(std::size_t index, const Shape& shape) {
    return context_.GetOutput(index, shape).GetTensorMutableData<T>();
  }

  // Over the threads of the session. What a task throws is thrown once all have ended.
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
};

inline void require(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(std::string("translate_trt: ") + what);
  }
}

inline std::size_t product(const Shape& shape, std::size_t first, std::size_t last) {
  std::size_t result = 1;
  for (auto i = first; i < last; ++i) {
    result *= static_cast<std::size_t>(shape[i]);
  }
  return result;
}

// A node of one operator in a session: `Node(kernels, info)` when the session is made, `run(call)`
// at every step, by several threads at once.
template <class Node>
class Compiled {
 public:
  Compiled(const Kernels& kernels, const typename Node::Variant& variant, Ort::ConstKernelInfo info)
      : node_(kernels, variant, info) {}

  OrtStatusPtr ComputeV2(OrtKernelContext* context) noexcept {
    try {
      Call call(context, *workspaces_);
      node_.run(call);
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
    }
  }

 private:
  const Node node_;
  const std::shared_ptr<WorkspacePool> workspaces_ = WorkspacePool::shared();
};

// The declaration of an operator.
template <class Node>
class Operator : public Ort::CustomOpBase<Operator<Node>, Compiled<Node>, true> {
 public:
  Operator(std::string name, const Kernels& kernels, typename Node::Variant variant = {})
      : name_(std::move(name)),
        kernels_(kernels),
        variant_(variant),
        inputs_(Node::inputs(variant)),
        outputs_(Node::outputs()) {}

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info,
                              void** kernel) const noexcept {
    try {
      *kernel = new Compiled<Node>(kernels_, variant_, Ort::ConstKernelInfo(info));
      return nullptr;
    } catch (const std::exception& error) {
      return api.CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
    }
  }

  const char* GetName() const { return name_.c_str(); }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  std::size_t GetInputTypeCount() const { return inputs_.size(); }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return inputs_[i]; }
  std::size_t GetOutputTypeCount() const { return outputs_.size(); }
  ONNXTensorElementDataType GetOutputType(std::size_t i) const { return outputs_[i]; }

 private:
  const std::string name_;
  const Kernels& kernels_;
  const typename Node::Variant variant_;
  const Types inputs_, outputs_;
};

struct NoVariant {};

// ONNX Runtime keeps pointers to operators as long as a session lives, and sessions may live until
// the process ends: they are made once and stay.
template <class Node>
void add(Ort::CustomOpDomain& domain, const std::string& name, const Kernels& kernels,
         typename Node::Variant variant = {}) {
  domain.Add(new Operator<Node>(name, kernels, variant));
}

// The operators of attention_operators.cc and of search_operators.cc.
void add_attention_operators(const Kernels& kernels, Ort::CustomOpDomain& domain);
void add_search_operators(const Kernels& kernels, Ort::CustomOpDomain& domain);

}  // namespace translate_trt
