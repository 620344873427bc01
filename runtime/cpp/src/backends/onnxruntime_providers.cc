#include "backends/onnxruntime_providers.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "backends/host_batch.h"
#include "backends/onnxruntime_plugins.h"
#include "base/errors.h"
#include "base/platform.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRtxVariable = "TRANSLATE_TRT_RTX_PROVIDER";
constexpr const char* kRtxProvider = "NvTensorRTRTXExecutionProvider";
// Its package lacks a run path: these libraries of its folder must be loaded before it.
constexpr const char* kRtxNeeds[] = {"libcudart.so.", "libtensorrt_rtx.so.",
                                     "libtensorrt_onnxparser_rtx.so."};

using ProviderOptions = std::map<std::string, std::string>;

struct OptionLists {
  std::vector<const char*> names, values;

  explicit OptionLists(const ProviderOptions& options) {
    for (const auto& [name, value] : options) {
      names.push_back(name.c_str());
      values.push_back(value.c_str());
    }
  }
};

void append_cuda(const OnnxRuntimeLibrary& library, OrtSessionOptions& session, int gpu) {
  const OrtApi& api = library.api();
  const ProviderOptions given = {
      {"device_id", std::to_string(gpu)},
      {"use_tf32", "0"},  // a target in FP32 computes in FP32
      {"arena_extend_strategy", "kSameAsRequested"},
  };
  const OptionLists lists(given);
  const auto options = library.make<OrtCUDAProviderOptionsV2>(api.ReleaseCUDAProviderOptions,
                                                              api.CreateCUDAProviderOptions);
  library.check(api.UpdateCUDAProviderOptions(options.get(), lists.names.data(),
                                              lists.values.data(), lists.names.size()));
  library.check(api.SessionOptionsAppendExecutionProvider_CUDA_V2(&session, options.get()));
}

// The shapes of inputs as the provider's options have them, such as "tokens:1x4,slots:1x4".
std::string shapes_of(const Specs& inputs, const Sizes& sizes) {
  std::vector<std::string> shapes;
  for (const TensorSpec& spec : inputs) {
    std::vector<std::string> axes;
    for (const std::int64_t axis : spec.sized(sizes)) axes.push_back(std::to_string(axis));
    shapes.push_back(spec.name + ":" + join(axes, "x"));
  }
  return join(shapes, ",");
}

std::string plugin_path(const std::string& chosen) {
  const std::string given = chosen.empty() ? environment_value(kRtxVariable) : chosen;
  const std::string remedy =
      std::string(" It is libonnxruntime_providers_nv_tensorrt_rtx.so in the package ") +
      "onnxruntime-ep-nv-tensorrt-rtx, whose function get_library_path() returns the path.";
  if (given.empty()) {
    throw option_error(std::string("device is tensorrt-rtx, which needs the library of its ") +
                       "provider: the option provider, or " + kRtxVariable + "." + remedy);
  }
  std::error_code error;
  if (!fs::is_regular_file(fs::u8path(given), error)) {
    throw option_error((chosen.empty() ? std::string(kRtxVariable) : std::string("provider")) +
                       " is " + in_quotes(given) + ", and there is no such file." + remedy);
  }
  return fs::absolute(fs::u8path(given)).u8string();
}

void load_neighbours(const fs::path& plugin) {
  for (const std::string prefix : kRtxNeeds) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(plugin.parent_path(), error)) {
      if (entry.path().filename().u8string().rfind(prefix, 0) != 0) continue;
      try {
        open_library(entry.path().u8string());
      } catch (const std::runtime_error&) {
        // ONNX Runtime reports what the plugin itself lacks.
      }
    }
  }
}

const ProviderDevice* rtx_device(const OnnxRuntimeLibrary& library, int index) {
  const auto list = library.later<ProviderDevices>(kPluginApiVersion, kProviderDevices);
  const auto name_of = library.later<ProviderName>(kPluginApiVersion, kProviderName);
  const ProviderDevice* const* devices = nullptr;
  std::size_t count = 0;
  library.check(list(library.environment(), &devices, &count));
  int found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::string(name_of(devices[i])) == kRtxProvider && found++ == index) return devices[i];
  }
  throw OnnxRuntimeError("it found " + std::to_string(found) +
                         " GPUs that it supports (compute capability 8.6, 8.9, 12.0 or newer)");
}

