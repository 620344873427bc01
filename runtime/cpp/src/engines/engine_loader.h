// Loading of engines and plans by the library itself.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "bundle/engine_record.h"
#include "bundle/manifest.h"

namespace translate_trt::runtime {

struct Settings;

// Index of the GPU of these settings. Throws an error if they choose another device.
int gpu_of(const Settings& settings);

// The record of a role. Throws a bundle error if it or its file is missing.
const EngineRecord& record_of(const EngineRecords& records, const TargetEntry& target,
                              const std::string& role);

// Loads both engines of a target whose contract has fixed numbers of beams and slots. Throws a
// bundle error if an engine is damaged, differs from the contract, or was built for another
// machine, and a backend error if no GPU is usable. The build links one of two definitions:
// tensorrt/tensorrt_device.cc, with -D TRANSLATE_TRT_TENSORRT=ON, or tensorrt/without_tensorrt.cc,
// which throws.
std::unique_ptr<Backend> load_engines(const std::filesystem::path& bundle,
                                      const TargetEntry& target, const Settings& settings);

// Likewise loads both plans of a target of the backend `cuda` (cuda/plan_device.cc).
std::unique_ptr<Backend> load_plans(const std::filesystem::path& bundle, const TargetEntry& target,
                                    const Settings& settings);

}  // namespace translate_trt::runtime
