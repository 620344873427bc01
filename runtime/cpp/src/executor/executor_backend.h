// Graphs that run on the compiled kernels alone.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/kernel_library.h"
#include "backends/settings.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Loads both graphs, if the executor can run them; else returns null and sets the reason. Throws a
// bundle error if a graph is damaged or differs from the contract.
std::unique_ptr<Backend> load_executor(const std::filesystem::path& encoder,
                                       const std::filesystem::path& step, const Contract& contract,
                                       const CompiledKernels& kernels, const Settings& settings,
                                       std::string& reason);

}  // namespace translate_trt::runtime
