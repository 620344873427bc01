// What is asked of a translator: lines of text, or token sequences, with what their translations
// must have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/glossary.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

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
  bool terms = false;          // of the glossary
  bool translate_all = false;  // including lines that are not translatable
};

// A line whose parts, such as its sentences, are translated one by one (tt_split).
struct Split {
  std::vector<std::string_view> parts;
  std::vector<std::string> between;   // one more than parts
  std::vector<std::int64_t> offsets;  // of the parts in the line; empty: parts are not aligned
};

// Forced tokens, phrases and names of the texts of a job.
struct Demands {
  std::vector<Tokens> targets = {};  // one per text, or none
  Forced forced = Forced::kPrefix;
  Constraints constraints = {};
  SourceNames names = {};
};

// Lines of text.
struct Lines {
  std::vector<std::string_view> texts;
  Demands demands = {};
  Additions additions = {};
  // Translations have the first target phrase of each source phrase in their line.
  std::shared_ptr<const Glossary> terminology = {};
  std::optional<std::vector<Split>> splits = {};  // one per line
  // Whether each line is a segment of a text with markup that has no tags, so that
  // `Additions::aligned` needs no attention; empty: no line is.
  std::vector<bool> tagless = {};
};

}  // namespace translate_trt::runtime
