// Handle of texts with markup in the C interface.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/markup.h"
#include "translate_trt/translate_trt.h"

struct tt_markup {
  std::vector<std::string> names;  // of the texts, in error messages
  translate_trt::runtime::MarkedTexts marked;
  std::vector<tt_text> lines;  // to translate next

  tt_markup(std::vector<std::string> names_of_texts, translate_trt::runtime::MarkedTexts texts)
      : names(std::move(names_of_texts)), marked(std::move(texts)) {
    list_lines();
  }

  // Makes the array of the lines to translate next.
  void list_lines() {
    lines.clear();
    for (const std::string& line : marked.lines()) lines.push_back({line.c_str(), line.size()});
  }

  // The name of the text that each line is from.
  std::vector<std::string> names_of_lines() const {
    std::vector<std::string> found;
    for (const std::size_t owner : marked.owners()) found.push_back(names[owner]);
    return found;
  }
};
