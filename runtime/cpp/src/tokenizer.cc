#include "tokenizer.h"

#include <sentencepiece_processor.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "errors.h"
#include "text.h"

namespace translate_trt::runtime {

namespace {

using sentencepiece::SentencePieceProcessor;

std::shared_ptr<const SentencePieceProcessor> load(const std::filesystem::path& path) {
  const std::string mend = "Copy the directory again or make it again.";
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    throw bundle_error("cannot read the tokenizer model " + path.string() + ": " +
                       std::strerror(errno) + ". " + mend);
  }
  if (content.empty()) {
    throw bundle_error("the tokenizer model " + path.string() + " is empty. " + mend);
  }
  auto model = std::make_shared<SentencePieceProcessor>();
  const auto status = model->LoadFromSerializedProto(content);
  if (!status.ok()) {
    throw bundle_error(path.string() + " is not a SentencePiece model, or only a part of one (" +
                       status.ToString() + "). " + mend);
  }
  return model;
}

// Of a library that should not fail, since what it is given is UTF-8 and ids of its own.
void check(const sentencepiece::util::Status& status) {
  if (!status.ok()) throw std::runtime_error("SentencePiece failed: " + status.ToString());
}

Tokens encode(const SentencePieceProcessor& model, std::string_view text) {
  std::vector<int> ids;
  check(model.Encode(clean(text), &ids));
  return {ids.begin(), ids.end()};
}

}  // namespace

Tokenizer::Tokenizer(const std::filesystem::path& source_model,
                     const std::filesystem::path& target_model)
    : target_(load(target_model)),
      source_(source_model == target_model ? target_ : load(source_model)) {}

Tokens Tokenizer::encode_source(std::string_view text) const { return encode(*source_, text); }

Tokens Tokenizer::encode_target(std::string_view text) const { return encode(*target_, text); }

std::string Tokenizer::decode(const Tokens& tokens) const {
  std::string text;
  check(target_->Decode(std::vector<int>(tokens.begin(), tokens.end()), &text));
  return clean(text);
}

std::int64_t Tokenizer::source_vocabulary_size() const { return source_->GetPieceSize(); }

std::int64_t Tokenizer::vocabulary_size() const { return target_->GetPieceSize(); }

}  // namespace translate_trt::runtime
