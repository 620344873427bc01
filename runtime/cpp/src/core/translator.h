// The translator: a loaded bundle, and its translation of text (runtime/translator.py).
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
#include "core/confidence.h"
#include "core/results.h"
#include "core/service.h"
#include "text/glossary.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

struct ArrayPlace;
struct Settings;

// How a job forces target tokens.
enum class Forced {
  kPrefix,       // a translation begins with them; their log-probabilities do not count
  kTranslation,  // they are the whole translation, which is scored
};

// Phrases that each translation of a job must have (rule 15), by line; empty if none has any.
using Constraints = std::vector<std::vector<Tokens>>;

// Names of the sources of a job in error messages: those given, or their numbers from `first` on.
struct SourceNames {
  std::vector<std::string> given = {};
  std::size_t first = 1;

  std::string line(std::size_t index) const;    // "line 3 of this call" if none are given
  std::string source(std::size_t index) const;  // "source 2" if none are given
};

// What a job adds to the translations of lines.
struct Additions {
  bool alignments = false;     // of the words of lines and translations
  double threshold = -1;       // of alignments, see `aligned_words`
  bool words = false;          // with their confidence
  bool aligned = false;        // with the attention between the characters of line and translation
  bool translate_all = false;  // including lines that are not translatable
};

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

  // Tokenizes target prefixes.
  std::vector<Tokens> encode_prefixes(const std::vector<std::string_view>& texts) const;

  // Tokenizes the constraints of each line, phrases between tab characters. Throws an input error
  // for a phrase that the vocabulary cannot spell.
  Constraints encode_constraints(const std::vector<std::string_view>& texts,
                                 const SourceNames& names) const;

  // Creates a job that translates lines, or scores translations of them. targets: one per line, or
  // empty for no prefixes. terminology: a glossary of which translations have the first target
  // phrase of each source phrase in their line; null for none. Only this call uses it.
  std::shared_ptr<Job> job(const std::vector<std::string_view>& lines, const SearchOptions& options,
                           std::vector<Tokens> targets, Forced forced = Forced::kPrefix,
                           Constraints constraints = {}, const SourceNames& names = {},
                           const Additions& additions = {},
                           const Glossary* terminology = nullptr) const;

  // Creates a job of token sequences, which exclude the end symbol and the prompt. Its translations
  // have no text. targets: one per source, or empty for no prefixes.
  std::shared_ptr<Job> job_of_ids(const std::vector<Tokens>& sources, const SearchOptions& options,
                                  std::vector<Tokens> targets, Forced forced = Forced::kPrefix,
                                  Constraints constraints = {},
                                  const SourceNames& names = {}) const;

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
  // A line that is aligned with its translations.
  struct AlignedLine {
    std::u32string text;
    std::size_t source_prompt, target_prompt;  // tokens before those of source and translation
    std::vector<std::vector<Span>> segments;   // the characters of the tokens of each
  };

  // The translation of a line that is not translatable and has no terms, which is its end, after
  // the language code; nullopt for other lines.
  std::optional<std::u32string> untranslated_end(const std::string& name, std::string_view line,
                                                 const SearchOptions& options,
                                                 const Glossary* terminology) const;
  // Splits a line into sentences; only the first one gets the prefix and has alternatives. A line
  // to score is not split.
  std::vector<Sentence> sentences(const std::string& name, std::string_view line,
                                  const Tokens& target, Forced forced,
                                  std::vector<Tokens> constraints,
                                  const SearchOptions& options) const;
  // As above, with the terms of a glossary: in the line, for a model that reads annotations, or as
  // constraints. Each segment of a long line has its own constraints, unless the line is aligned.
  std::vector<Sentence> sentences_with_terms(const std::string& name, std::string_view line,
                                             const Tokens& target, std::vector<Tokens> constraints,
                                             const SearchOptions& options, bool aligned,
                                             const Glossary& terminology) const;
  // Tokenizes a phrase that a translation must have. name: of what has it, in errors.
  Tokens encode_phrase(const std::string& name, const std::string& phrase) const;
  // Checks the tokens of a text and what its translation must have, and adds the prompt; the
  // expansion if alternatives are wanted. name: of the text in errors.
  Sentence sentence(const std::string& name, const Tokens& source, const Tokens& target,
                    Forced forced, std::vector<Tokens> constraints,
                    const SearchOptions& options) const;
  // The options of sentences: a translation is scored with as few beams as the target allows.
  SearchOptions checked(const SearchOptions& options, Forced forced) const;
  // Maximum number of tokens of a text that is not split.
  std::int64_t longest_text() const;
  AlignedLine aligned_line(const std::string& name, std::string_view line,
                           const SearchOptions& options) const;
  // Joins the i-th best hypotheses of a line's sentences to the i-th best of the line.
  Translation join(const std::vector<std::vector<Hypothesis>>& sentences) const;
  // Aligns a line and its translations, which have attention.
  void align(const AlignedLine& line, const Additions& additions, Translation& translation) const;
  void load_backend(const std::filesystem::path& bundle, const tt_engines* engines,
                    const Settings& settings);
  void check_tokenizer() const;
  void check_options(const SearchOptions& options) const;
  void check_sequences(const SearchOptions& options) const;
  void check_tokens(const std::string& name, const Tokens& source, const std::string& target_name,
                    const Tokens& target) const;
  void check_constraints(const std::string& name, const std::vector<Tokens>& constraints,
                         Forced forced, const SearchOptions& options) const;

  Manifest manifest_;
  std::vector<std::string> source_languages_, target_languages_;
  TargetEntry target_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Backend> backend_;
  std::string kernels_, onnxruntime_;
  int workers_ = 0;
  std::int64_t batch_tokens_ = 0;
  std::function<void(const std::string&)> log_;
  mutable std::atomic<bool> warned_of_beams_ = false;
  mutable std::optional<Service> service_;  // last member: its workers use those above
};

}  // namespace translate_trt::runtime
