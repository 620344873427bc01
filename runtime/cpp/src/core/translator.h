// The translator: a loaded bundle, and its translation of text (runtime/translator.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bundle/manifest.h"
#include "core/confidence.h"
#include "core/line_jobs.h"
#include "core/lines.h"
#include "core/results.h"
#include "core/service.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

struct ArrayPlace;
struct Settings;

// Checks options as a job of these lines, of which there are none, does. target: name of a target
// of the bundle, which is not loaded; nullopt: the first one.
void check_for_bundle(const std::filesystem::path& bundle, const std::optional<std::string>& target,
                      const Lines& lines, const tt_options* options);

// Memory that a target with engines needs. name: of the target; nullopt: the first one.
tt_engine_memory engine_memory(const std::filesystem::path& bundle,
                               const std::optional<std::string>& name);

// A loaded bundle. Thread-safe.
class Translator {
 public:
  // Verifies the bundle and loads one of its targets. Throws the errors of tt_translator_load.
  // place: see Settings.
  Translator(const std::filesystem::path& bundle, const tt_load_options& options,
             std::function<ArrayPlace()> place = nullptr);

  // Creates a job that translates lines, or scores translations of them.
  std::shared_ptr<Job> job(const Lines& lines, const SearchOptions& options) const;

  // Creates a job of token sequences, which exclude the end symbol and the prompt.
  std::shared_ptr<Job> job(const std::vector<Tokens>& sources, const Demands& demands,
                           const SearchOptions& options) const;

  // What makes the jobs; it also tokenizes prefixes and constraints.
  const LineJobs& jobs() const { return *jobs_; }

  // The service that runs the jobs of this translator.
  Service& service() const { return *service_; }

  const SearchOptions& default_options() const { return manifest_.search; }
  const std::vector<std::string>& source_languages() const { return source_languages_; }
  const std::vector<std::string>& target_languages() const { return target_languages_; }
  const std::string& target() const { return target_.name; }
  // Whether confidences are calibrated. Throws a bundle error if the calibration is damaged.
  bool calibrated() const { return read_calibration(target_).has_value(); }
  int workers() const { return workers_; }
  std::int64_t batch_tokens() const { return batch_tokens_; }
  const std::string& kernels() const { return kernels_; }          // "" if none are in use
  const std::string& onnxruntime() const { return onnxruntime_; }  // its version; "" if not in use

 private:
  void load_graphs(const std::filesystem::path& encoder, const std::filesystem::path& step,
                   const Settings& settings);
  void load_backend(const std::filesystem::path& bundle, const tt_engines* engines,
                    const Settings& settings);
  void check_tokenizer() const;
  // Logs once that many beams are expensive.
  void warn_of_beams(const SearchOptions& options) const;

  Manifest manifest_;
  std::vector<std::string> source_languages_, target_languages_;
  TargetEntry target_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Backend> backend_;
  std::optional<LineJobs> jobs_;
  std::string kernels_, onnxruntime_;
  int workers_ = 0;
  std::int64_t batch_tokens_ = 0;
  std::function<void(const std::string&)> log_;
  mutable std::atomic<bool> warned_of_beams_ = false;
  mutable std::optional<Service> service_;  // last member: its workers use those above
};

}  // namespace translate_trt::runtime
