// Loading of graphs for ONNX Runtime. The build links one of two definitions: that of
// onnxruntime_backend.cc or, with -D TRANSLATE_TRT_ONNXRUNTIME=OFF, of without_onnxruntime.cc,
// which throws.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/kernel_library.h"
#include "backends/settings.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Loads both graphs, and sets the version of ONNX Runtime. reason: why the executor does not run
// them. Throws a bundle error if a graph does not load or differs from the contract, and a backend
// error if ONNX Runtime or the kernels cannot be used.
std::unique_ptr<Backend> load_onnxruntime(const std::filesystem::path& encoder,
                                          const std::filesystem::path& step,
                                          const Contract& contract, const CompiledKernels& kernels,
                                          const Settings& settings, const std::string& reason,
                                          std::string& version);

}  // namespace translate_trt::runtime
