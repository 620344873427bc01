// What tests and benchmarks of other languages talk to: a request per line of standard input, an
// answer per line of standard output, both JSON.
//
//   {"load": {"bundle": ..., options of LoadOptions}}
//   {"lines": [...] or "ids": [...], "options": {...}, "prefixes": [...], "callers": 1}
//
// The answer is {"error": [status, message]} or {"seconds": ..., "found": [...]}. `callers` threads
// make the same call at once; their answers must be the same, or the first that differs is the
// answer's "other".

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "translate_trt/translate_trt.hpp"

namespace {

using nlohmann::json;
using translate_trt::LoadOptions;
using translate_trt::Result;
using translate_trt::SearchOptions;
using translate_trt::Translation;
using translate_trt::Translator;
using Translations = std::vector<Translation>;

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
                          {"attention", piece.attention}});
      }
      line.push_back({{"text", hypothesis.text}, {"score", hypothesis.score}, {"pieces", pieces}});
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
  if (given.contains("source_language")) {
    options.source_language = given["source_language"].get<std::string>();
  }
  if (given.contains("target_language")) {
    options.target_language = given["target_language"].get<std::string>();
  }
  return options;
}

Result<Translations> call(const Translator& translator, const json& request) {
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
  return translator.try_translate(lines, options, prefixes);
}

json translate(const Translator& translator, const json& request) {
  std::size_t callers = 1;
  take(request, "callers", callers);
  std::vector<std::optional<Result<Translations>>> results(callers);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result.emplace(call(translator, request)); });
  }
  for (auto& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const auto answer_of = [](const Result<Translations>& result) {
    return result ? json{{"found", as_json(*result)}} : as_json(result.error());
  };
  json answer = answer_of(*results[0]);
  for (const auto& result : results) {
    const json other = answer_of(*result);
    if (other != answer) answer["other"] = other;
  }
  answer["seconds"] = seconds.count();
  return answer;
}

json answer(std::optional<Translator>& translator, const json& request) {
  if (!request.contains("load")) return translate(translator.value(), request);
  translator.reset();
  auto loaded = Translator::try_load(request["load"]["bundle"].get<std::string>(),
                                     load_options(request["load"]));
  if (!loaded) return as_json(loaded.error());
  translator.emplace(*std::move(loaded));
  return {{"target", translator->target()},
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
