// Conversion between text and token ids (runtime/text/tokenizer.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace translate_trt::runtime {

using Tokens = std::vector<std::int64_t>;

inline std::int64_t length(const Tokens& tokens) {
  return static_cast<std::int64_t>(tokens.size());
}

// Begin and end of a part of a text, in characters.
using Span = std::pair<std::size_t, std::size_t>;

// The source and target tokenizers, which may share one file. Thread-safe.
class Tokenizer {
 public:
  // Throws a bundle error if a file is missing, truncated, or not a SentencePiece model.
  Tokenizer(const std::filesystem::path& source_model, const std::filesystem::path& target_model);

  Tokens encode_source(std::string_view text) const;
  Tokens encode_target(std::string_view text) const;

  // Decodes target tokens; the text is always a single line.
  std::string decode(const Tokens& tokens) const;

  // The characters of a source text that each of its tokens stands for. Spans ascend. The white
  // space before a word belongs to its first token, and the span of a token may be empty.
  std::vector<Span> source_spans(std::string_view text) const;

  // The text of target tokens, as by `decode`, and the characters that each token became.
  std::pair<std::string, std::vector<Span>> target_spans(const Tokens& tokens) const;

  // Whether a target token begins with a space, or is nothing but one.
  enum class WordStart { kNone, kBegins, kAlone };
  WordStart word_start(std::int64_t token) const;

  std::int64_t source_vocabulary_size() const;
  std::int64_t vocabulary_size() const;

 private:
  struct Model;
  std::shared_ptr<const Model> target_, source_;
};

}  // namespace translate_trt::runtime
