// A bundle in, translations out (runtime/translator.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "bundle/manifest.h"
#include "core/results.h"
#include "core/service.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

struct Settings;

// A loaded bundle. Several threads may call it at once.
class Translator {
 public:
  // Checks the bundle and loads one of its targets. Errors as of tt_translator_load.
  Translator(const std::filesystem::path& bundle, const tt_load_options& options);

  // The tokens of target prefixes.
  std::vector<Tokens> encode_prefixes(const std::vector<std::string_view>& texts) const;

  // A job that translates lines. prefixes: none, or one for each line. first: number of the
  // first line in error messages.
  std::shared_ptr<Job> job(const std::vector<std::string_view>& lines, const SearchOptions& options,
                           std::vector<Tokens> prefixes, std::size_t first = 1) const;

  // A job that translates sources without the end symbol and the prompt; its translations have no
  // text. prefixes: none, or one for each source.
  std::shared_ptr<Job> job_of_ids(const std::vector<Tokens>& sources, const SearchOptions& options,
                                  std::vector<Tokens> prefixes) const;

  // Translates what `job` made.
  Service& service() const { return *service_; }

  const SearchOptions& default_options() const { return manifest_.search; }
  const std::vector<std::string>& source_languages() const { return source_languages_; }
  const std::vector<std::string>& target_languages() const { return target_languages_; }
  const std::string& target() const { return target_.name; }
  const std::string& kernels() const { return kernels_; }          // "": none are used
  const std::string& onnxruntime() const { return onnxruntime_; }  // its version; "": not used

 private:
  // A line in as many sentences as it needs, the first of which alone begins with the prefix.
  std::vector<Sentence> sentences(const std::string& name, std::string_view line,
                                  const Tokens& prefix, const SearchOptions& options) const;
  // A text's tokens and forced prefix with what the model wants before them, checked; `name` is
  // what an error calls it.
  Sentence sentence(const std::string& name, const Tokens& source, const Tokens& prefix,
                    const SearchOptions& options) const;
  // Tokens of the longest text that is translated in one piece.
  std::int64_t longest_text() const;
  // The n best of a line from those of its sentences, the i-th best of each together.
  Translation join(const std::vector<std::vector<Hypothesis>>& sentences) const;
  void load_backend(const std::filesystem::path& bundle, const tt_engines* engines,
                    const Settings& settings);
  void check_tokenizer() const;
  void check_options(const SearchOptions& options) const;
  void check_tokens(const std::string& name, const Tokens& source, const Tokens& prefix) const;

  Manifest manifest_;
  std::vector<std::string> source_languages_, target_languages_;
  TargetEntry target_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Backend> backend_;
  std::string kernels_, onnxruntime_;
  std::int64_t batch_tokens_;
  std::function<void(const std::string&)> log_;
  mutable std::atomic<bool> warned_of_beams_ = false;
  mutable std::optional<Service> service_;  // last: its workers use all of the above
};

}  // namespace translate_trt::runtime
