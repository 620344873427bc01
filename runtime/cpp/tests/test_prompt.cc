// Language codes before lines; tests/runtime/bundle/test_prompt.py has the rest of prompts.

#include <cstdint>
#include <string>
#include <utility>

#include "bundle/contract.h"
#include "bundle/prompt.h"
#include "check.h"

namespace translate_trt::runtime {

namespace {

using Line = std::pair<std::u32string, std::string>;  // a line and its language

// Prompts like those of M2M100, with a prefix like BART, and of OPUS-MT.
const Prompt kTarget = {{5}, {6}, {{"en", 21}, {"fr", 22}}, {{"de", 31}, {"nl", 32}}, false};
const Prompt kSource = {{}, {}, {}, {{"deu", 31}, {"\u6f22", 32}, {"a b", 33}}, true};

SearchOptions told(std::optional<std::string> source, std::optional<std::string> target) {
  SearchOptions options;
  options.source_language = std::move(source);
  options.target_language = std::move(target);
  return options;
}

}  // namespace

void test_prompt() {
  const auto of_line = [](const Prompt& prompt, std::u32string_view line) {
    const auto [text, options] = prompt.of_line(line, told("en", "nl"), "line 3");
    return Line(text, *options.target_language);
  };
  const auto none = [](const std::u32string& text) { return Line(text, "nl"); };
  CHECK(of_line(kSource, U">>deu<< a ") == Line(U"a ", "deu"));
  CHECK(of_line(kSource, U"\u3000 >>\u6f22<<\u00a0\ta") == Line(U"a", "\u6f22"));
  CHECK(of_line(kSource, U">>deu<<") == Line(U"", "deu"));
  CHECK(of_line(kSource, U">>deu<<<") == Line(U"<", "deu"));
  CHECK(of_line(kSource, U">>deu<< >>deu<< a") == Line(U">>deu<< a", "deu"));
  for (const std::u32string text :
       {U"", U" ", U">", U">>", U">>deu", U">>deu<", U">>deu< <", U">><<", U">>abcd<< a",
        U">>a b<< a", U"> >deu<< a", U">>>deu<< a", U"a >>deu<<", U">>de"}) {
    CHECK(of_line(kSource, text) == none(text));
  }
  for (const std::u32string text : {U">>xxx<< a", U" >>xx_Latn<<a"}) {
    CHECK(contains(thrown([&] { of_line(kSource, text); }), "the language code of line 3 'xx"));
    CHECK(of_line(kTarget, text) == none(text));
  }
  // If translations begin with the language, only the options select it.
  CHECK(of_line(kTarget, U">>de<< a") == none(U">>de<< a"));
}

}  // namespace translate_trt::runtime
