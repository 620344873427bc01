// What models read and write around a text: tokens that say languages, and the like
// (runtime/bundle/prompt.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/options.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

class Fields;

// The token of each language, by its name.
using Languages = std::map<std::string, std::int64_t>;

// Tokens that stand before the text; none of them is text, so that no translation shows them.
struct Prompt {
  Tokens source;  // every source begins with them
  Tokens target;  // every translation begins with them
  // The token behind `source` that says what a source is in.
  Languages source_languages;
  // The token that says what to translate into. `before_source`: it stands behind all these, before
  // the source's text; else the translation begins with it, behind `target`.
  Languages target_languages;
  bool before_source = false;

  // Of a manifest's field. A bundle error if it is something else.
  static Prompt read(const Fields& fields);

  // The largest token before a source and before a translation; -1: there is none.
  std::pair<std::int64_t, std::int64_t> largest() const;

  // So many tokens stand before a source at most.
  std::int64_t source_length() const;

  // A line without the language that it begins with (">>deu<< A text."), and the options with that.
  std::pair<std::u32string_view, SearchOptions> of_line(std::u32string_view line,
                                                        SearchOptions options) const;

  // The tokens before a source, once `check` has nothing against the options.
  Tokens of_source(const SearchOptions& options) const;

  // The same before a translation, as a forced prefix (`unscored`).
  Tokens of_target(const SearchOptions& options) const;

  // An option error if a model of this prompt does not know a language that the options name, or
  // has to be told one and is not. own_source, own_target: what it was made for, if that is known.
  void check(const SearchOptions& options, const std::optional<std::string>& own_source,
             const std::optional<std::string>& own_target) const;
};

}  // namespace translate_trt::runtime
