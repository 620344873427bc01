// Glossaries in the C interface.

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/calls.h"
#include "base/options.h"
#include "base/utf8.h"
#include "bundle/term_annotation.h"
#include "text/glossary.h"
#include "text/translatable.h"

using translate_trt::runtime::Annotation;
using translate_trt::runtime::as_term;
using translate_trt::runtime::as_text;
using translate_trt::runtime::decode_utf8;
using translate_trt::runtime::encode_utf8;
using translate_trt::runtime::Glossary;
using translate_trt::runtime::GlossaryEntry;
using translate_trt::runtime::guarded;
using translate_trt::runtime::require;
using translate_trt::runtime::Term;
using translate_trt::runtime::TermAnnotation;
using translate_trt::runtime::texts;

struct tt_terms {
  std::shared_ptr<const Glossary> glossary;
  std::vector<Term> terms;
  std::string annotated;
};

namespace {

// Returns a new handle.
tt_glossary* as_handle(Glossary glossary) {
  return new tt_glossary{std::make_shared<const Glossary>(std::move(glossary))};
}

const GlossaryEntry* entry_at(const tt_glossary* glossary, std::size_t entry) {
  return entry < tt_glossary_size(glossary) ? &glossary->glossary->entry(entry) : nullptr;
}

}  // namespace

tt_status tt_glossary_read(const char* path, int32_t ignore_case, tt_glossary** glossary) {
  if (glossary != nullptr) *glossary = nullptr;
  return guarded([&] {
    require(glossary != nullptr, "glossary");
    require(path != nullptr, "path");
    *glossary =
        as_handle(Glossary::read(std::filesystem::u8path(path),
                                 translate_trt::runtime::is_true("ignore_case", ignore_case)));
  });
}

tt_status tt_glossary_parse(tt_text content, const char* name, int32_t ignore_case,
                            tt_glossary** glossary) {
  if (glossary != nullptr) *glossary = nullptr;
  return guarded([&] {
    require(glossary != nullptr, "glossary");
    const auto text = texts(&content, 1, "content").front();
    *glossary = as_handle(Glossary(text, name == nullptr ? "the glossary" : name,
                                   translate_trt::runtime::is_true("ignore_case", ignore_case)));
  });
}

tt_status tt_glossary_new(const tt_text* phrases, const size_t* counts, size_t size,
                          int32_t ignore_case, tt_glossary** glossary) {
  if (glossary != nullptr) *glossary = nullptr;
  return guarded([&] {
    require(glossary != nullptr, "glossary");
    require((phrases != nullptr && counts != nullptr) || size == 0, "phrases or counts");
    std::vector<GlossaryEntry> entries(size);
    for (GlossaryEntry& entry : entries) {
      const std::size_t count = *counts++;
      const auto found = texts(phrases, count, "the text of a phrase");
      phrases += count;
      if (!found.empty()) {
        entry.source = found.front();
        entry.targets.assign(found.begin() + 1, found.end());
      }
    }
    *glossary =
        as_handle(Glossary(entries, translate_trt::runtime::is_true("ignore_case", ignore_case)));
  });
}

void tt_glossary_free(tt_glossary* glossary) { delete glossary; }

size_t tt_glossary_size(const tt_glossary* glossary) {
  return glossary == nullptr ? 0 : glossary->glossary->size();
}

size_t tt_glossary_phrases(const tt_glossary* glossary, size_t entry) {
  const GlossaryEntry* found = entry_at(glossary, entry);
  return found == nullptr ? 0 : 1 + found->targets.size();
}

tt_text tt_glossary_phrase(const tt_glossary* glossary, size_t entry, size_t index) {
  if (index >= tt_glossary_phrases(glossary, entry)) return {"", 0};
  const GlossaryEntry& found = *entry_at(glossary, entry);
  return as_text(index == 0 ? found.source : found.targets[index - 1]);
}

tt_status tt_glossary_terms(const tt_glossary* glossary, tt_text line, tt_text translation,
                            tt_terms** terms) {
  if (terms != nullptr) *terms = nullptr;
  return guarded([&] {
    require(terms != nullptr, "terms");
    require(glossary != nullptr, "glossary");
    const auto source = decode_utf8(texts(&line, 1, "the text of the line").front());
    const auto target = decode_utf8(texts(&translation, 1, "the text of the translation").front());
    *terms =
        new tt_terms{glossary->glossary, glossary->glossary->terms(source, target), std::string()};
  });
}

tt_status tt_glossary_annotate(const tt_glossary* glossary, tt_text line,
                               const tt_text* translation, int32_t appends, tt_text symbols,
                               tt_terms** terms) {
  if (terms != nullptr) *terms = nullptr;
  return guarded([&] {
    require(terms != nullptr, "terms");
    require(glossary != nullptr, "glossary");
    const auto source = decode_utf8(texts(&line, 1, "the text of the line").front());
    const auto characters = decode_utf8(texts(&symbols, 1, "the text of the symbols").front());
    if (characters.size() != 3) {
      throw translate_trt::runtime::input_error("symbols has " + std::to_string(characters.size()) +
                                                " characters; it must have three.");
    }
    std::u32string target;
    if (translation != nullptr) {
      target = decode_utf8(texts(translation, 1, "the text of the translation").front());
    }
    auto found = std::make_unique<tt_terms>(
        tt_terms{glossary->glossary, glossary->glossary->terms(source, target), std::string()});
    std::vector<Annotation> annotations;
    for (const Term& term : found->terms) {
      const auto& [begin, end, entry] = term.match;
      if (translation == nullptr) {
        annotations.push_back({begin, end, entry->targets.front()});
      } else if (term.translation) {
        annotations.push_back({begin, end, *term.translation});
      }
    }
    const TermAnnotation annotation(translate_trt::runtime::is_true("appends", appends),
                                    {characters[0], characters[1], characters[2]});
    found->annotated = encode_utf8(annotation.annotate(source, annotations));
    *terms = found.release();
  });
}

size_t tt_terms_size(const tt_terms* terms) { return terms == nullptr ? 0 : terms->terms.size(); }

tt_term tt_terms_term(const tt_terms* terms, size_t index) {
  return index < tt_terms_size(terms) ? as_term(terms->terms[index]) : as_term({});
}

tt_span tt_terms_span(const tt_terms* terms, size_t index) {
  if (index >= tt_terms_size(terms)) return {0, 0};
  return {terms->terms[index].match.begin, terms->terms[index].match.end};
}

tt_text tt_terms_annotated(const tt_terms* terms) {
  return terms == nullptr ? tt_text{"", 0} : as_text(terms->annotated);
}

void tt_terms_free(tt_terms* terms) { delete terms; }

tt_status tt_is_translatable(tt_text text, int32_t* translatable) {
  return guarded([&] {
    require(translatable != nullptr, "translatable");
    *translatable =
        translate_trt::runtime::is_translatable(decode_utf8(texts(&text, 1, "the text").front()));
  });
}
