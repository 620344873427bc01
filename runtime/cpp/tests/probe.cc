// A server for tests in other languages: reads a JSON request per line of standard
// input and writes a JSON answer per line of standard output.
//
//   {"load": {"bundle": ..., options of LoadOptions}}
//   {"lines": [...] or "ids": [...], "options": {...}, "prefixes": [...], "callers": 1}
//   {"lines": [...], "constraints": [[...], ...] or "constraint_tokens": [[[...], ...], ...]}
//   {"lines": [...], "alignments": true, "alignment_threshold": 0.2, "words": true}
//   {"lines": [...], "translate_all": true}
//   {"lines": [...], "line_names": [...]}
//   {"lines": [...], "markup": "html", "whole": true}
//   {"lines": [...], "markup": "html", "submitted": [...]}: submits other lines for the texts
//   {"lines": [...], "terminology": "content of a glossary", "ignore_case": true}
//   {"terminology": ..., "ignore_case": true, "pairs": [[line, translation], ...]}
//   {"lines": [...], "options": {...}, "threads": 64}
//   {"lines": [...], "cancel": 3, "timeout": 2}
//   {"lines": [...], "fork": true}
//   {"statistics": true}
//
// The answer is {"error": [status, message]} or {"found": [...]}. `callers`: number
// of threads that make the same call at the same time; if an answer differs, the first such answer
// is "other". `threads`: number of threads that submit the lines one by one and wait for each.
// `cancel`: submits each line as a job and cancels every n-th at once; the other jobs alternate
// between no timeout and `timeout` milliseconds. The answer has the translation or status of each
// line, and in "told" the number of jobs whose callback was called. `fork`: makes the call in a
// forked process.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "translate_trt/translate_trt.hpp"