void append_rtx(const OnnxRuntimeLibrary& library, OrtSessionOptions& session, int gpu,
                const std::string& plugin, const Specs& inputs, const SizeRange& range) {
  const auto append = library.later<AppendProvider>(kPluginApiVersion, kAppendProvider);
  if (append == nullptr) {
    throw OnnxRuntimeError("the provider needs 1.24 or newer");
  }
  const std::string path = plugin_path(plugin);
  load_neighbours(fs::u8path(path));
  library.register_provider(kRtxProvider, path);
  const ProviderOptions given = {
      {"device_id", std::to_string(gpu)},
      {"nv_profile_min_shapes", shapes_of(inputs, range.smallest)},
      {"nv_profile_opt_shapes", shapes_of(inputs, range.typical)},
      {"nv_profile_max_shapes", shapes_of(inputs, range.largest)},
  };
  const OptionLists lists(given);
  const ProviderDevice* device = rtx_device(library, gpu);
  library.check(append(&session, library.environment(), &device, 1, lists.names.data(),
                       lists.values.data(), lists.names.size()));
  // A node on the CPU would copy caches to the host at every step.
  library.check(
      library.api().AddSessionConfigEntry(&session, "session.disable_cpu_ep_fallback", "1"));
}

}  // namespace

SizeRange size_range(const Contract& contract, std::int64_t max_source, std::int64_t max_target) {
  const ArraySizes buckets = {0, true, max_source};
  const auto sizes = [&](std::int64_t rows, std::int64_t beams, std::int64_t source,
                         std::int64_t slots) {
    Sizes made;
    made.n = rows, made.k = beams, made.p = slots;
    return contract.with_source(made, source);
  };
  const std::int64_t most_slots = buckets.slots(kMaxRtxBeams * max_target);
  return {
      sizes(1, 1, std::min(buckets.source(1), max_source), buckets.slots(1)),
      sizes(32, 4, std::min<std::int64_t>(32, max_source), std::min<std::int64_t>(64, most_slots)),
      sizes(kMaxRtxRows, kMaxRtxBeams, max_source, most_slots)};
}

void append_provider(const OnnxRuntimeLibrary& library, OrtSessionOptions& session,
                     const SessionDevice& device, const std::string& plugin, const Specs& inputs,
                     const SizeRange& range) {
  const bool is_rtx = device.provider == Provider::kTensorRtRtx;
  try {
    if (is_rtx) {
      append_rtx(library, session, device.index, plugin, inputs, range);
    } else if (device.provider == Provider::kCuda) {
      append_cuda(library, session, device.index);
    }
  } catch (const OnnxRuntimeError& error) {
    std::string reason = error.what();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    reason.erase(reason.find_last_not_of(". ") + 1);
    throw backend_error(
        "ONNX Runtime " + library.version() + " cannot use the device " + device.name + ": " +
        reason +
        (is_rtx ? ". It takes ONNX Runtime 1.24 or newer, the package "
                  "onnxruntime-ep-nv-tensorrt-rtx, and its folder in LD_LIBRARY_PATH; or leave "
                  "device out."
                : ". It takes a build with that provider (the package onnxruntime-gpu), and CUDA "
                  "and cuDNN of its version in LD_LIBRARY_PATH; or leave device out."));
  }
}

Owned<OrtMemoryInfo> memory_of(const OnnxRuntimeLibrary& library, const SessionDevice& device) {
  const OrtApi& api = library.api();
  return library.make<OrtMemoryInfo>(api.ReleaseMemoryInfo, [&](OrtMemoryInfo** made) {
    switch (device.provider) {
      case Provider::kCuda:
        return api.CreateMemoryInfo("Cuda", OrtDeviceAllocator, device.index, OrtMemTypeDefault,
                                    made);
      case Provider::kTensorRtRtx:
        return library.later<CreateMemoryInfo>(kPluginApiVersion, kCreateMemoryInfo)(
            "translate_trt", kGpuDevice, kNvidia, device.index, kDefaultMemory, 0,
            OrtDeviceAllocator, made);
      default:
        return api.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, made);
    }
  });
}

}  // namespace translate_trt::runtime
