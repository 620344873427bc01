#include "engines/engine_loader.h"

#include <algorithm>

#include "backends/settings.h"
#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

int gpu_of(const Settings& settings) {
  const SessionDevice& device = settings.device;
  if (settings.default_device) return 0;
  if (device.provider == Provider::kCuda) return device.index;
  if (device.provider == Provider::kCpu) {
    throw backend_error(
        "this target runs on a GPU alone; choose an onnx target to run on the CPU.");
  }
  throw option_error("device is " + in_quotes(device.name) +
                     ", which is an execution provider of ONNX Runtime; for engines, write cuda or "
                     "cuda:1.");
}

const EngineRecord& record_of(const EngineRecords& records, const TargetEntry& target,
                              const std::string& role) {
  const auto found = records.find(role);
  const bool has_file = std::any_of(target.files.begin(), target.files.end(),
                                    [&](const auto& file) { return file.first == role; });
  if (found != records.end() && has_file) return found->second;
  throw bundle_error("the target has no engine of the " + role + "; export the bundle again.");
}

}  // namespace translate_trt::runtime
