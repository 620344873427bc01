// Compatibility of engine records with machines.

#include "check.h"
#include "decoder_shape.h"
#include "engine_records.h"

namespace translate_trt::runtime {

namespace {

// The error of a record with one field changed, or removed if there is no value.
std::string record_error(const std::string& name, const std::optional<Json>& value) {
  Json record = engine_record_json();
  if (value) {
    record[name] = *value;
  } else {
    record.erase(name);
  }
  TargetEntry target = engine_target({}, record);
  return thrown([&] { read_engine_records(target, "bundle"); });
}

void test_records_are_read() {
  const EngineRecords records = read_engine_records(engine_target({}), "bundle");
  CHECK(records.size() == 2 && records.count("encoder") == 1);
  const EngineRecord& step = records.at("step");
  CHECK(step.package == "tensorrt" && step.version == "11.0.1.29");
  CHECK(step.compute_capabilities == std::vector<std::string>({"8.6"}));
  CHECK(!step.version_compatible && !step.weights_stripped);
  CHECK(step.profiles.size() == 12 && name_of(step.profiles[4]) == "3x16 with 24 slots");
  const Profiles& encoder = records.at("encoder").profiles;
  CHECK(encoder.size() == 4 && name_of(encoder[1]) == "3x16");
}

void test_records_that_cannot_be_read() {
  const Json no_profiles = Json::object();
  const Json empty_profile = {{"0", {{"batch", 0}, {"source_length", 4}, {"slots", nullptr}}}};
  const Json no_slots = {{"0", {{"batch", 1}, {"source_length", 4}, {"slots", -1}}}};
  const std::tuple<const char*, std::optional<Json>, const char*> bad[] = {
      {"package", "onnx", "must be one of tensorrt, tensorrt_rtx, torch, cuda, not \"onnx\""},
      {"package", std::nullopt, "is missing"},
      {"version", 11, "must be a string"},
      {"hardware_compatibility", "some", "one of none, same_compute_capability, ampere_plus"},
      {"version_compatible", "yes", "must be true or false"},
      {"weights_stripped", nullptr, "must be true or false"},
      {"weights_stripped", std::nullopt, "is missing"},
      {"compute_capabilities", "8.6", "a list of strings"},
      {"profiles", no_profiles, "is empty"},
      {"profiles", empty_profile, "at least 1"},
      {"profiles", no_slots, "at least 0"},
      {"layers", Json({{"CAST", "many"}}), "whole number"},
      {"tensors", Json({{"tokens", 1}}), "must be a string"},
      {"options", 3, "must be an object"},
      {"gpu", "NVIDIA A10", "must be an object"},
      {"gpu", Json({{"name", "NVIDIA A10"}}), "is missing"}};
  const std::string manifest = (std::filesystem::path("bundle") / kManifestName).u8string();
  for (const auto& [name, value, part] : bad) {
    const std::string error = record_error(name, value);
    CHECK(error.rfind("TT_BUNDLE_ERROR " + manifest + ": the field ", 0) == 0);
    CHECK(contains(error, std::string("targets.tensorrt-fp32.engine.encoder.") + name));
    if (!contains(error, part)) std::cerr << error << "\n";
    CHECK(contains(error, part));
  }
  TargetEntry target = engine_target({});
  for (const char* none : {"null", "{}"}) {
    target.engine = none;
    CHECK(contains(thrown([&] { read_engine_records(target, "bundle"); }),
                   "targets.tensorrt-fp32.engine"));
  }
}

// The refusal of a record with one field changed.
std::string refusal(const std::string& name, const Json& value,
                    const std::string& installed = "11.0.1", const std::string& gpu = "8.6") {
  const GpuModel model = {"NVIDIA A10", gpu, 72};
  Json changed = engine_record_json();
  changed[name] = value;
  const EngineRecords records = read_engine_records(engine_target({}, changed), "bundle");
  return thrown([&] {
    check_engine(records.at("encoder"), installed, system_name(), "tensorrt-fp32", "bundle");
    check_engine_gpu(records.at("encoder"), model, "tensorrt-fp32", "bundle");
  });
}

void test_engines_that_are_refused() {
  const std::string rebuild =
      "translate-trt export CHECKPOINT --target tensorrt-fp32 --output bundle --force";
  CHECK(refusal("package", "tensorrt").empty());
  CHECK(refusal("version", "11.0.1.99.post1").empty());  // TensorRT itself rejects it
  const std::string rtx = refusal("package", "tensorrt_rtx");
  CHECK(contains(rtx,
                 "TT_BUNDLE_ERROR bundle: the engines of tensorrt-fp32 were made by "
                 "tensorrt_rtx 11.0.1.29, which this library does not run by itself"));
  CHECK(contains(rtx, "Translate with Python"));
  const std::string stripped = refusal("weights_stripped", true);
  CHECK(contains(stripped, "without weights") && contains(stripped, "--strip-weights: " + rebuild));
  const std::string compatible = refusal("version_compatible", true);
  CHECK(contains(compatible, "trust_code") && contains(compatible, rebuild));
  for (const char* installed : {"11.0.2", "11.1.1", "10.0.1", "12.0.1"}) {
    const std::string error = refusal("package", "tensorrt", installed);
    CHECK(contains(error, std::string("runs on TensorRT ") + installed) &&
          contains(error, rebuild));
  }
  for (const char* version : {"11.0", "", "eleven", "99999999999.0.1"}) {
    CHECK(contains(refusal("version", version), "does not load them"));
  }
  const std::string system = refusal("system", "plan9-amd64");
  CHECK(contains(system, "for plan9-amd64; this is " + system_name()) && contains(system, rebuild));
  const std::string gpu = refusal("package", "tensorrt", "11.0.1", "8.9");
  CHECK(contains(gpu,
                 "for compute capability 8.6; this GPU is NVIDIA A10 (compute capability 8.9, "
                 "72 SMs)"));
  CHECK(contains(gpu, rebuild));
}

void test_gpus_of_several_generations() {
  const std::string level = "hardware_compatibility";
  for (const char* gpu : {"8.0", "8.6", "9.0", "12.0"}) {
    CHECK(refusal(level, "ampere_plus", "11.0.1", gpu).empty());
  }
  CHECK(contains(refusal(level, "ampere_plus", "11.0.1", "7.5"), "8.0 and later"));
  CHECK(!refusal(level, "same_compute_capability", "11.0.1", "9.0").empty());
  CHECK(refusal("compute_capabilities", {"8.6", "9.0"}, "11.0.1", "9.0").empty());
  CHECK(contains(refusal("compute_capabilities", {"8.6", "9.0"}, "11.0.1", "8.9"), "8.6, 9.0;"));
}

void test_engines_of_one_gpu_model() {
  const Json own = {{"name", "NVIDIA A10"}, {"compute_capability", "8.6"}, {"multiprocessors", 72}};
  CHECK(refusal("gpu", own).empty());
  for (const auto& [name, value] :
       {std::pair<const char*, Json>("name", "NVIDIA A40"), {"multiprocessors", 84}}) {
    Json other = own;
    other[name] = value;
    const std::string error = refusal("gpu", other);
    CHECK(contains(error, "for NVIDIA A" + std::string(value == 84 ? "10" : "40") + " (compute"));
    CHECK(contains(error, "; this GPU is NVIDIA A10 (compute capability 8.6, 72 SMs). Rebuild"));
    CHECK(contains(error, "--hardware-compatible same_compute_capability"));
  }
}

}  // namespace

void test_engine_record() {
  test_records_are_read();
  test_records_that_cannot_be_read();
  test_engines_that_are_refused();
  test_gpus_of_several_generations();
  test_engines_of_one_gpu_model();
}

}  // namespace translate_trt::runtime
