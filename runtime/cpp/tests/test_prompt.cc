// Prompts.

#include <cstdint>
#include <string>
#include <utility>

#include "bundle/contract.h"
#include "bundle/fields.h"
#include "bundle/prompt.h"
#include "check.h"

namespace translate_trt::runtime {

namespace {

using Largest = std::pair<std::int64_t, std::int64_t>;
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

void test_tokens() {
  const SearchOptions options = told("fr", "nl");
  CHECK(kTarget.of_source(options) == Tokens({5, 22}));
  CHECK(kTarget.of_target(options) == Tokens({unscored(6), unscored(32)}));
  CHECK(kTarget.source_length() == 2 && kTarget.largest() == Largest(22, 32));
  CHECK(kSource.of_source(told({}, "deu")) == Tokens({31}) && kSource.of_source({}).empty());
  CHECK(kSource.of_target(told({}, "deu")).empty());
  CHECK(kSource.source_length() == 1 && kSource.largest() == Largest(33, -1));
  const Prompt none;
  CHECK(none.of_source(options).empty() && none.of_target(options).empty());
  CHECK(none.source_length() == 0 && none.largest() == Largest(-1, -1));
}

void test_lines() {
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

void test_check() {
  const auto refused = [](const Prompt& prompt, const SearchOptions& options) {
    return contains(thrown([&] { prompt.check(options, "en", std::nullopt); }), "TT_OPTION_ERROR");
  };
  CHECK(!refused(kTarget, told("en", "de")) && !refused(kSource, {}));
  CHECK(!refused(kSource, told("en", {})));  // the language of the model
  CHECK(refused(kTarget, told("en", {})) && refused(kTarget, told({}, "de")));
  CHECK(refused(kTarget, told("en", "")) && refused(kSource, told("fr", "deu")));
  CHECK(refused({}, told({}, "de")));
}

void test_reading() {
  const auto read = [](const char* name, const Json& value) {
    Json json = {{"source", {1, 2}},
                 {"target", Json::array()},
                 {"source_languages", Json::object()},
                 {"target_languages", {{"de", 7}}},
                 {"target_side", "source"}};
    json[name] = value;
    return thrown([&] {
      const Prompt prompt = Prompt::read(Fields(json, "m.json", "prompt"));
      CHECK(prompt.before_source && prompt.source == Tokens({1, 2}) && prompt.target.empty());
      CHECK(prompt.source_languages.empty() && prompt.target_languages == Languages({{"de", 7}}));
    });
  };
  CHECK(read("more", 7).empty());  // a field of a later version
  CHECK(contains(read("target_side", "left"), "'prompt.target_side' must be one of"));
  CHECK(contains(read("source", {1, 2.5}), "'prompt.source' must be a whole number"));
  CHECK(contains(read("target", {{"de", 7}}), "'prompt.target' must be a list of whole numbers"));
  CHECK(contains(read("target_languages", {{"de", -7}}), "'prompt.target_languages.de' must be"));
  CHECK(contains(read("source_languages", nullptr), "'prompt.source_languages' must be an object"));
}

}  // namespace

void test_prompt() {
  test_tokens();
  test_lines();
  test_check();
  test_reading();
}

}  // namespace translate_trt::runtime
