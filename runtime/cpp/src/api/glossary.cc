// Glossaries in the C interface.

#include <memory>
#include <string>
#include <vector>

#include "api/calls.h"
#include "base/options.h"
#include "base/utf8.h"
#include "text/glossary.h"

using translate_trt::runtime::Glossary;
using translate_trt::runtime::guarded;
using translate_trt::runtime::require;
using translate_trt::runtime::Term;
using translate_trt::runtime::texts;

struct tt_terms {
  std::vector<Term> terms;
  std::vector<std::string> sources;  // as they are spelled in the source text
};

tt_status tt_glossary_read(const char* path, int32_t ignore_case, tt_glossary** glossary) {
  if (glossary != nullptr) *glossary = nullptr;
  return guarded([&] {
    require(glossary != nullptr, "glossary");
    require(path != nullptr, "path");
    *glossary = new tt_glossary{
        Glossary::read(path, translate_trt::runtime::is_true("ignore_case", ignore_case))};
  });
}

tt_status tt_glossary_parse(tt_text content, const char* name, int32_t ignore_case,
                            tt_glossary** glossary) {
  if (glossary != nullptr) *glossary = nullptr;
  return guarded([&] {
    require(glossary != nullptr, "glossary");
    const auto text = texts(&content, 1, "content").front();
    *glossary =
        new tt_glossary{Glossary(text, name == nullptr ? "the glossary" : name,
                                 translate_trt::runtime::is_true("ignore_case", ignore_case))};
  });
}

void tt_glossary_free(tt_glossary* glossary) { delete glossary; }

size_t tt_glossary_size(const tt_glossary* glossary) {
  return glossary == nullptr ? 0 : glossary->glossary.size();
}

tt_status tt_glossary_terms(const tt_glossary* glossary, tt_text line, tt_text translation,
                            tt_terms** terms) {
  if (terms != nullptr) *terms = nullptr;
  return guarded([&] {
    require(terms != nullptr, "terms");
    require(glossary != nullptr, "glossary");
    const std::u32string source =
        translate_trt::runtime::decode_utf8(texts(&line, 1, "the text of the line").front());
    const std::u32string target = translate_trt::runtime::decode_utf8(
        texts(&translation, 1, "the text of the translation").front());
    auto found = std::make_unique<tt_terms>();
    found->terms = glossary->glossary.terms(source, target);
    for (const Term& term : found->terms) {
      const auto [begin, end, entry] = term.match;
      found->sources.push_back(
          translate_trt::runtime::encode_utf8(source.substr(begin, end - begin)));
    }
    *terms = found.release();
  });
}

size_t tt_terms_size(const tt_terms* terms) { return terms == nullptr ? 0 : terms->terms.size(); }

tt_term tt_terms_term(const tt_terms* terms, size_t index) {
  if (index >= tt_terms_size(terms)) return {{"", 0}, {"", 0}, {"", 0}, 0};
  const auto view = [](const std::string& text) { return tt_text{text.c_str(), text.size()}; };
  const Term& term = terms->terms[index];
  const bool found = term.translation.has_value();
  return {view(terms->sources[index]), view(term.match.entry->targets.front()),
          found ? view(*term.translation) : tt_text{"", 0}, found ? 1 : 0};
}

void tt_terms_free(tt_terms* terms) { delete terms; }
