// A minimal translation service: submits lines of standard input as they are read, and prints a
// JSON object for each line, in the order of the input.
//
//   translate_service BUNDLE [TARGET [TARGET_LANGUAGE [SOURCE_LANGUAGE]]] < test.en > test.jsonl
//
// TARGET: such as onnx-int8; "" selects the bundle's first target. The languages are for
// multilingual models.

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

constexpr std::size_t kMaxJobs = 256;  // unfinished jobs, which bounds the memory

// Quotes a translation, which is a single line of valid UTF-8, as a JSON string.
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

// Waits for the oldest job and prints its translation.
void finish(std::deque<Job>& jobs) {
  print(jobs.front().get());
  jobs.pop_front();
}

// Submits lines as they are read, and prints translations in the order of the lines.
void serve(const Translator& translator, const SubmitOptions& options, std::istream& input) {
  std::deque<Job> jobs;
  std::string line;
  while (std::getline(input, line)) {
    jobs.push_back(translator.submit({line}, options));
    while (jobs.size() == kMaxJobs || (!jobs.empty() && jobs.front().finished())) finish(jobs);
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
