// Texts with markup in the C interface.

#include <string>
#include <utility>
#include <vector>

#include "api/calls.h"
#include "api/markup.h"
#include "api/result.h"
#include "base/options.h"
#include "base/utf8.h"

using translate_trt::runtime::guarded;
using translate_trt::runtime::MarkedTexts;
using translate_trt::runtime::Markup;
using translate_trt::runtime::require;
using translate_trt::runtime::texts;

tt_status tt_markup_new(const tt_text* given, size_t count, int32_t kind, int32_t whole,
                        tt_markup** markup) {
  return tt_markup_new_named(given, nullptr, count, kind, whole, markup);
}

tt_status tt_markup_new_named(const tt_text* given, const tt_text* names, size_t count,
                              int32_t kind, int32_t whole, tt_markup** markup) {
  if (markup != nullptr) *markup = nullptr;
  return guarded([&] {
    require(markup != nullptr, "markup");
    require(given != nullptr || count == 0, "texts");
    if (kind < TT_MARKUP_HTML || kind > TT_MARKUP_TEXT) {
      throw translate_trt::runtime::option_error("kind is " + std::to_string(kind) +
                                                 "; it must be one of TT_MARKUP_...");
    }
    std::vector<std::u32string> decoded;
    std::vector<std::string> names_of_texts;
    for (const auto name : texts(names, names == nullptr ? 0 : count, "the text of a name")) {
      names_of_texts.emplace_back(name);
    }
    for (const auto text : texts(given, count, "the text")) {
      decoded.push_back(translate_trt::runtime::decode_utf8(text));
      if (names == nullptr) {
        names_of_texts.push_back("text " + std::to_string(decoded.size()) + " of this call");
      }
    }
    MarkedTexts marked(decoded, names_of_texts, static_cast<Markup>(kind),
                       translate_trt::runtime::is_true("whole", whole));
    *markup = new tt_markup(std::move(marked), std::move(names_of_texts));
  });
}

tt_lines tt_markup_lines(const tt_markup* markup) {
  if (markup == nullptr) return {nullptr, 0};
  return {markup->lines.data(), markup->lines.size()};
}

tt_status tt_markup_receive(tt_markup* markup, const tt_result* result) {
  return guarded([&] {
    require(markup != nullptr, "markup");
    require(result != nullptr, "result");
    if (result->round != markup->round) {
      throw translate_trt::runtime::input_error(
          "the result is not of the lines that tt_markup_lines returns now, submitted with "
          "tt_submit_options.markup.");
    }
    markup->marked.receive(result->translations);
    markup->list_lines();
  });
}

tt_status tt_markup_result(const tt_markup* markup, tt_result** result) {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    require(markup != nullptr, "markup");
    require(result != nullptr, "result");
    *result = new tt_result(markup->marked.translations());
  });
}

void tt_markup_free(tt_markup* markup) { delete markup; }
