#include "core/translator.h"

#include <algorithm>
#include <utility>

#include "backends/onnxruntime_loader.h"
#include "base/errors.h"
#include "base/platform.h"
#include "base/utf8.h"
#include "bundle/engine_record.h"
#include "engines/context_memory.h"
#include "engines/device_batch.h"
#include "engines/engine_loader.h"
#include "executor/executor_backend.h"

namespace translate_trt::runtime {

namespace {

std::string text_of(const char* given) { return given == nullptr ? "" : given; }

void check_at_least(const char* name, std::int64_t value, std::int64_t smallest) {
  if (value >= smallest) return;
  throw option_error(std::string(name) + " is " + std::to_string(value) + "; it must be at least " +
                     std::to_string(smallest) + ".");
}

// Limits a number to `each` per available core and logs the reduction (within_cores in
// runtime/cores.py).
int within_cores(const Settings& settings, const char* name, int wanted, int each = 1) {
  const int cores = available_cores(), most = each * cores;
  if (wanted <= most) return wanted;
  settings.log(std::string(name) + " is " + std::to_string(wanted) + "; " + std::to_string(most) +
               " are used, since this process may use " + std::to_string(cores) +
               " processor core" + (cores == 1 ? "" : "s"));
  return most;
}

constexpr int kWorkersEach = 4;  // workers per core; more do not increase throughput

// Defaults of workers and of batches per worker. A GPU runs steps of one batch while the host
// handles the results of another: two workers overlap both, and more add memory, not speed, because
// every batch of a worker reserves device memory for the largest profile.
struct Defaults {
  int workers, batches;
};
constexpr Defaults kOfOnnx = {1, 4}, kOfGpus = {2, 2};

bool is_gpu(const char* device) {
  return device != nullptr && read_device(device).provider != Provider::kCpu;
}

Settings settings_of(const tt_load_options& options, const Defaults& defaults) {
  Settings settings;
  if (options.device != nullptr) settings.device = read_device(options.device);
  settings.default_device = options.device == nullptr;
  settings.onnxruntime = text_of(options.onnxruntime);
  settings.kernels = text_of(options.kernels);
  settings.provider = text_of(options.provider);
  settings.log = [log = options.log, context = options.log_context](const std::string& message) {
    if (log != nullptr) log(context, encode_utf8(decode_utf8(message)).c_str());
  };
  const int workers = options.workers > 0 ? options.workers : defaults.workers;
  settings.workers = within_cores(settings, "workers", workers, kWorkersEach);
  settings.threads = options.threads > 0 ? within_cores(settings, "threads", options.threads)
                                         : std::max(1, available_cores() / settings.workers);
  return settings;
}

// Whether device functions can run a target: it has fixed beams and slots.
bool is_static(const TargetEntry& target) {
  const bool known = target.backend.rfind("tensorrt", 0) == 0 || target.backend == "torch" ||
                     target.backend == "cuda";
  return known && target.contract.beams() && target.contract.slots() && !target.contract.shortlist;
}

// Whether a target consists of TensorRT engines.
bool is_engine(const TargetEntry& target) { return is_static(target) && target.backend != "torch"; }

EngineSettings engine_settings(const tt_engines& given) {
  const auto read = [](const tt_profile* profiles, std::size_t count) {
    Profiles found;
    for (std::size_t i = 0; i < count; ++i) {
      const auto [batch, source_length, slots] = profiles[i];
      if (batch < 1 || source_length < 1 || slots < 0) {
        throw option_error("a profile of the engines is empty.");
      }
      found.push_back({batch, source_length, slots});
    }
    return found;
  };
  const auto [marked_tokens, sampled_ranks, tail_tokens, constraint_tokens] = given.changes;
  const ChangeSizes changes = {marked_tokens, sampled_ranks, tail_tokens, constraint_tokens};
  if (marked_tokens < 0 || sampled_ranks < 0 || tail_tokens < 0 || constraint_tokens < 0) {
    throw option_error("a size in changes of the engines is negative.");
  }
  EngineSettings settings;
  settings.encoder_profiles = read(given.encoder_profiles, given.encoder_profile_count);
  settings.step_profiles = read(given.step_profiles, given.step_profile_count);
  if (!changes.empty()) {
    const auto half = static_cast<std::ptrdiff_t>(given.step_profile_count / 2);
    const auto second = settings.step_profiles.begin() + half;
    std::for_each(second, settings.step_profiles.end(),
                  [&](Profile& profile) { profile.changes = changes; });
  }
  settings.poll_every = static_cast<std::size_t>(given.poll_every);
  settings.cuda_graphs = given.cuda_graphs != 0;
  settings.scratch_bytes = given.scratch_bytes;
  return settings;
}

}  // namespace

tt_engine_memory engine_memory(const std::filesystem::path& bundle,
                               const std::optional<std::string>& name) {
  const Manifest manifest = read_manifest(bundle);
  const TargetEntry target = manifest.target(name, false);
  if (!is_static(target)) throw option_error(target.name + " has no engines.");
  EngineSettings settings;
  const EngineRecords records = read_engine_records(target, bundle);
  const auto step = records.find("step");
  if (step == records.end()) {
    throw bundle_error("the target has no engine of the step; export the bundle again.");
  }
  settings.step_profiles = step->second.profiles;
  const ContextMemory each = context_memory(target.contract, settings);
  return {sizeof(tt_engine_memory), each.device, each.pinned, kOfGpus.workers, kOfGpus.batches};
}

void check_for_bundle(const std::filesystem::path& bundle, const std::optional<std::string>& target,
                      const Lines& lines, const tt_options* options) {
  const Manifest manifest = read_manifest(bundle);
  const TargetEntry entry = manifest.target(target, false);
  LineJobs(manifest, entry, nullptr).job(lines, read_options(options, manifest.search));
}

Translator::Translator(const std::filesystem::path& bundle, const tt_load_options& options,
                       std::function<ArrayPlace()> place) {
  for (const auto& [name, value] :
       {std::pair{"threads", options.threads}, std::pair{"workers", options.workers},
        std::pair{"batch_tokens", options.batch_tokens}, std::pair{"batches", options.batches},
        std::pair{"capacity", options.capacity}, std::pair{"cache_mib", options.cache_mib}}) {
    check_at_least(name, value, 0);
  }
  manifest_ = read_manifest(bundle);
  source_languages_ = manifest_.source_languages();
  target_languages_ = manifest_.target_languages();
  std::optional<std::string> name;
  if (options.target != nullptr) name = options.target;
  target_ = manifest_.target(name, options.shortlist != 0);
  const bool on_gpu = is_static(target_) || is_gpu(options.device);
  const Defaults& defaults = on_gpu ? kOfGpus : kOfOnnx;
  Settings settings = settings_of(options, defaults);
  settings.max_source_length = manifest_.limits.max_source_length;
  settings.max_target_length = manifest_.limits.max_target_length;
  settings.place = std::move(place);
  log_ = settings.log;
  workers_ = kHasThreads ? settings.workers : 0;
  verify_files(bundle, manifest_, target_, options.check_hashes != 0);
  tokenizer_.emplace(manifest_.source_tokenizer.locate(bundle),
                     manifest_.target_tokenizer.locate(bundle));
  check_tokenizer();
  load_backend(bundle, options.engines, settings);
  jobs_.emplace(manifest_, target_, &*tokenizer_, backend_->most_constraint_tokens());
  batch_tokens_ =
      options.batch_tokens > 0 ? options.batch_tokens : backend_->default_batch_tokens();
  const int batches = options.batches > 0 ? options.batches : defaults.batches;
  const Service::Settings service_settings = {workers_,
                                              backend_->fitting_batches(workers_, batches),
                                              static_cast<std::size_t>(options.capacity),
                                              static_cast<std::size_t>(options.cache_mib) << 20};
  const auto make_search = [this](const SearchOptions& shared) {
    return std::make_unique<Search>(*backend_, shared, batch_tokens_, manifest_.model);
  };
  service_.emplace(service_settings, make_search, log_);
}

void Translator::load_backend(const std::filesystem::path& bundle, const tt_engines* engines,
                              const Settings& settings) {
  if (target_.backend == "onnxruntime") {
    if (settings.device.provider != Provider::kCpu && target_.precision == "int8") {
      throw option_error(target_.name + " runs on a CPU only, and device is " +
                         in_quotes(settings.device.name) +
                         ". Choose onnx-fp16 or onnx-fp32, or leave device out.");
    }
    load_graphs(target_.file("encoder").locate(bundle), target_.file("step").locate(bundle),
                settings);
  } else if (engines != nullptr && is_static(target_)) {
    const tt_engines given = complete(engines);
    backend_ = std::make_unique<DeviceBackend>(complete(*given.functions), target_.contract,
                                               engine_settings(given), settings.log);
  } else if (target_.backend == "cuda" && is_static(target_)) {
    backend_ = load_plans(bundle, target_, settings);
  } else if (is_engine(target_)) {
    backend_ = load_engines(bundle, target_, settings);
  } else {
    throw bundle_error("the target runs on the backend " + in_quotes(target_.backend) +
                       ", which this library does not have by itself (it has onnxruntime and "
                       "cuda). Choose another target, or translate with Python, which runs "
                       "engines.");
  }
}

void Translator::load_graphs(const std::filesystem::path& encoder,
                             const std::filesystem::path& step, const Settings& settings) {
  CompiledKernels kernels;
  std::string reason = "device is " + in_quotes(settings.device.name);
  if (settings.device.provider == Provider::kCpu) {
    kernels = find_kernels(settings.kernels);
    kernels_ = kernels.name;
    settings.log("compiled kernels: " + kernels.status());
    backend_ = load_executor(encoder, step, target_.contract, kernels, settings, reason);
    if (backend_ != nullptr) return;
  }
  settings.log("the graphs run on ONNX Runtime: " + reason);
  backend_ =
      load_onnxruntime(encoder, step, target_.contract, kernels, settings, reason, onnxruntime_);
}

std::shared_ptr<Job> Translator::job(const Lines& lines, const SearchOptions& options) const {
  auto made = jobs_->job(lines, options);
  if (lines.demands.forced == Forced::kPrefix) warn_of_beams(options);
  return made;
}

std::shared_ptr<Job> Translator::job(const std::vector<Tokens>& sources, const Demands& demands,
                                     const SearchOptions& options) const {
  auto made = jobs_->job(sources, demands, options);
  if (demands.forced == Forced::kPrefix) warn_of_beams(options);
  return made;
}

void Translator::warn_of_beams(const SearchOptions& options) const {
  if (options.beam_size <= kManyBeams || warned_of_beams_.exchange(true)) return;
  log_("beam_size " + std::to_string(options.beam_size) + " takes at least " +
       std::to_string(options.beam_size / 4) + " times as long as 4 beams; more than " +
       std::to_string(kManyBeams) + " beams seldom find anything better.");
}

void Translator::check_tokenizer() const {
  const ModelDescription& model = manifest_.model;
  for (const auto& [pieces, expected] :
       {std::pair{tokenizer_->source_vocabulary_size(), model.input_vocabulary_size},
        std::pair{tokenizer_->vocabulary_size(), model.vocabulary_size}}) {
    if (pieces == expected) continue;
    throw bundle_error("the tokenizer has " + std::to_string(pieces) + " pieces, the model " +
                       std::to_string(expected) +
                       "; they do not belong together. Export the bundle again.");
  }
}

}  // namespace translate_trt::runtime