namespace {

using nlohmann::json;
using translate_trt::Glossary;
using translate_trt::LoadOptions;
using translate_trt::Markup;
using translate_trt::Result;
using translate_trt::SearchOptions;
using translate_trt::Translation;
using translate_trt::Translator;
using Translations = std::vector<Translation>;
using Seconds = std::chrono::duration<double>;

template <class T>
void take(const json& given, const char* name, T& value) {
  if (given.contains(name)) value = given[name].get<T>();
}

json as_json(const translate_trt::Failure& failure) {
  return {{"error", {tt_status_name(failure.status), failure.message}}};
}

json as_json(const Translations& translations) {
  json lines = json::array();
  for (const Translation& translation : translations) {
    json& line = lines.emplace_back(json::array());
    for (const auto& hypothesis : translation.hypotheses) {
      json pieces = json::array();
      for (const auto& piece : hypothesis.pieces) {
        pieces.push_back({{"tokens", piece.tokens},
                          {"score", piece.score},
                          {"token_log_probs", piece.token_log_probs},
                          {"truncated", piece.truncated},
                          {"looped", piece.looped},
                          {"attention", piece.attention}});
      }
      json pairs = json::array();
      for (const auto& pair : hypothesis.alignment) pairs.push_back({pair.source, pair.target});
      json words = json::array();
      for (const auto& word : hypothesis.words) {
        words.push_back({word.text, word.log_prob, word.confidence});
      }
      line.push_back({{"text", hypothesis.text},
                      {"score", hypothesis.score},
                      {"pieces", pieces},
                      {"alignment", pairs},
                      {"words", words}});
    }
  }
  return lines;
}

LoadOptions load_options(const json& given) {
  LoadOptions options;
  take(given, "target", options.target);
  take(given, "shortlist", options.shortlist);
  take(given, "threads", options.threads);
  take(given, "workers", options.workers);
  take(given, "batch_tokens", options.batch_tokens);
  take(given, "device", options.device);
  take(given, "check_hashes", options.check_hashes);
  take(given, "onnxruntime", options.onnxruntime);
  take(given, "kernels", options.kernels);
  take(given, "batches", options.batches);
  take(given, "capacity", options.capacity);
  take(given, "provider", options.provider);
  options.log = [](const std::string& message) { std::cerr << message << "\n"; };
  return options;
}

std::optional<SearchOptions> search_options(const json& request) {
  if (!request.contains("options")) return std::nullopt;
  const json& given = request["options"];
  SearchOptions options;
  take(given, "beam_size", options.beam_size);
  take(given, "length_penalty", options.length_penalty);
  if (given.contains("length_penalty_form")) {
    options.length_penalty_form = given["length_penalty_form"] == "length"
                                      ? translate_trt::LengthPenalty::length
                                      : translate_trt::LengthPenalty::gnmt;
  }
  take(given, "early_stopping", options.early_stopping);
  if (given.contains("max_length")) options.max_length = given["max_length"].get<int>();
  take(given, "min_length", options.min_length);
  take(given, "num_hypotheses", options.num_hypotheses);
  take(given, "return_attention", options.return_attention);
  take(given, "alternatives", options.alternatives);
  take(given, "min_alternative_prob", options.min_alternative_prob);
  take(given, "max_extra_length", options.max_extra_length);
  if (given.contains("source_language")) {
    options.source_language = given["source_language"].get<std::string>();
  }
  if (given.contains("target_language")) {
    options.target_language = given["target_language"].get<std::string>();
  }
  return options;
}

Result<Glossary> glossary_of(const json& request) {
  bool ignore_case = false;
  take(request, "ignore_case", ignore_case);
  return Glossary::try_parse(request["terminology"].get<std::string>(), ignore_case, "terms.tsv");
}

// The terms of lines and their translations.
json terms_of(const json& request) {
  const auto glossary = glossary_of(request);
  if (!glossary) return as_json(glossary.error());
  json answer = json::array();
  for (const json& pair : request["pairs"]) {
    const auto terms = glossary->try_terms(pair[0].get<std::string>(), pair[1].get<std::string>());
    if (!terms) return as_json(terms.error());
    json& found = answer.emplace_back(json::array());
    for (const auto& term : *terms) {
      found.push_back(
          {term.source, term.target, term.translation ? json(*term.translation) : json(nullptr)});
    }
  }
  return {{"size", glossary->size()}, {"terms", answer}};
}

Markup markup_of(const json& request) {
  const auto name = request["markup"].get<std::string>();
  return name == "html" ? Markup::html : name == "xml" ? Markup::xml : Markup::text;
}

// Submits lines that are not those of texts with markup.
Result<Translations> submit_others(const Translator& translator, const json& request) {
  const auto texts = request["lines"].get<std::vector<std::string>>();
  const auto lines = request["submitted"].get<std::vector<std::string>>();
  const auto marked = translate_trt::MarkedTexts::try_make(texts, markup_of(request));
  if (!marked) return marked.error();
  std::vector<tt_text> views;
  for (const std::string& line : lines) views.push_back({line.data(), line.size()});
  tt_submit_options options;
  tt_submit_options_default(&options, sizeof(options));
  options.markup = marked->handle();
  tt_job* job = nullptr;
  const tt_status status =
      tt_submit(translator.handle(), views.data(), views.size(), &options, nullptr, &job);
  tt_job_free(job);
  if (status != TT_OK) return translate_trt::Failure{status, tt_last_error()};
  return Translations();
}

Result<Translations> call(const Translator& translator, const json& request) {
  if (request.contains("submitted")) return submit_others(translator, request);
  const auto options = search_options(request);
  if (request.contains("ids")) {
    std::vector<std::vector<std::int32_t>> sources, prefixes;
    take(request, "ids", sources);
    take(request, "prefixes", prefixes);
    return translator.try_translate_ids(sources, options, prefixes);
  }
  std::vector<std::string> lines, prefixes;
  take(request, "lines", lines);
  take(request, "prefixes", prefixes);
  if (!request.contains("constraints") && !request.contains("constraint_tokens") &&
      !request.contains("markup") && !request.contains("alignments") &&
      !request.contains("words") && !request.contains("line_names") &&
      !request.contains("terminology") && !request.contains("translate_all")) {
    return translator.try_translate(lines, options, prefixes);
  }
  translate_trt::SubmitOptions submit;
  submit.search = options;
  take(request, "constraints", submit.constraints);
  take(request, "constraint_tokens", submit.constraint_tokens);
  take(request, "alignments", submit.alignments);
  take(request, "alignment_threshold", submit.alignment_threshold);
  take(request, "line_names", submit.line_names);
  take(request, "words", submit.words);
  take(request, "translate_all", submit.translate_all);
  std::optional<Glossary> glossary;
  if (request.contains("terminology")) {
    auto read = glossary_of(request);
    if (!read) return read.error();
    glossary.emplace(*std::move(read));
    submit.terminology = &*glossary;
  }
  if (request.contains("markup")) {
    bool whole = false;
    take(request, "whole", whole);
    if (request.contains("seconds")) submit.timeout = Seconds(request["seconds"].get<double>());
    return translator.try_translate_markup(lines, markup_of(request), whole, submit);
  }
  auto job = translator.try_submit(lines, submit, prefixes);
  return job ? job->try_get() : job.error();
}

json translate(const Translator& translator, const json& request) {
  std::size_t callers = 1;
  take(request, "callers", callers);
  std::vector<std::optional<Result<Translations>>> results(callers);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result.emplace(call(translator, request)); });
  }
  for (auto& thread : threads) thread.join();
  const auto answer_of = [](const Result<Translations>& result) {
    return result ? json{{"found", as_json(*result)}} : as_json(result.error());
  };
  json answer = answer_of(*results[0]);
  for (const auto& result : results) {
    const json other = answer_of(*result);
    if (other != answer) answer["other"] = other;
  }
  return answer;
}

