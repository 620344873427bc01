// Prompts: control tokens around a text, such as language tokens (runtime/bundle/prompt.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/options.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

class Fields;

// Language tokens by language name.
using Languages = std::map<std::string, std::int64_t>;

// Control tokens before the text. They are not part of the text, so translations do not show them.
struct Prompt {
  Tokens source;  // first tokens of every source
  Tokens target;  // first tokens of every translation
  // Source-language tokens, placed after `source`.
  Languages source_languages;
  // Target-language tokens. If before_source, the token follows the ones above, before the source
  // text; otherwise it is the translation's first token after `target`.
  Languages target_languages;
  bool before_source = false;

  // Reads the manifest's field. Throws a bundle error if it is invalid.
  static Prompt read(const Fields& fields);

  // Largest token id before a source and before a translation; -1 if there is no token.
  std::pair<std::int64_t, std::int64_t> largest() const;

  // Maximum number of prompt tokens before a source.
  std::int64_t source_length() const;

  // Moves a language prefix (">>deu<< A text.") from the line to the options. Throws an option
  // error if the model does not know the language. name: of the line in errors.
  std::pair<std::u32string_view, SearchOptions> of_line(std::u32string_view line,
                                                        SearchOptions options,
                                                        const std::string& name) const;

  // Throws an option error if a model that takes the target language before the source, and knows
  // several, got none: such a model would translate into any of them. options: those of `of_line`.
  void check_line(const SearchOptions& options, const std::string& name) const;

  // Prompt tokens before a source, for options that `check` accepts.
  Tokens of_source(const SearchOptions& options) const;

  // Prompt tokens before a translation, as an unscored forced prefix.
  Tokens of_target(const SearchOptions& options) const;

  // Throws an option error if the options name a language that the model does not know, or lack one
  // that it needs. own_source, own_target: languages of a bilingual model, if known.
  void check(const SearchOptions& options, const std::optional<std::string>& own_source,
             const std::optional<std::string>& own_target) const;
};

}  // namespace translate_trt::runtime
