// Loading of engines by the library itself, if it was built with -D TRANSLATE_TRT_TENSORRT=ON. The
// build links one of two definitions: tensorrt/tensorrt_device.cc, or tensorrt/without_tensorrt.cc,
// which throws.
#pragma once

#include <filesystem>
#include <memory>

#include "backends/backend.h"
#include "bundle/manifest.h"

namespace translate_trt::runtime {

struct Settings;

// Loads both engines of a target whose contract has fixed numbers of beams and slots. Throws a
// bundle error if an engine is damaged, differs from the contract, or was built for another
// machine, and a backend error if no GPU is usable.
std::unique_ptr<Backend> load_engines(const std::filesystem::path& bundle,
                                      const TargetEntry& target, const Settings& settings);

}  // namespace translate_trt::runtime
