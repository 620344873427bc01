// The C interface and its wrapper, without a bundle.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "api/calls.h"
#include "api/markup.h"
#include "api/result.h"
#include "base/options.h"
#include "base/utf8.h"
#include "check.h"
#include "translate_trt/translate_trt.hpp"

namespace translate_trt::runtime {

namespace {

void test_options_of_other_sizes() {
  tt_options options;
  CHECK(tt_options_default(&options, sizeof(options)) == TT_OK && options.beam_size == 4);
  CHECK(tt_options_default(nullptr, sizeof(options)) == TT_OPTION_ERROR);
  CHECK(tt_options_default(&options, sizeof(options) + 8) == TT_OPTION_ERROR);
  CHECK(contains(tt_last_error(), "struct_size is"));
  // A caller with an older header: its last fields have defaults.
  options.struct_size = offsetof(tt_options, min_length);
  options.beam_size = 7, options.min_length = 99;
  tt_options defaults;
  tt_options_default(&defaults, sizeof(defaults));
  const SearchOptions whole = read_options(&options);
  CHECK(whole.beam_size == 7 && whole.min_length == 0);
  // A caller with a newer header: unknown fields are accepted only if they are zero.
  struct {
    tt_options known;
    std::int64_t more;
  } newer = {defaults, 0};
  newer.known.struct_size = sizeof(newer);
  CHECK(thrown([&] { read_options(&newer.known); }).empty());
  newer.more = 1;
  CHECK(contains(thrown([&] { read_options(&newer.known); }), "does not know"));
}

void test_languages() {
  tt_options options;
  tt_options_default(&options, sizeof(options));
  CHECK(options.source_language == nullptr && options.target_language == nullptr);
  std::string name = "d\xff";
  options.target_language = name.c_str();
  const SearchOptions read = read_options(&options);
  name.clear();
  CHECK(!read.source_language && read.target_language == "d\uFFFD");
  write_options(read, &options, sizeof(options));
  CHECK(options.source_language == nullptr && options.target_language == read.target_language);
  translate_trt::SearchOptions wrapped(options);
  CHECK(!wrapped.source_language && wrapped.target_language == "d\uFFFD");
  wrapped.source_language = "en";
  const tt_options written = wrapped.to_c();
  CHECK(written.source_language == std::string("en"));
  CHECK(written.target_language == wrapped.target_language);
}

void test_options_out_of_range() {
  const auto refused = [](void (*change)(tt_options&)) {
    tt_options options;
    tt_options_default(&options, sizeof(options));
    change(options);
    return thrown([&] { read_options(&options); });
  };
  CHECK(refused([](tt_options&) {}).empty());
  CHECK(
      contains(refused([](tt_options& o) { o.beam_size = 0; }), "TT_OPTION_ERROR beam_size is 0"));
  CHECK(
      contains(refused([](tt_options& o) { o.length_penalty = -0.5; }), "length_penalty is -0.5"));
  CHECK(contains(refused([](tt_options& o) { o.length_penalty = NAN; }), "length_penalty is nan"));
  CHECK(contains(refused([](tt_options& o) { o.length_penalty_form = 2; }),
                 "length_penalty_form is 2"));
  CHECK(contains(refused([](tt_options& o) { o.max_length = -1; }), "max_length is -1"));
  CHECK(contains(refused([](tt_options& o) { o.min_length = -1; }), "min_length is -1"));
  CHECK(contains(refused([](tt_options& o) { o.max_length = 3, o.min_length = 4; }),
                 "min_length is 4"));
  CHECK(contains(refused([](tt_options& o) { o.num_hypotheses = 5; }), "num_hypotheses is 5"));
  CHECK(contains(refused([](tt_options& o) { o.early_stopping = 2; }), "early_stopping is 2"));
  CHECK(contains(refused([](tt_options& o) { o.alternatives = -1; }), "alternatives is -1"));
  CHECK(contains(refused([](tt_options& o) { o.alternatives = o.num_hypotheses = 2; }),
                 "num_hypotheses is 2; each of the alternatives"));
  CHECK(contains(refused([](tt_options& o) { o.min_alternative_prob = NAN; }),
                 "min_alternative_prob is nan"));
}

void test_null_and_empty() {
  tt_translator* translator = nullptr;
  tt_result* result = nullptr;
  CHECK(tt_translator_load(nullptr, nullptr, &translator) == TT_INPUT_ERROR);
  CHECK(std::strcmp(tt_last_error(), "bundle is NULL.") == 0);
  CHECK(tt_translator_load("x", nullptr, nullptr) == TT_INPUT_ERROR);
  CHECK(tt_translator_load("/nowhere", nullptr, &translator) == TT_BUNDLE_ERROR);
  CHECK(contains(tt_last_error(), "there is no bundle at /nowhere"));
  CHECK(translator == nullptr);
  CHECK(tt_translate(nullptr, nullptr, 0, nullptr, nullptr, &result) == TT_INPUT_ERROR);
  CHECK(tt_translate_ids(nullptr, nullptr, 0, nullptr, nullptr, nullptr) == TT_INPUT_ERROR);
  tt_translator_free(nullptr);
  tt_result_free(nullptr);
  CHECK(tt_result_size(nullptr) == 0 && tt_result_text(nullptr, 0, 0).size == 0);
  CHECK(tt_translator_source_languages(nullptr) + tt_translator_target_languages(nullptr) == 0);
  CHECK(*tt_translator_source_language(nullptr, 0) == 0);
  CHECK(*tt_translator_target_language(nullptr, 0) == 0);
  CHECK(tt_result_tokens(nullptr, 0, 0, 0).data == nullptr && *tt_translator_target(nullptr) == 0);
  CHECK(tt_translator_workers(nullptr) == 0 && tt_translator_batch_tokens(nullptr) == 0);
  CHECK(std::strcmp(tt_status_name(TT_MEMORY_ERROR), "TT_MEMORY_ERROR") == 0);
  CHECK(std::strcmp(tt_status_name(77), "unknown status") == 0);
}

// A result without alignments, made by the caller.
std::unique_ptr<tt_result> result_of(const std::string& text) {
  TextHypothesis one;
  one.text = text;
  one.pieces.resize(1);
  return std::make_unique<tt_result>(std::vector<Translation>{Translation{{one}}});
}

void test_markup() {
  const std::string source = "<p>a <b>b</b></p><p>-</p><p>c</p>";
  const tt_text text = {source.data(), source.size()};
  tt_markup* markup = nullptr;
  CHECK(tt_markup_new(&text, 1, TT_MARKUP_HTML, 1, nullptr) == TT_INPUT_ERROR);
  CHECK(tt_markup_new(nullptr, 1, TT_MARKUP_HTML, 1, &markup) == TT_INPUT_ERROR);
  CHECK(tt_markup_new(&text, 1, 3, 1, &markup) == TT_OPTION_ERROR);
  CHECK(contains(tt_last_error(), "kind is 3"));
  CHECK(tt_markup_new(&text, 1, TT_MARKUP_HTML, 2, &markup) == TT_OPTION_ERROR);
  CHECK(contains(tt_last_error(), "whole is 2") && markup == nullptr);
  CHECK(tt_markup_lines(nullptr).size == 0);
  CHECK(tt_markup_receive(nullptr, nullptr) == TT_INPUT_ERROR);
  CHECK(tt_markup_result(nullptr, nullptr) == TT_INPUT_ERROR);
  tt_markup_free(nullptr);

  CHECK(tt_markup_new(&text, 1, TT_MARKUP_HTML, 1, &markup) == TT_OK);
  const tt_lines lines = tt_markup_lines(markup);
  CHECK(lines.size == 2 && std::strcmp(lines.data[0].data, "a b") == 0);
  tt_result* result = nullptr;
  CHECK(tt_markup_result(markup, &result) == TT_INPUT_ERROR && result == nullptr);
  CHECK(contains(tt_last_error(), "not translated yet"));
  CHECK(tt_markup_receive(markup, result_of("x").get()) == TT_INPUT_ERROR);
  CHECK(contains(tt_last_error(), "not of the lines"));
  const auto two = std::make_unique<tt_result>(
      std::vector<Translation>{result_of("x")->translations[0], result_of("y")->translations[0]});
  CHECK(tt_markup_receive(markup, two.get()) == TT_INPUT_ERROR);
  two->round = markup->round;
  CHECK(tt_markup_receive(markup, two.get()) == TT_INPUT_ERROR);
  CHECK(contains(tt_last_error(), "without tt_submit_options.markup"));
  // Alignments without tokens: tags stay at the ends.
  for (auto& translation : two->translations) {
    TextHypothesis& one = translation.hypotheses[0];
    one.aligned = {decode_utf8(one.text), {{}}};
  }
  CHECK(tt_markup_receive(markup, two.get()) == TT_OK);
  CHECK(tt_markup_lines(markup).size == 0);
  CHECK(tt_markup_receive(markup, two.get()) == TT_INPUT_ERROR);  // a second time
  CHECK(tt_markup_result(markup, &result) == TT_OK && tt_result_size(result) == 1);
  const std::string found = tt_result_text(result, 0, 0).data;
  CHECK(contains(found, "<p>-</p><p>y</p>") && contains(found, "<b>") && contains(found, "x"));
  tt_result_free(result);
  tt_markup_free(markup);

  CHECK(tt_markup_new(nullptr, 0, TT_MARKUP_TEXT, 0, &markup) == TT_OK);
  CHECK(tt_markup_lines(markup).size == 0 && tt_markup_result(markup, &result) == TT_OK);
  CHECK(tt_result_size(result) == 0);
  tt_result_free(result);
  tt_markup_free(markup);
}

void test_arrays_stay_where_they_are() {
  tt_result result({{{{"x", 1, {}}}}});
  tt_result_arrays first, second;
  CHECK(tt_result_as_arrays(&result, &first, sizeof(first)) == TT_OK);
  CHECK(tt_result_as_arrays(&result, &second, sizeof(second)) == TT_OK);
  CHECK(first.scores == second.scores && first.texts == second.texts && first.scores[0] == 1);
}

void test_waits_of_no_number_are_refused() {
  tt_completions* completions = nullptr;
  CHECK(tt_completions_new(&completions) == TT_OK);
  void* context = nullptr;
  std::size_t count = 7;
  CHECK(tt_completions_wait(completions, std::nan(""), &context, 1, &count) == TT_INPUT_ERROR);
  CHECK(contains(tt_last_error(), "not a number") && count == 7);
  CHECK(tt_completions_wait(completions, 0, &context, 1, &count) == TT_OK && count == 0);
  tt_completions_free(completions);
}

void test_errors_are_of_their_thread() {
  tt_options_default(nullptr, 0);
  const std::string here = tt_last_error();
  std::thread([] {
    CHECK(std::strcmp(tt_last_error(), "") == 0);
    tt_translator_load("/elsewhere", nullptr, nullptr);
  }).join();
  CHECK(here == tt_last_error() && !here.empty());
}

void test_the_wrapper() {
  const auto loaded = translate_trt::Translator::try_load("/nowhere");
  CHECK(!loaded && loaded.error().status == TT_BUNDLE_ERROR);
  bool caught = false;
  try {
    translate_trt::Translator("/nowhere");
  } catch (const translate_trt::Error& error) {
    caught = error.status() == TT_BUNDLE_ERROR && contains(error.what(), "/nowhere");
  }
  CHECK(caught);
  translate_trt::SearchOptions options;
  CHECK(options.beam_size == 4 && !options.max_length && options.to_c().max_length == 0);
  options.max_length = 0;  // invalid, and not the same as no value
  const tt_options in_c = options.to_c();
  CHECK(contains(thrown([&] { read_options(&in_c); }), "max_length is"));
}

}  // namespace

void test_interface() {
  test_options_of_other_sizes();
  test_languages();
  test_options_out_of_range();
  test_null_and_empty();
  test_markup();
  test_arrays_stay_where_they_are();
  test_waits_of_no_number_are_refused();
  test_errors_are_of_their_thread();
  test_the_wrapper();
}

}  // namespace translate_trt::runtime