json translate_by_threads(const Translator& translator, const json& request) {
  const auto lines = request["lines"].get<std::vector<std::string>>();
  std::vector<Translation> found(lines.size());
  std::vector<std::optional<translate_trt::Failure>> failures(lines.size());
  std::atomic<std::size_t> next = 0;
  const auto options = search_options(request);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < request["threads"].get<std::size_t>(); ++i) {
    threads.emplace_back([&] {
      for (std::size_t line = next++; line < lines.size(); line = next++) {
        translate_trt::SubmitOptions given;
        given.search = options;
        auto job = translator.try_submit({lines[line]}, given);
        auto result = job ? job->try_get() : job.error();
        if (result) {
          found[line] = (*std::move(result)).front();
        } else {
          failures[line] = result.error();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) return as_json(*failure);
  }
  return {{"found", as_json(found)}};
}

json translate_and_cancel(const Translator& translator, const json& request) {
  const auto every = request["cancel"].get<std::size_t>();
  const Seconds timeout(request["timeout"].get<double>() / 1000);
  std::atomic<int> told = 0;
  std::vector<translate_trt::Job> jobs;
  json answers = json::array();
  for (const std::string& line : request["lines"].get<std::vector<std::string>>()) {
    const std::size_t index = jobs.size();
    translate_trt::SubmitOptions options;
    options.finished = [&told] { ++told; };
    if (index % 2 == 1) options.timeout = timeout;
    jobs.push_back(*translator.try_submit({line}, options));
    if (index % every == 0) jobs.back().cancel();
  }
  for (auto& job : jobs) {
    job.wait();
    auto result = job.try_get();
    if (result) {
      answers.push_back(result->front().text());
    } else {
      answers.push_back(tt_status_name(result.error().status));
    }
  }
  // A job is finished before its callback is called.
  while (told < static_cast<int>(jobs.size())) std::this_thread::yield();
  return {{"found", answers}, {"told", told.load()}};
}

json translate_in_a_fork(const Translator& translator, const json& request) {
  int ends[2];
  if (pipe(ends) != 0) return nullptr;
  const pid_t child = fork();
  if (child == 0) {
    const auto found = call(translator, request);
    const std::string text =
        (found ? json{{"found", as_json(*found)}} : as_json(found.error())).dump();
    const bool written = write(ends[1], text.data(), text.size()) > 0;
    tt_translator_free(const_cast<tt_translator*>(translator.handle()));  // has no effect
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = read(ends[0], buffer, sizeof(buffer)); count > 0;
       count = read(ends[0], buffer, sizeof(buffer))) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? json::parse(text) : json(status);
}

json statistics(const Translator& translator) {
  const tt_statistics found = translator.statistics();
  return {{"pending", found.pending},
          {"running", found.running},
          {"sentences", found.sentences},
          {"source_tokens", found.source_tokens},
          {"target_tokens", found.target_tokens},
          {"steps", found.steps},
          {"rows", found.rows},
          {"worker_seconds", found.worker_seconds},
          {"graph_seconds", found.graph_seconds}};
}

json answer(std::optional<Translator>& translator, const json& request) {
  if (request.contains("pairs")) return terms_of(request);
  if (request.contains("statistics")) return statistics(translator.value());
  if (request.contains("threads")) return translate_by_threads(translator.value(), request);
  if (request.contains("cancel")) return translate_and_cancel(translator.value(), request);
  if (request.contains("fork")) return translate_in_a_fork(translator.value(), request);
  if (!request.contains("load")) return translate(translator.value(), request);
  translator.reset();
  auto loaded = Translator::try_load(request["load"]["bundle"].get<std::string>(),
                                     load_options(request["load"]));
  if (!loaded) return as_json(loaded.error());
  translator.emplace(*std::move(loaded));
  const auto calibrated = translator->try_calibrated();
  return {{"target", translator->target()},
          {"calibrated", calibrated ? json(*calibrated) : as_json(calibrated.error())},
          {"kernels", translator->kernels()},
          {"onnxruntime", translator->onnxruntime()},
          {"source_languages", translator->source_languages()},
          {"target_languages", translator->target_languages()},
          {"beam_size", translator->default_options().beam_size}};
}

}  // namespace

int main() {
  std::optional<Translator> translator;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << answer(translator, json::parse(line)).dump() << std::endl;
  }
}
