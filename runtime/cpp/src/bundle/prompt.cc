#include "bundle/prompt.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/contract.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

namespace {

constexpr std::size_t kMaxListed = 12;

std::string listed(const Languages& languages) {
  std::vector<std::string> names;
  for (const auto& [name, token] : languages) {
    if (names.size() == kMaxListed) break;
    names.push_back(name);
  }
  const std::size_t rest = languages.size() - names.size();
  return join(names, ", ") + (rest > 0 ? " and " + std::to_string(rest) + " more" : "");
}

std::string choose(const Languages& languages) {
  return "choose one of " + listed(languages) + ".";
}

// Checks a language of a model that selects it by a token.
void check_language(const std::string& name, const Languages& languages,
                    const std::optional<std::string>& wanted, bool needed) {
  if (!wanted) {
    if (!needed) return;
    throw option_error(name +
                       " is not given, and this model translates between several languages; " +
                       choose(languages));
  }
  if (languages.count(*wanted) > 0) return;
  throw option_error(name + " " + in_quotes(*wanted) + " is unknown to this model; " +
                     choose(languages));
}

// Checks a language of a model that has only one.
void check_own(const char* name, const std::optional<std::string>& own,
               const std::optional<std::string>& wanted) {
  if (!wanted || wanted == own) return;
  throw option_error(std::string(name) + " " + in_quotes(*wanted) + ": this model was made for " +
                     own.value_or("one language") + " alone; leave " + name + " out.");
}

std::size_t after_space(std::u32string_view text, std::size_t position) {
  while (position < text.size() && is_space(text[position])) ++position;
  return position;
}

// Whether a word has the form of all codes of OPUS-MT, such as deu or cmn_Hans; other words between
// their marks are quotations.
bool looks_like_code(const std::string& word) {
  const std::size_t letters =
      std::min(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz"), word.size());
  return (letters == 2 || letters == 3) &&
         (letters == word.size() || word[letters] == '_' || word[letters] == '-');
}

bool is_bracket(char32_t character) { return character == U'<' || character == U'>'; }

void add(Tokens& tokens, const Languages& languages, const std::optional<std::string>& language) {
  if (!languages.empty() && language) tokens.push_back(languages.at(*language));
}

std::int64_t largest_of(const Tokens& tokens) {
  return tokens.empty() ? -1 : *std::max_element(tokens.begin(), tokens.end());
}

}  // namespace

Prompt Prompt::read(const Fields& fields) {
  const std::string& side = fields.text("target_side");
  if (side != "source" && side != "target") {
    fields.fail("target_side", "one of source, target", Json(side));
  }
  return {fields.integers("source", 0), fields.integers("target", 0),
          fields.object("source_languages").all_integers(0),
          fields.object("target_languages").all_integers(0), side == "source"};
}

std::pair<std::int64_t, std::int64_t> Prompt::largest() const {
  Tokens before_sources = source, before_translations = target;
  for (const auto& [name, token] : source_languages) before_sources.push_back(token);
  Tokens& side = before_source ? before_sources : before_translations;
  for (const auto& [name, token] : target_languages) side.push_back(token);
  return {largest_of(before_sources), largest_of(before_translations)};
}

std::int64_t Prompt::source_length() const {
  return static_cast<std::int64_t>(source.size()) + !source_languages.empty() +
         (before_source && !target_languages.empty());
}

std::pair<std::u32string_view, SearchOptions> Prompt::of_line(std::u32string_view line,
                                                              SearchOptions options,
                                                              const std::string& name) const {
  constexpr std::u32string_view kOpen = U">>", kClose = U"<<";
  const std::size_t open = after_space(line, 0), begin = open + kOpen.size();
  if (!before_source || line.substr(open, kOpen.size()) != kOpen) return {line, options};
  std::size_t end = begin;
  while (end < line.size() && !is_bracket(line[end]) && !is_space(line[end])) ++end;
  if (end == begin || line.substr(end, kClose.size()) != kClose) return {line, options};
  std::string language = encode_utf8(line.substr(begin, end - begin));
  if (target_languages.count(language) == 0) {
    if (target_languages.empty() || !looks_like_code(language)) return {line, options};
    check_language("the language code of " + name, target_languages, language, true);
  }
  options.target_language = std::move(language);
  return {line.substr(after_space(line, end + kClose.size())), options};
}

void Prompt::check_line(const SearchOptions& options, const std::string& name) const {
  if (!before_source || target_languages.size() < 2 || options.target_language) return;
  throw option_error("target_language is not given, and " + name +
                     " does not begin with a language such as >>" +
                     target_languages.begin()->first + "<<; " + choose(target_languages));
}

Tokens Prompt::of_source(const SearchOptions& options) const {
  Tokens tokens = source;
  add(tokens, source_languages, options.source_language);
  if (before_source) add(tokens, target_languages, options.target_language);
  return tokens;
}

Tokens Prompt::of_target(const SearchOptions& options) const {
  Tokens tokens = target;
  if (!before_source) add(tokens, target_languages, options.target_language);
  std::transform(tokens.begin(), tokens.end(), tokens.begin(), unscored);
  return tokens;
}

void Prompt::check(const SearchOptions& options, const std::optional<std::string>& own_source,
                   const std::optional<std::string>& own_target) const {
  if (source_languages.empty()) {
    check_own("source_language", own_source, options.source_language);
  } else {
    check_language("source_language", source_languages, options.source_language, true);
  }
  if (target_languages.empty()) {
    check_own("target_language", own_target, options.target_language);
  } else {
    check_language("target_language", target_languages, options.target_language, !before_source);
  }
}

}  // namespace translate_trt::runtime
