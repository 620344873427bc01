// A bundle in, translations out (runtime/translator.py).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle.h"
#include "onnxruntime_backend.h"
#include "results.h"
#include "search.h"
#include "tokenizer.h"

namespace translate_trt::runtime {

// A loaded bundle. Several threads may call it at once.
class Translator {
 public:
  // Checks the bundle and loads one of its targets. Errors as of tt_translator_load.
  Translator(const std::filesystem::path& bundle, const tt_load_options& options);

  // One translation per line, in the order of the lines. prefixes: none, or one for each line.
  std::vector<Translation> translate(const std::vector<std::string_view>& lines,
                                     const SearchOptions& options,
                                     const std::vector<std::string_view>& prefixes) const;

  // For each source, without the end symbol, its n best hypotheses.
  std::vector<std::vector<Hypothesis>> translate_ids(std::vector<Tokens> sources,
                                                     const SearchOptions& options,
                                                     std::vector<Tokens> prefixes) const;

  const SearchOptions& default_options() const { return manifest_.search; }
  const std::string& target() const { return target_.name; }
  const OnnxRuntimeBackend& backend() const { return *backend_; }

 private:
  using Name = std::function<std::string(std::size_t)>;

  // translate_ids with a name for each source, to call it by in an error.
  std::vector<std::vector<Hypothesis>> search(std::vector<Tokens> sources,
                                              const SearchOptions& options,
                                              std::vector<Tokens> prefixes, const Name& name) const;
  Translation join(const std::vector<std::vector<Hypothesis>>& pieces) const;
  void check_tokenizer() const;
  void check_options(const SearchOptions& options) const;
  void check_sentence(const std::string& name, const Tokens& source, const Tokens& prefix,
                      const SearchOptions& options) const;

  Manifest manifest_;
  TargetEntry target_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<OnnxRuntimeBackend> backend_;
  int workers_;
  std::int64_t batch_tokens_;
  std::function<void(const std::string&)> log_;
};

}  // namespace translate_trt::runtime
