// Translates sentences on one thread, for tools that count instructions:
//
//   translate_pieces MODEL BEAMS BATCH < SENTENCES
//
// SENTENCES: lines of ids, or, compiled with -D CTRANSLATE2 for that library, of pieces. Prints the
// number of sentences and of generated tokens. Both stop as soon as as many translations are
// finished as there are beams, as in benchmarks/systems.py.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#ifdef CTRANSLATE2
#include <ctranslate2/translator.h>
#else
#include <translate_trt/translate_trt.hpp>
#endif

namespace {

constexpr int kExtraLength = 50;
constexpr float kLengthPenalty = 0.6F;

#ifdef CTRANSLATE2

using Token = std::string;

class System {
 public:
  explicit System(const char* model)
      : translator_(model, ctranslate2::Device::CPU, ctranslate2::ComputeType::INT8, {0}, false,
                    {1, 0, -1}) {}

  // Returns the number of generated tokens.
  std::size_t translate(const std::vector<std::vector<Token>>& sentences, int beams) {
    ctranslate2::TranslationOptions options;
    options.beam_size = static_cast<std::size_t>(beams);
    options.length_penalty = kLengthPenalty;
    options.max_decoding_length = 0;
    for (const auto& sentence : sentences) {
      options.max_decoding_length =
          std::max(options.max_decoding_length, sentence.size() + kExtraLength);
    }
    std::size_t tokens = 0;
    for (const auto& found : translator_.translate_batch(sentences, options)) {
      tokens += found.output().size();
    }
    return tokens;
  }

 private:
  ctranslate2::Translator translator_;
};

#else

using Token = std::int32_t;

class System {
 public:
  explicit System(const char* model) : translator_(model, options()) {
    std::cerr << "kernels: " << translator_.kernels() << "\n";
  }

  // Returns the number of generated tokens.
  std::size_t translate(const std::vector<std::vector<Token>>& sentences, int beams) {
    translate_trt::SearchOptions options;
    options.beam_size = beams;
    options.length_penalty = kLengthPenalty;
    options.length_penalty_form = translate_trt::LengthPenalty::length;
    options.early_stopping = true;
    options.max_extra_length = kExtraLength;
    std::size_t tokens = 0;
    for (const auto& found : translator_.translate_ids(sentences, options)) {
      tokens += found.hypotheses[0].pieces[0].tokens.size();
    }
    return tokens;
  }

 private:
  static translate_trt::LoadOptions options() {
    translate_trt::LoadOptions load;
    load.target = "onnx-int8";
    load.threads = load.workers = 1;
    return load;
  }

  translate_trt::Translator translator_;
};

#endif

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: translate_pieces MODEL BEAMS BATCH < SENTENCES\n";
    return 2;
  }
  System system(arguments[1]);
  const int beams = std::atoi(arguments[2]);
  const auto batch = static_cast<std::size_t>(std::atoi(arguments[3]));
  std::vector<std::vector<Token>> sentences;
  std::size_t sentence_count = 0, tokens = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    sentences.emplace_back();
    for (Token token; words >> token;) sentences.back().push_back(token);
    ++sentence_count;
    if (sentences.size() == batch) {
      tokens += system.translate(sentences, beams);
      sentences.clear();
    }
  }
  if (!sentences.empty()) tokens += system.translate(sentences, beams);
  std::cout << "sentences: " << sentence_count << "\ntokens: " << tokens << "\n";
}
