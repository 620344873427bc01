// What a manifest says of engines, and whether they run on a machine (runtime/backends/engines.py).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bundle/manifest.h"
#include "engines/device_buffers.h"

namespace translate_trt::runtime {

// What one engine was built by, and for. Fields that only people read are checked and dropped.
struct EngineRecord {
  std::string package;  // "tensorrt" or "tensorrt_rtx"
  std::string version;  // of the package, such as "10.15.1.29"
  std::string system;   // such as "linux-x86_64"
  // Of GPUs, such as "8.6"; empty: TensorRT-RTX's portable engine, for all from 8.0 on.
  std::vector<std::string> compute_capabilities;
  std::string hardware_compatibility;  // "none", "same_compute_capability" or "ampere_plus"
  bool version_compatible;             // newer versions of the same major one load it, too
  bool weights_stripped;               // it runs once the weights of the ONNX file are put back
  Profiles profiles;                   // by index of TensorRT's optimization profiles
};

// By role, such as "step".
using EngineRecords = std::map<std::string, EngineRecord>;

// Of a target of the bundle. A bundle error if there are none, or one cannot be read.
EngineRecords read_engine_records(const TargetEntry& target, const std::filesystem::path& bundle);

// This operating system and processor, such as "linux-x86_64".
std::string system_name();

// Refuses an engine that this library does not run, or that was built by another version than
// `installed`, TensorRT's (such as "10.15.1"; the library does not report the build), or for
// another system. A bundle error, which says what to do.
void check_engine(const EngineRecord& record, const std::string& installed,
                  const std::string& system, const std::string& target,
                  const std::filesystem::path& bundle);

// The same for an engine that was built for other GPUs. gpu: its compute capability, such as "8.6".
void check_engine_gpu(const EngineRecord& record, const std::string& gpu, const std::string& target,
                      const std::filesystem::path& bundle);

}  // namespace translate_trt::runtime
