#include "backends/onnxruntime_session.h"

#include <map>
#include <utility>
#include <vector>

#include "backends/graph_check.h"
#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

// ONNX Runtime's fusion of residual sum and LayerNormalization is slower on a CPU than the two
// operators (docs/adr/0006-operators-of-onnx-runtime.md).
constexpr const char* kDisabledOptimizers = "SkipLayerNormFusion";

ONNXTensorElementDataType element_type(Type type) {
  switch (type) {
    case Type::kInt64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case Type::kFloat32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case Type::kFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case Type::kBFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case Type::kBool:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

void register_kernels(const OnnxRuntimeLibrary& library, OrtSessionOptions& options,
                      const CompiledKernels& kernels) {
  try {
    library.check(library.api().RegisterCustomOpsLibrary_V2(
        &options, std::filesystem::u8path(kernels.path).c_str()));
  } catch (const OnnxRuntimeError& error) {
    throw backend_error("ONNX Runtime " + library.version() +
                        " cannot use the compiled kernels of " + kernels.path + ": " +
                        error.what() + ". Build them again with " +
                        "scripts/build_kernels.sh, or go without: the option kernels, or " +
                        "TRANSLATE_TRT_KERNELS, set to none");
  }
}

// Types of the inputs or outputs of a session, by name.
GraphTypes types_of(const OnnxRuntimeLibrary& library, const OrtSession& session, bool inputs) {
  const OrtApi& api = library.api();
  OrtAllocator* allocator = nullptr;
  library.check(api.GetAllocatorWithDefaultOptions(&allocator));
  std::size_t count = 0;
  library.check((inputs ? api.SessionGetInputCount : api.SessionGetOutputCount)(&session, &count));
  GraphTypes types;
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    const auto get_name = inputs ? api.SessionGetInputName : api.SessionGetOutputName;
    library.check(get_name(&session, i, allocator, &name));
    const std::string copied = name;
    library.check(api.AllocatorFree(allocator, name));
    const auto get_info = inputs ? api.SessionGetInputTypeInfo : api.SessionGetOutputTypeInfo;
    const auto info = library.make<OrtTypeInfo>(
        api.ReleaseTypeInfo, [&](OrtTypeInfo** made) { return get_info(&session, i, made); });
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    library.check(api.CastTypeInfoToTensorInfo(info.get(), &tensor));
    auto type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    if (tensor != nullptr) library.check(api.GetTensorElementType(tensor, &type));
    types[copied] = "another type";
    for (const Type known :
         {Type::kInt64, Type::kFloat32, Type::kFloat16, Type::kBFloat16, Type::kBool}) {
      if (element_type(known) == type) types[copied] = name_of(known);
    }
  }
  return types;
}

}  // namespace

SessionOptions make_session_options(const OnnxRuntimeLibrary& library, const Settings& settings,
                                    const CompiledKernels& kernels, const Specs& inputs,
                                    const SizeRange& range) {
  const OrtApi& api = library.api();
  auto options =
      library.make<OrtSessionOptions>(api.ReleaseSessionOptions, api.CreateSessionOptions);
  library.check(api.SetSessionLogSeverityLevel(options.get(), ORT_LOGGING_LEVEL_FATAL));
  add_setting(library, *options, "optimization.disable_specified_optimizers", kDisabledOptimizers);
  // On x86 without VNNI, use the exact kernel of 8-bit matmuls instead of the saturating one.
  add_setting(library, *options, "session.x64quantprecision", "1");
  // The calling thread works, too; all callers share the session's own threads.
  library.check(
      api.SetIntraOpNumThreads(options.get(), 1 + settings.workers * (settings.threads - 1)));
  if (settings.device.provider != Provider::kCpu) {
    append_provider(library, *options, settings.device, settings.provider, inputs, range);
    return options;
  }
  // Both features would keep the memory of the largest batch, which batches of other sizes hardly
  // reuse.
  library.check(api.DisableCpuMemArena(options.get()));
  library.check(api.DisableMemPattern(options.get()));
  if (!kernels.name.empty()) register_kernels(library, *options, kernels);
  return options;
}

void add_setting(const OnnxRuntimeLibrary& library, OrtSessionOptions& options, const char* name,
                 const char* value) {
  library.check(library.api().AddSessionConfigEntry(&options, name, value));
}

Owned<OrtSession> open_session(const OnnxRuntimeLibrary& library, const std::filesystem::path& path,
                               OrtSessionOptions& options, const SessionDevice& device,
                               const Specs& inputs, const Specs& outputs) {
  Owned<OrtSession> session;
  try {
    session = library.make<OrtSession>(library.api().ReleaseSession, [&](OrtSession** made) {
      return library.api().CreateSession(library.environment(), path.c_str(), &options, made);
    });
  } catch (const OnnxRuntimeError& error) {
    const bool is_rtx = device.provider == Provider::kTensorRtRtx;
    throw bundle_error("ONNX Runtime " + library.version() + " cannot load " + path.u8string() +
                       (is_rtx ? " on " + device.name : "") + ": " + error.what() +
                       (is_rtx ? ". TensorRT-RTX takes onnx-fp16 exported with --disable-pass "
                                 "fuse-multi-head."
                               : ". Export the bundle again, or take a newer ONNX Runtime."));
  }
  hold_to_contract(path, "inputs", inputs, types_of(library, *session, true), false);
  hold_to_contract(path, "outputs", outputs, types_of(library, *session, false), true);
  return session;
}

std::function<void()> bind_session(const OnnxRuntimeLibrary& library, OrtSession& session,
                                   const Arrays& inputs, const Arrays& outputs,
                                   const OrtRunOptions& options,
                                   const OrtMemoryInfo& device_memory) {
  const OrtApi& api = library.api();
  struct Bound {
    Arrays inputs, outputs;  // keeps the memory of `values` alive
    std::map<const Tensor*, Owned<OrtValue>> values;
    Owned<OrtIoBinding> binding;
  };
  const auto memory = library.make<OrtMemoryInfo>(api.ReleaseMemoryInfo, [&](OrtMemoryInfo** made) {
    return api.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, made);
  });
  const auto bound = std::make_shared<Bound>();
  bound->inputs = inputs, bound->outputs = outputs;
  bound->binding = library.make<OrtIoBinding>(api.ReleaseIoBinding, [&](OrtIoBinding** made) {
    return api.CreateIoBinding(&session, made);
  });
  const auto value_of = [&](const Array& array) {
    auto& value = bound->values[array.get()];
    if (value == nullptr) {
      value = library.make<OrtValue>(api.ReleaseValue, [&](OrtValue** made) {
        return api.CreateTensorWithDataAsOrtValue(
            array->device() == nullptr ? memory.get() : &device_memory, array->address(),
            array->bytes(), array->shape().data(), array->shape().size(),
            element_type(array->type()), made);
      });
    }
    return value.get();
  };
  for (const auto& [name, array] : inputs) {
    library.check(api.BindInput(bound->binding.get(), name.c_str(), value_of(array)));
  }
  for (const auto& [name, array] : outputs) {
    library.check(api.BindOutput(bound->binding.get(), name.c_str(), value_of(array)));
  }
  return [bound, &library, &session, &options] {
    library.check(library.api().RunWithBinding(&session, &options, bound->binding.get()));
  };
}

}  // namespace translate_trt::runtime
