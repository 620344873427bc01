// A service in miniature: lines of standard input are translated by several threads, which share
// one loaded bundle, and come out in their order, a JSON object for each.
//
//   translate_service BUNDLE [TARGET [TARGET_LANGUAGE [SOURCE_LANGUAGE]]] < test.en > test.jsonl
//
// TARGET is such as onnx-int8, "" the bundle's first; languages are for models of several.

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <translate_trt/translate_trt.hpp>
#include <utility>
#include <vector>

namespace {

using translate_trt::SearchOptions;
using translate_trt::Translation;
using translate_trt::Translator;
using Lines = std::vector<std::string>;

constexpr std::size_t kLinesPerCall = 64;

// At most so many lines; none at the end of the input.
Lines read_lines(std::istream& input) {
  Lines lines;
  std::string line;
  while (lines.size() < kLinesPerCall && std::getline(input, line)) {
    lines.push_back(std::move(line));
  }
  return lines;
}

// Text that is valid UTF-8 and one line, as translations are, in JSON's quotes.
std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') json += '\\';
    json += character;
  }
  return json + "\"";
}

void print(const std::vector<Translation>& translations) {
  for (const Translation& translation : translations) {
    std::printf("{\"translation\": %s, \"score\": %.4f}\n", quoted(translation.text()).c_str(),
                translation.score());
  }
}

// Several calls are under way at once; their results are printed in the order of the lines.
void serve(const Translator& translator, const SearchOptions& options, std::istream& input) {
  const std::size_t calls = std::max(1u, std::thread::hardware_concurrency());
  std::deque<std::future<std::vector<Translation>>> running;
  for (Lines lines = read_lines(input); !lines.empty(); lines = read_lines(input)) {
    if (running.size() == calls) {
      print(running.front().get());
      running.pop_front();
    }
    running.push_back(std::async(std::launch::async, [&, lines = std::move(lines)] {
      return translator.translate(lines, options);
    }));
  }
  for (auto& call : running) print(call.get());
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2 || count > 5) {
    std::cerr << "usage: translate_service BUNDLE [TARGET [TARGET_LANGUAGE [SOURCE_LANGUAGE]]] "
                 "< LINES\n";
    return 2;
  }
  translate_trt::LoadOptions load;
  if (count > 2) load.target = arguments[2];
  load.threads = 1;  // of each call: there are as many calls as cores
  load.log = [](const std::string& message) { std::cerr << message + "\n"; };
  try {
    const Translator translator(arguments[1], load);
    SearchOptions options = translator.default_options();
    if (count > 3) options.target_language = arguments[3];
    if (count > 4) options.source_language = arguments[4];
    serve(translator, options, std::cin);
  } catch (const std::exception& error) {
    std::cerr << "translate_service: " << error.what() << "\n";
    return 1;
  }
}
