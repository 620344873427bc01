#include "bundle/engine_record.h"

#include <algorithm>
#include <cstddef>

#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

namespace {

using Numbers = std::vector<int>;

const std::vector<std::string> kPackages = {"tensorrt", "tensorrt_rtx", "torch", "cuda"};
const std::vector<std::string> kHardwareLevels = {"none", "same_compute_capability", "ampere_plus"};

// Oldest GPU of ampere_plus engines.
const Numbers kAmpere = {8, 0};

std::string read_choice(const Fields& fields, const std::string& name,
                        const std::vector<std::string>& choices) {
  const std::string& value = fields.text(name);
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    fields.fail(name, "one of " + join(choices, ", "), fields.get(name));
  }
  return value;
}

GpuModel read_gpu(const Fields& fields) {
  return {fields.text("name"), fields.text("compute_capability"),
          fields.integer("multiprocessors", 1)};
}

ChangeSizes read_changes(const Fields& fields) {
  return {fields.integer("marked_tokens", 0), fields.integer("sampled_ranks", 0),
          fields.integer("tail_tokens", 0), fields.integer("constraint_tokens", 0)};
}

EngineRecord read_record(const Fields& fields) {
  EngineRecord record;
  record.hardware_compatibility = read_choice(fields, "hardware_compatibility", kHardwareLevels);
  record.package = read_choice(fields, "package", kPackages);
  record.version = fields.text("version");
  record.system = fields.text("system");
  record.compute_capabilities = fields.texts("compute_capabilities");
  record.version_compatible = fields.boolean("version_compatible");
  record.weights_stripped = fields.boolean("weights_stripped");
  for (const auto& [index, profile] : fields.object("profiles").objects(true)) {
    record.profiles.push_back({profile.integer("batch", 1), profile.integer("source_length", 1),
                               profile.is_null("slots") ? 0 : profile.integer("slots", 0),
                               profile.values().contains("changes")
                                   ? read_changes(profile.object("changes"))
                                   : ChangeSizes()});
  }
  fields.object("layers").all_integers(0);
  fields.object("tensors").check_texts();
  fields.object("options").check_texts();
  if (fields.values().contains("gpu")) record.gpu = read_gpu(fields.object("gpu"));
  return record;
}

// The leading numbers of a version: "10.14.1.48.post1" is (10, 14, 1, 48) (runtime/version.py).
Numbers version_numbers(const std::string& text) {
  Numbers numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() <= 8 &&
                           part.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number) break;
    numbers.push_back(std::stoi(part));
    begin = end + 1;
  }
  return numbers;
}

// Compares the components that the library reports: TensorRT itself rejects an engine of another
// build.
bool version_fits(const EngineRecord& record, const std::string& installed) {
  const Numbers here = version_numbers(installed);
  Numbers made = version_numbers(record.version);
  made.resize(std::min(made.size(), here.size()));
  return !made.empty() && made == here;
}

bool for_all_from_ampere(const EngineRecord& record) {
  return record.hardware_compatibility == "ampere_plus";
}

bool same_model(const GpuModel& left, const GpuModel& right) {
  return left.name == right.name && left.compute_capability == right.compute_capability &&
         left.multiprocessors == right.multiprocessors;
}

bool gpu_fits(const EngineRecord& record, const GpuModel& gpu) {
  if (for_all_from_ampere(record)) return version_numbers(gpu.compute_capability) >= kAmpere;
  const std::vector<std::string>& listed = record.compute_capabilities;
  return std::find(listed.begin(), listed.end(), gpu.compute_capability) != listed.end() &&
         (!record.gpu || same_model(*record.gpu, gpu));
}

std::string description(const GpuModel& gpu) {
  return gpu.name + " (compute capability " + gpu.compute_capability + ", " +
         std::to_string(gpu.multiprocessors) + " SMs)";
}

std::string gpus_of(const EngineRecord& record) {
  if (record.gpu) return description(*record.gpu);
  if (for_all_from_ampere(record)) return "compute capability 8.0 and later";
  return "compute capability " + join(record.compute_capabilities, ", ");
}

std::string origin(const EngineRecord& record, const std::string& target,
                   const std::filesystem::path& bundle) {
  return bundle.u8string() + ": the engines of " + target + " were made by " + record.package +
         " " + record.version;
}

std::string rebuilding(const std::string& target, const std::filesystem::path& bundle) {
  return "translate-trt export CHECKPOINT --target " + target + " --output " + bundle.u8string() +
         " --force";
}

}  // namespace

EngineRecords read_engine_records(const TargetEntry& target, const std::filesystem::path& bundle) {
  const std::filesystem::path file = bundle / kManifestName;
  const Json value = parse_json(target.engine, file);
  const Fields fields(value, file, "targets." + target.name + ".engine");
  EngineRecords records;
  for (const auto& [role, record] : fields.objects(true)) records[role] = read_record(record);
  return records;
}

void check_engine(const EngineRecord& record, const std::string& installed,
                  const std::string& system, const std::string& target,
                  const std::filesystem::path& bundle) {
  const std::string made = origin(record, target, bundle), rebuild = rebuilding(target, bundle);
  if (record.package != "tensorrt") {
    throw bundle_error(made + ", which this library does not run by itself. Translate with " +
                       "Python, which does, or export a target of tensorrt.");
  }
  if (record.weights_stripped) {
    throw bundle_error(made + " without weights, which this library does not put back. Translate " +
                       "with Python, which does, or export without --strip-weights: " + rebuild);
  }
  if (record.version_compatible) {
    throw bundle_error(made + " with machine code of their own (--version-compatible), which " +
                       "this library does not run. Translate with Python, whose trust_code " +
                       "permits it, or export without that option: " + rebuild);
  }
  if (!version_fits(record, installed)) {
    throw bundle_error(
        made + "; this library runs on TensorRT " + installed +
        ", which does not load them. Install their version, or rebuild them: " + rebuild);
  }
  if (record.system != system) {
    throw bundle_error(made + " for " + record.system + "; this is " + system +
                       ". Rebuild them: " + rebuild);
  }
}

void check_engine_gpu(const EngineRecord& record, const GpuModel& gpu, const std::string& target,
                      const std::filesystem::path& bundle) {
  if (gpu_fits(record, gpu)) return;
  std::string message = origin(record, target, bundle) + " for " + gpus_of(record) +
                        "; this GPU is " + description(gpu) +
                        ". Rebuild them: " + rebuilding(target, bundle);
  if (record.gpu) {
    message += "\nOr build engines for all GPUs of compute capability " +
               record.gpu->compute_capability + ": --hardware-compatible same_compute_capability";
  }
  throw bundle_error(message);
}

}  // namespace translate_trt::runtime
