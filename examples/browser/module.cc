// The runtime as translator.js calls it: one translator, and texts of lines.

#include <emscripten.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "translate_trt/translate_trt.hpp"

namespace {

std::optional<translate_trt::Translator> translator;
std::string answer;  // of the last call, valid until the next one

// Calls a function that returns text. Returns "+" and the text, or "-" and the message of an error.
template <class Function>
const char* answered(const Function& function) {
  try {
    answer = "+" + function();
  } catch (const std::exception& error) {
    answer = std::string("-") + error.what();
  }
  return answer.c_str();
}

}  // namespace

// Loads a target of a bundle; "" takes the first one. Returns the name of the kernels.
extern "C" EMSCRIPTEN_KEEPALIVE const char* load_bundle(const char* bundle, const char* target) {
  return answered([&] {
    translator.reset();
    translate_trt::LoadOptions options;
    if (*target != '\0') options.target = target;
    translator.emplace(bundle, options);
    return translator->kernels();
  });
}

// Translates lines, separated by line breaks. beam_size: 0 takes the bundle's.
extern "C" EMSCRIPTEN_KEEPALIVE const char* translate_lines(const char* text, int beam_size) {
  return answered([&] {
    if (!translator) throw std::runtime_error("there is no model: load a bundle first.");
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    translate_trt::SearchOptions options = translator->default_options();
    if (beam_size != 0) options.beam_size = beam_size;
    std::string translations;
    for (const auto& one : translator->translate(lines, options)) translations += one.text() + "\n";
    return translations;
  });
}
