#include "text/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

using sentencepiece::SentencePieceProcessor;

constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581, which SentencePiece writes for a space

std::unique_ptr<const SentencePieceProcessor> load(const std::filesystem::path& path) {
  const std::string remedy = "Copy the directory again or make it again.";
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    throw bundle_error("cannot read the tokenizer model " + path.u8string() + ": " +
                       std::strerror(errno) + ". " + remedy);
  }
  if (content.empty()) {
    throw bundle_error("the tokenizer model " + path.u8string() + " is empty. " + remedy);
  }
  auto model = std::make_unique<SentencePieceProcessor>();
  const auto status = model->LoadFromSerializedProto(content);
  if (!status.ok()) {
    throw bundle_error(path.u8string() + " is not a SentencePiece model, or only a part of one (" +
                       status.ToString() + "). " + remedy);
  }
  return model;
}

// SentencePiece should not fail, since its input is valid UTF-8 or its own ids.
void check(const sentencepiece::util::Status& status) {
  if (!status.ok()) throw std::runtime_error("SentencePiece failed: " + status.ToString());
}

// Whether every token is a whole word (_is_of_words in runtime/text/tokenizer.py).
bool is_of_words(const SentencePieceProcessor& model) {
  for (int piece = 0; piece < model.GetPieceSize(); ++piece) {
    const bool special = model.IsControl(piece) || model.IsUnknown(piece);
    if (!special && model.IdToPiece(piece).rfind(kSpace, 0) != 0) return false;
  }
  return true;
}

Tokens encode_words(const SentencePieceProcessor& model, std::string_view text) {
  Tokens tokens;
  while (!text.empty()) {
    const auto word = text.substr(0, text.find(' '));
    if (!word.empty()) tokens.push_back(model.PieceToId(std::string(kSpace).append(word)));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return tokens;
}

// The characters of each word of a text, as `encode_words` finds them.
std::vector<Span> spans_of_words(std::u32string_view text) {
  std::vector<Span> spans;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(U' ', begin), text.size());
    if (end > begin) spans.push_back({begin, end});
    begin = end + 1;
  }
  return spans;
}

std::vector<Span> spans_of(sentencepiece::ImmutableSentencePieceText found) {
  found.ConvertToUnicodeSpans();  // from bytes
  std::vector<Span> spans;
  for (const auto& piece : found.pieces()) spans.push_back({piece.begin(), piece.end()});
  return spans;
}

}  // namespace

struct Tokenizer::Model {
  explicit Model(const std::filesystem::path& path)
      : processor(load(path)), of_words(is_of_words(*processor)) {}

  Tokens encode(std::string_view text) const {
    const std::string cleaned = clean(text);
    // SentencePiece would merge consecutive unknown words into one token.
    if (of_words) return encode_words(*processor, cleaned);
    std::vector<int> ids;
    check(processor->Encode(cleaned, &ids));
    return {ids.begin(), ids.end()};
  }

  std::vector<Span> spans(std::string_view text) const {
    const std::string cleaned = clean(text);
    if (of_words) return spans_of_words(decode_utf8(cleaned));
    return spans_of(processor->EncodeAsImmutableProto(cleaned));
  }

  const std::unique_ptr<const SentencePieceProcessor> processor;
  const bool of_words;
};

Tokenizer::Tokenizer(const std::filesystem::path& source_model,
                     const std::filesystem::path& target_model)
    : target_(std::make_shared<Model>(target_model)),
      source_(source_model == target_model ? target_ : std::make_shared<Model>(source_model)) {}

Tokens Tokenizer::encode_source(std::string_view text) const { return source_->encode(text); }

Tokens Tokenizer::encode_target(std::string_view text) const { return target_->encode(text); }

std::string Tokenizer::decode(const Tokens& tokens) const {
  std::string text;
  check(target_->processor->Decode(std::vector<int>(tokens.begin(), tokens.end()), &text));
  return clean(text);
}

std::vector<Span> Tokenizer::source_spans(std::string_view text) const {
  return source_->spans(text);
}

std::pair<std::string, std::vector<Span>> Tokenizer::target_spans(const Tokens& tokens) const {
  const auto found =
      target_->processor->DecodeIdsAsImmutableProto(std::vector<int>(tokens.begin(), tokens.end()));
  return {clean(found.text()), spans_of(found)};
}

Tokenizer::WordStart Tokenizer::word_start(std::int64_t token) const {
  const std::string& piece = target_->processor->IdToPiece(static_cast<int>(token));
  if (piece == kSpace) return WordStart::kAlone;
  return piece.rfind(kSpace, 0) == 0 ? WordStart::kBegins : WordStart::kNone;
}

std::int64_t Tokenizer::source_vocabulary_size() const {
  return source_->processor->GetPieceSize();
}

std::int64_t Tokenizer::vocabulary_size() const { return target_->processor->GetPieceSize(); }

}  // namespace translate_trt::runtime
