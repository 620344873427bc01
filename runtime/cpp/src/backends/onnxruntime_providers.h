// Execution providers of ONNX Runtime for GPUs.
#pragma once

#include <cstdint>
#include <string>

#include "backends/onnxruntime_library.h"
#include "backends/settings.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Largest N and K of a batch on TensorRT-RTX, whose provider reserves memory for the largest sizes.
inline constexpr std::int64_t kMaxRtxRows = 128, kMaxRtxBeams = 8;

// Sizes of a graph's inputs that TensorRT-RTX compiles for.
struct SizeRange {
  Sizes smallest, typical, largest;
};

// Ranges of both graphs. max_source, max_target: the longest source and translation.
SizeRange size_range(const Contract& contract, std::int64_t max_source, std::int64_t max_target);

// Appends the provider of a device to session options. Throws a backend error if it cannot be used.
//
// plugin: path of the plugin provider's library; if empty, $TRANSLATE_TRT_RTX_PROVIDER.
// inputs: of the graph.
void append_provider(const OnnxRuntimeLibrary& library, OrtSessionOptions& session,
                     const SessionDevice& device, const std::string& plugin, const Specs& inputs,
                     const SizeRange& range);

// Memory of the device, as ONNX Runtime describes it.
Owned<OrtMemoryInfo> memory_of(const OnnxRuntimeLibrary& library, const SessionDevice& device);

}  // namespace translate_trt::runtime
