// Conversion between text and token ids (runtime/text/tokenizer.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace translate_trt::runtime {

using Tokens = std::vector<std::int64_t>;

// The source and target tokenizers, which may share one file. Thread-safe.
class Tokenizer {
 public:
  // Throws a bundle error if a file is missing, truncated, or not a SentencePiece model.
  Tokenizer(const std::filesystem::path& source_model, const std::filesystem::path& target_model);

  Tokens encode_source(std::string_view text) const;
  Tokens encode_target(std::string_view text) const;

  // Decodes target tokens; the text is always a single line.
  std::string decode(const Tokens& tokens) const;

  std::int64_t source_vocabulary_size() const;
  std::int64_t vocabulary_size() const;

 private:
  struct Model;
  std::shared_ptr<const Model> target_, source_;
};

}  // namespace translate_trt::runtime
