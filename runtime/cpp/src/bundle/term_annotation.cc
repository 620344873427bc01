#include "bundle/term_annotation.h"

#include <cstddef>
#include <set>
#include <vector>

#include "base/utf8.h"
#include "bundle/fields.h"
#include "text/unicode.h"

namespace translate_trt::runtime {

namespace {

// What stands in place of the symbols in a text that has them.
constexpr std::u32string_view kEscapes = U"[>]";

}  // namespace

TermAnnotation TermAnnotation::read(const Fields& fields) {
  TermAnnotation annotation;
  const std::string& form = fields.text("form");
  if (form != "append" && form != "replace") {
    fields.fail("form", "one of append, replace", fields.get("form"));
  }
  annotation.appends_ = form == "append";
  const std::vector<std::string> symbols = fields.texts("symbols");
  std::u32string found;
  for (const std::string& symbol : symbols) {
    const std::u32string characters = decode_utf8(symbol);
    if (characters.size() == 1 && !is_space(characters[0])) found += characters[0];
  }
  const std::set<char32_t> different(found.begin(), found.end());
  if (symbols.size() != annotation.symbols_.size() || different.size() != symbols.size()) {
    fields.fail("symbols", "three different characters", fields.get("symbols"));
  }
  for (std::size_t i = 0; i < found.size(); ++i) annotation.symbols_.at(i) = found[i];
  return annotation;
}

std::u32string TermAnnotation::escape(std::u32string text) const {
  for (char32_t& character : text) {
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      if (character == symbols_.at(i)) {
        character = kEscapes[i];
        break;
      }
    }
  }
  return text;
}

std::u32string TermAnnotation::annotate(std::u32string_view text, const Glossary& glossary) const {
  const auto [opening, middle, closing] = symbols_;
  const std::u32string escaped = escape(std::u32string(text));
  std::u32string annotated;
  std::size_t at = 0;
  for (const GlossaryMatch& match : glossary.find(text)) {
    // The space before a phrase stands after the symbol, where it belongs to the phrase's first
    // token, as it does without annotation.
    std::size_t end = match.begin;
    while (end > at && is_space(escaped[end - 1])) --end;
    annotated.append(escaped, at, end - at);
    annotated += opening;
    if (appends_) {
      if (match.begin == 0 || is_space(escaped[match.begin - 1])) annotated += U' ';
      annotated.append(escaped, match.begin, match.end - match.begin);
      annotated += middle;
    }
    const std::u32string target = escape(decode_utf8(match.entry->targets.front()));
    if (!is_unspaced(target.front())) annotated += U' ';
    annotated += target;
    annotated += closing;
    at = match.end;
  }
  return annotated.append(escaped, at);
}

}  // namespace translate_trt::runtime
