// Engines that the library loads by itself, where it was built with TensorRT
// (-D TRANSLATE_TRT_TENSORRT=ON). The build links one of two definitions: that of
// tensorrt/tensorrt_device.cc, or that of tensorrt/without_tensorrt.cc, which refuses.
#pragma once

#include <filesystem>
#include <memory>

#include "backends/backend.h"
#include "bundle/manifest.h"

namespace translate_trt::runtime {

struct Settings;

// A backend of both engines of a target, whose contract has a number of beams and of slots. A
// bundle error if an engine is damaged, not what the contract declares, or not for this machine; a
// backend error if there is no GPU that can be used.
std::unique_ptr<Backend> load_engines(const std::filesystem::path& bundle,
                                      const TargetEntry& target, const Settings& settings);

}  // namespace translate_trt::runtime
