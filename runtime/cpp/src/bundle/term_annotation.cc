#include "bundle/term_annotation.h"

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
  const std::string& form = fields.text("form");
  if (form != "append" && form != "replace") {
    fields.fail("form", "one of append, replace", fields.get("form"));
  }
  const std::vector<std::string> symbols = fields.texts("symbols");
  std::u32string found;
  for (const std::string& symbol : symbols) {
    const std::u32string characters = decode_utf8(symbol);
    if (characters.size() == 1 && !is_space(characters[0])) found += characters[0];
  }
  const std::set<char32_t> different(found.begin(), found.end());
  if (symbols.size() != 3 || different.size() != symbols.size()) {
    fields.fail("symbols", "three different characters", fields.get("symbols"));
  }
  return TermAnnotation(form == "append", {found[0], found[1], found[2]});
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
  std::vector<Annotation> annotations;
  for (const auto& [begin, end, entry] : glossary.find(text)) {
    annotations.push_back({begin, end, entry->targets.front()});
  }
  return annotate(text, annotations);
}

std::u32string TermAnnotation::annotate(std::u32string_view text,
                                        const std::vector<Annotation>& annotations) const {
  const auto [opening, middle, closing] = symbols_;
  const std::u32string escaped = escape(std::u32string(text));
  std::u32string annotated;
  std::size_t at = 0;
  for (const auto& [begin, end, phrase] : annotations) {
    // The space before a phrase stands after the symbol, where it belongs to the phrase's first
    // token, as it does without annotation.
    std::size_t last = begin;
    while (last > at && is_space(escaped[last - 1])) --last;
    annotated.append(escaped, at, last - at);
    annotated += opening;
    if (appends_) {
      if (begin == 0 || is_space(escaped[begin - 1])) annotated += U' ';
      annotated.append(escaped, begin, end - begin);
      annotated += middle;
    }
    const std::u32string target = escape(decode_utf8(phrase));
    if (!is_unspaced(target.front())) annotated += U' ';
    annotated += target;
    annotated += closing;
    at = end;
  }
  return annotated.append(escaped, at);
}

}  // namespace translate_trt::runtime
