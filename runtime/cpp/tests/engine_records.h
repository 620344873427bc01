// Engine records like those that export/engines/ writes to a manifest.
#pragma once

#include <filesystem>
#include <string>

#include "base/platform.h"
#include "bundle/engine_record.h"
#include "bundle/fields.h"
#include "tracing_engines.h"

namespace translate_trt::runtime {

// Makes an empty directory.
inline std::filesystem::path temporary_directory(const std::string& name) {
  static int number = 0;
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      (name + "-" + std::to_string(process_id()) + "-" + std::to_string(++number));
  std::filesystem::create_directories(path);
  return path;
}

inline Json engine_record_json(const Profiles& profiles = kTracedEncoder) {
  Json record = {{"package", "tensorrt"},
                 {"version", "11.0.1.29"},
                 {"system", system_name()},
                 {"compute_capabilities", {"8.6"}},
                 {"hardware_compatibility", "none"},
                 {"version_compatible", false},
                 {"weights_stripped", false},
                 {"layers", {{"MATRIX_MULTIPLY", 3}}},
                 {"tensors", {{"tokens", "int64 [?, 1]"}}},
                 {"options", {{"tf32", "false"}}}};
  for (const auto& [batch, source_length, slots, changes] : profiles) {
    static_cast<void>(changes);  // these engines have none
    const std::string index = std::to_string(record["profiles"].size());
    record["profiles"][index] = {{"batch", batch},
                                 {"source_length", source_length},
                                 {"slots", slots == 0 ? Json() : Json(slots)}};
  }
  return record;
}

// A target with the engine files `encoder` and `step`.
inline TargetEntry engine_target(const Contract& contract,
                                 const Json& encoder = engine_record_json(),
                                 const Json& step = engine_record_json(kTracedStep)) {
  TargetEntry target;
  target.name = "tensorrt-fp32";
  target.backend = "tensorrt";
  target.files = {{"encoder", {"encoder", "", 0}}, {"step", {"step", "", 0}}};
  target.contract = contract;
  target.engine = Json({{"encoder", encoder}, {"step", step}}).dump();
  return target;
}

}  // namespace translate_trt::runtime
