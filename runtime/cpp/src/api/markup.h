// Handle of texts with markup in the C interface.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/markup.h"
#include "translate_trt/translate_trt.h"

struct tt_markup {
  translate_trt::runtime::MarkedTexts marked;
  std::vector<std::string> names;  // of the texts in error messages
  std::vector<tt_text> lines;      // to translate next
  std::uint64_t round = 0;         // number of these lines, of all that this process has made

  tt_markup(translate_trt::runtime::MarkedTexts texts, std::vector<std::string> names_of_texts)
      : marked(std::move(texts)), names(std::move(names_of_texts)) {
    list_lines();
  }

  // Makes the array of the lines to translate next.
  void list_lines() {
    static std::atomic<std::uint64_t> last_round = 0;
    round = ++last_round;
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
