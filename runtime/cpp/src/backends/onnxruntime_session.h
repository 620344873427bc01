// ONNX Runtime sessions: creation, check against the contract, and binding to arrays.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "backends/kernel_library.h"
#include "backends/onnxruntime_backend.h"
#include "backends/onnxruntime_library.h"
#include "backends/tensor.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

using SessionOptions = Owned<OrtSessionOptions>;

// Session options of a graph. inputs: of the graph. range: sizes of its inputs.
SessionOptions make_session_options(const OnnxRuntimeLibrary& library, const Settings& settings,
                                    const CompiledKernels& kernels, const Specs& inputs,
                                    const SizeRange& range);

void add_setting(const OnnxRuntimeLibrary& library, OrtSessionOptions& options, const char* name,
                 const char* value);

// Opens a session. device: of its options.
Owned<OrtSession> open_session(const OnnxRuntimeLibrary& library, const std::filesystem::path& path,
                               OrtSessionOptions& options, const SessionDevice& device,
                               const Specs& inputs, const Specs& outputs);

// Binds a session to arrays, which the returned function keeps alive. Calling it runs the session
// and waits until its outputs are written. device_memory: memory of the arrays on a device.
std::function<void()> bind_session(const OnnxRuntimeLibrary& library, OrtSession& session,
                                   const Arrays& inputs, const Arrays& outputs,
                                   const OrtRunOptions& options,
                                   const OrtMemoryInfo& device_memory);

}  // namespace translate_trt::runtime
