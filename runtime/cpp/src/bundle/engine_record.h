// Engine records of a manifest, and whether their engines run on this machine
// (runtime/backends/engines.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bundle/manifest.h"
#include "bundle/profiles.h"

namespace translate_trt::runtime {

// Model of a GPU.
struct GpuModel {
  std::string name;                // such as "NVIDIA H100 PCIe"
  std::string compute_capability;  // such as "9.0"
  std::int64_t multiprocessors;    // number of SMs
};

// The build of an engine and the machines that it is for. Fields for human readers are only
// checked.
struct EngineRecord {
  std::string package;                            // such as "tensorrt_rtx"
  std::string version;                            // version of the package, such as "10.15.1.29"
  std::string system;                             // such as "linux-x86_64"
  std::vector<std::string> compute_capabilities;  // such as "8.6"
  std::string hardware_compatibility;  // "none", "same_compute_capability" or "ampere_plus"
  bool version_compatible;             // loads in newer versions of the same major version
  bool weights_stripped;               // needs its weights refitted from the ONNX file
  Profiles profiles;                   // by index of the optimization profile
  // The only model that the engine supports, unless a level of hardware compatibility was chosen.
  std::optional<GpuModel> gpu;
};

// By role, such as "step".
using EngineRecords = std::map<std::string, EngineRecord>;

// Reads the records of a target. Throws a bundle error if they are missing or invalid.
EngineRecords read_engine_records(const TargetEntry& target, const std::filesystem::path& bundle);

// Throws a bundle error, which says what to do, for an engine that this library does not support,
// that another version of TensorRT built, or that was built for another system. installed: version
// of TensorRT here, such as "10.15.1"; the library does not report the build number.
void check_engine(const EngineRecord& record, const std::string& installed,
                  const std::string& system, const std::string& target,
                  const std::filesystem::path& bundle);

// Throws a bundle error for an engine that was built for other GPUs than this one.
void check_engine_gpu(const EngineRecord& record, const GpuModel& gpu, const std::string& target,
                      const std::filesystem::path& bundle);

}  // namespace translate_trt::runtime
