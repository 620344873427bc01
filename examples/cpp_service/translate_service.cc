// A service in miniature: lines of standard input are submitted as they are read, share batches,
// and come out in their order, a JSON object for each.
//
//   translate_service BUNDLE [TARGET [TARGET_LANGUAGE [SOURCE_LANGUAGE]]] < test.en > test.jsonl
//
// TARGET is such as onnx-int8, "" the bundle's first; languages are for models of several.

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <translate_trt/translate_trt.hpp>
#include <utility>
#include <vector>

namespace {

using translate_trt::Job;
using translate_trt::SearchOptions;
using translate_trt::SubmitOptions;
using translate_trt::Translation;
using translate_trt::Translator;

constexpr std::size_t kMostJobs = 256;  // at a time, so that memory has a bound

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

// Prints the oldest job's translation.
void finish(std::deque<Job>& jobs) {
  print(jobs.front().get());
  jobs.pop_front();
}

// Submits each line as it is read, and prints translations in the order of the lines.
void serve(const Translator& translator, const SubmitOptions& options, std::istream& input) {
  std::deque<Job> jobs;
  std::string line;
  while (std::getline(input, line)) {
    jobs.push_back(translator.submit({line}, options));
    while (jobs.size() == kMostJobs || (!jobs.empty() && jobs.front().finished())) finish(jobs);
  }
  while (!jobs.empty()) finish(jobs);
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
  load.workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  load.log = [](const std::string& message) { std::cerr << message + "\n"; };
  try {
    const Translator translator(arguments[1], load);
    SearchOptions options = translator.default_options();
    if (count > 3) options.target_language = arguments[3];
    if (count > 4) options.source_language = arguments[4];
    SubmitOptions submit;
    submit.search = options;
    serve(translator, submit, std::cin);
  } catch (const std::exception& error) {
    std::cerr << "translate_service: " << error.what() << "\n";
    return 1;
  }
}
