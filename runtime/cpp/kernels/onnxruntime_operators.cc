// The operators as ONNX Runtime sees them, in the domain "translate_trt".

#include <array>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

// The library takes ONNX Runtime's API from its caller and links to nothing.
#define ORT_API_MANUAL_INIT
#include "exported.h"
#include "onnxruntime_cxx_api.h"
#include "operator.h"

namespace translate_trt {
namespace {

// Largest number of inputs of an operator.
constexpr std::size_t kMaxInputs = 32;

ONNXTensorElementDataType onnx_type(Element type) {
  return static_cast<ONNXTensorElementDataType>(type);
}

Shape shape_of(const Ort::TensorTypeAndShapeInfo& info) {
  Shape shape;
  for (const auto size : info.GetShape()) shape.push_back(size);
  return shape;
}

// A node that a session creates.
class SessionNode final : public NodeInfo {
 public:
  SessionNode(const OrtKernelInfo* info, const Declaration& declaration)
      : NodeInfo(declaration), info_(info) {}

  // Type of an input and, if it is constant, its shape and data.
  NodeTensor input(std::size_t index) const {
    const auto constant = read_constant(index);
    return {declaration().inputs[index], constant.shape, constant.data};
  }

 private:
  float read_number(const char* name) const override { return info_.GetAttribute<float>(name); }

  std::vector<std::int64_t> read_integers(const char* name) const override {
    try {
      return {info_.GetAttribute<std::int64_t>(name)};
    } catch (const Ort::Exception&) {
      return info_.GetAttributes<std::int64_t>(name);
    }
  }

  NodeTensor read_constant(std::size_t input) const override {
    int is_constant = 0;
    const auto tensor = info_.GetTensorConstantInput(input, &is_constant);
    if (is_constant == 0) return {};
    return {declaration().inputs[input], shape_of(tensor.GetTensorTypeAndShapeInfo()),
            const_cast<void*>(tensor.GetTensorRawData())};
  }

  const Ort::ConstKernelInfo info_;
};

// A kernel in a session.
class SessionKernel {
 public:
  SessionKernel(const Operator& made_for, const OrtKernelInfo* info) {
    const SessionNode node(info, made_for.declaration());
    kernel_ = made_for.make(node);
    for (std::size_t i = 0; i < made_for.declaration().inputs.size(); ++i) {
      inputs_.push_back(node.input(i));
    }
  }

  OrtStatusPtr ComputeV2(OrtKernelContext* raw) noexcept {
    try {
      Ort::KernelContext context(raw);
      std::array<NodeTensor, kMaxInputs> tensors;
      std::array<const NodeTensor*, kMaxInputs> inputs;
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const auto value = context.GetInput(i);
        tensors[i] = inputs_[i];
        // Each query of a shape allocates memory.
        if (tensors[i].data == nullptr) {
          tensors[i].shape = shape_of(value.GetTensorTypeAndShapeInfo());
        }
        tensors[i].data = const_cast<void*>(value.GetTensorRawData());
        inputs[i] = &tensors[i];
      }
      kernel_->run({&context, inputs.data(), output, run});
      return nullptr;
    } catch (const std::exception& error) {
      return Ort::GetApi().CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
    }
  }

 private:
  static void* output(void* self, std::size_t index, const Shape& shape) {
    auto& context = *static_cast<Ort::KernelContext*>(self);
    return context.GetOutput(index, shape.begin(), shape.size()).GetTensorMutableRawData();
  }

  static void run(void* self, std::size_t count, void (*task)(void*, std::size_t), void* data) {
    static_cast<Ort::KernelContext*>(self)->ParallelFor(task, count, 0, data);
  }

  std::unique_ptr<NodeKernel> kernel_;
  std::vector<NodeTensor> inputs_;  // types, and of constants the shapes
};

class SessionOperator : public Ort::CustomOpBase<SessionOperator, SessionKernel, true> {
 public:
  explicit SessionOperator(const Operator& one) : operator_(one), of_(one.declaration()) {
    require(of_.inputs.size() <= kMaxInputs, "an operator has too many inputs");
  }

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info,
                              void** kernel) const noexcept {
    try {
      *kernel = new SessionKernel(operator_, info);
      return nullptr;
    } catch (const std::exception& error) {
      return api.CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
    }
  }

  const char* GetName() const { return of_.name.c_str(); }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  std::size_t GetInputTypeCount() const { return of_.inputs.size(); }
  ONNXTensorElementDataType GetInputType(std::size_t i) const { return onnx_type(of_.inputs[i]); }
  std::size_t GetOutputTypeCount() const { return of_.outputs.size(); }
  ONNXTensorElementDataType GetOutputType(std::size_t i) const { return onnx_type(of_.outputs[i]); }

 private:
  const Operator& operator_;
  const Declaration& of_;
};

// Adds the operators that have kernels on this processor to a session's options.
void add_operators(OrtSessionOptions* options) {
  // ONNX Runtime keeps pointers to operators as long as a session lives, and sessions may live
  // until the process ends: operators are created once and never deleted.
  static const auto* const domain = [] {
    auto* made = new Ort::CustomOpDomain("translate_trt");
    for (const auto& one : host_operators().operators()) made->Add(new SessionOperator(*one));
    return made;
  }();
  Ort::UnownedSessionOptions(options).Add(*domain);
}

}  // namespace
}  // namespace translate_trt

// Called by ONNX Runtime (SessionOptions.register_custom_ops_library).
TRANSLATE_TRT_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                  const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    return nullptr;  // an older ONNX Runtime: it inlines the functions instead
  }
  try {
    Ort::InitApi(api);
    translate_trt::add_operators(options);
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
  return nullptr;
}
