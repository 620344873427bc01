#include "api/result.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "api/calls.h"
#include "base/options.h"
#include "base/utf8.h"
#include "text/alignment.h"

using translate_trt::runtime::aligned_words;
using translate_trt::runtime::AlignedSegment;
using translate_trt::runtime::as_term;
using translate_trt::runtime::as_text;
using translate_trt::runtime::decode_utf8;
using translate_trt::runtime::encode_utf8;
using translate_trt::runtime::guarded;
using translate_trt::runtime::Hypothesis;
using translate_trt::runtime::require;
using translate_trt::runtime::Span;
using translate_trt::runtime::TextHypothesis;
using translate_trt::runtime::texts;
using translate_trt::runtime::Translation;
using translate_trt::runtime::Word;

namespace {

std::vector<tt_span> as_spans(const std::vector<Span>& spans) {
  std::vector<tt_span> found;
  for (const auto& [begin, end] : spans) found.push_back({begin, end});
  return found;
}

std::vector<Span> from_spans(const tt_span* spans, std::size_t count) {
  require(spans != nullptr || count == 0, "the spans of a segment");
  std::vector<Span> found;
  for (std::size_t i = 0; i < count; ++i) found.emplace_back(spans[i].begin, spans[i].end);
  return found;
}

const TextHypothesis* hypothesis_at(const tt_result* result, std::size_t line, std::size_t rank) {
  return result == nullptr ? nullptr : result->hypothesis(line, rank);
}

const Hypothesis* piece_at(const tt_result* result, std::size_t line, std::size_t rank,
                           std::size_t piece) {
  return result == nullptr ? nullptr : result->piece(line, rank, piece);
}

tt_result::Arrays arrays_of(const tt_result& result) {
  tt_result::Arrays made;
  for (const Translation& translation : result.translations) {
    made.sentences.push_back(translation.sentences);
    for (const TextHypothesis& hypothesis : translation.hypotheses) {
      made.texts += hypothesis.text;
      made.text_ends.push_back(made.texts.size());
      made.scores.push_back(hypothesis.score);
      for (const Hypothesis& piece : hypothesis.pieces) {
        made.piece_scores.push_back(piece.score);
        made.flags.push_back(static_cast<std::uint8_t>((piece.truncated ? TT_TRUNCATED : 0) |
                                                       (piece.looped ? TT_LOOPED : 0)));
        made.log_probs.insert(made.log_probs.end(), piece.token_log_probs.begin(),
                              piece.token_log_probs.end());
        made.log_prob_ends.push_back(made.log_probs.size());
      }
    }
  }
  return made;
}

}  // namespace

tt_result::tt_result(std::vector<Translation> found) : translations(std::move(found)) {
  for (const Translation& translation : translations) {
    for (const TextHypothesis& hypothesis : translation.hypotheses) {
      for (const Hypothesis& piece : hypothesis.pieces) {
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
        token_ends.push_back(tokens.size());
      }
      piece_ends.push_back(token_ends.size());
      if (!hypothesis.aligned) continue;
      segments.resize(piece_ends.size());
      Segments& made = segments.back();
      made.translation = encode_utf8(hypothesis.aligned->target);
      for (const AlignedSegment& segment : hypothesis.aligned->segments) {
        const auto& source = made.spans.emplace_back(as_spans(segment.source));
        const tt_span* source_spans = source.data();
        const std::size_t source_size = source.size();
        const auto& target = made.spans.emplace_back(as_spans(segment.target));
        made.segments.push_back(
            {source_spans, target.data(), source_size, target.size(), segment.weights.data()});
      }
    }
    hypothesis_ends.push_back(piece_ends.size());
  }
  segments.resize(segments.empty() ? 0 : piece_ends.size());
}

const TextHypothesis* tt_result::hypothesis(std::size_t line, std::size_t rank) const {
  if (line >= translations.size()) return nullptr;
  const auto& hypotheses = translations[line].hypotheses;
  return rank < hypotheses.size() ? &hypotheses[rank] : nullptr;
}

const Hypothesis* tt_result::piece(std::size_t line, std::size_t rank, std::size_t piece) const {
  const TextHypothesis* found = hypothesis(line, rank);
  return found != nullptr && piece < found->pieces.size() ? &found->pieces[piece] : nullptr;
}

std::size_t tt_result::piece_index(std::size_t line, std::size_t rank, std::size_t piece) const {
  const std::size_t index = (line == 0 ? 0 : hypothesis_ends[line - 1]) + rank;
  return (index == 0 ? 0 : piece_ends[index - 1]) + piece;
}

void tt_result_free(tt_result* result) { delete result; }

size_t tt_result_size(const tt_result* result) {
  return result == nullptr ? 0 : result->translations.size();
}

size_t tt_result_hypotheses(const tt_result* result, size_t line) {
  return line < tt_result_size(result) ? result->translations[line].hypotheses.size() : 0;
}

tt_text tt_result_text(const tt_result* result, size_t line, size_t rank) {
  const TextHypothesis* found = hypothesis_at(result, line, rank);
  if (found == nullptr) return {"", 0};
  return as_text(found->text);
}

double tt_result_score(const tt_result* result, size_t line, size_t rank) {
  const TextHypothesis* found = hypothesis_at(result, line, rank);
  return found == nullptr ? 0 : found->score;
}

size_t tt_result_pieces(const tt_result* result, size_t line, size_t rank) {
  const TextHypothesis* found = hypothesis_at(result, line, rank);
  return found == nullptr ? 0 : found->pieces.size();
}

double tt_result_piece_score(const tt_result* result, size_t line, size_t rank, size_t piece) {
  const Hypothesis* found = piece_at(result, line, rank, piece);
  return found == nullptr ? 0 : found->score;
}

tt_tokens tt_result_tokens(const tt_result* result, size_t line, size_t rank, size_t piece) {
  const Hypothesis* found = piece_at(result, line, rank, piece);
  if (found == nullptr) return {nullptr, 0};
  const std::size_t index = result->piece_index(line, rank, piece);
  const std::size_t begin = index == 0 ? 0 : result->token_ends[index - 1];
  return {result->tokens.data() + begin, found->tokens.size()};
}

tt_log_probs tt_result_token_log_probs(const tt_result* result, size_t line, size_t rank,
                                       size_t piece) {
  const Hypothesis* found = piece_at(result, line, rank, piece);
  if (found == nullptr) return {nullptr, 0};
  return {found->token_log_probs.data(), found->token_log_probs.size()};
}

int32_t tt_result_looped(const tt_result* result, size_t line, size_t rank, size_t piece) {
  const Hypothesis* found = piece_at(result, line, rank, piece);
  return found != nullptr && found->looped ? 1 : 0;
}

int32_t tt_result_truncated(const tt_result* result, size_t line, size_t rank, size_t piece) {
  const Hypothesis* found = piece_at(result, line, rank, piece);
  return found != nullptr && found->truncated;
}

tt_word_pairs tt_result_alignment(const tt_result* result, size_t line, size_t rank) {
  const TextHypothesis* found = hypothesis_at(result, line, rank);
  if (found == nullptr) return {nullptr, 0};
  return {found->alignment.data(), found->alignment.size()};
}

size_t tt_result_words(const tt_result* result, size_t line, size_t rank) {
  const TextHypothesis* found = hypothesis_at(result, line, rank);
  return found == nullptr ? 0 : found->words.size();
}

tt_word tt_result_word(const tt_result* result, size_t line, size_t rank, size_t word) {
  if (word >= tt_result_words(result, line, rank)) return {{"", 0}, 0, 0};
  const Word& found = hypothesis_at(result, line, rank)->words[word];
  return {as_text(found.text), found.log_prob, found.confidence};
}

tt_attention tt_result_attention(const tt_result* result, size_t line, size_t rank, size_t piece) {
  const Hypothesis* found = piece_at(result, line, rank, piece);
  if (found == nullptr || found->attention.empty()) return {nullptr, 0, 0};
  const std::size_t rows = found->token_log_probs.size();
  return {found->attention.data(), rows, found->attention.size() / rows};
}

tt_segments tt_result_segments(const tt_result* result, size_t line, size_t rank) {
  if (hypothesis_at(result, line, rank) == nullptr || result->segments.empty()) {
    return {nullptr, 0, {"", 0}};
  }
  const std::size_t first = line == 0 ? 0 : result->hypothesis_ends[line - 1];
  const auto& [spans, found, translation] = result->segments[first + rank];
  return {found.data(), found.size(), as_text(translation)};
}

tt_status tt_align_words(tt_text line, tt_segments segments, double threshold, tt_result** result) {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    require(result != nullptr, "result");
    require(segments.data != nullptr || segments.size == 0, "segments");
    std::vector<AlignedSegment> given;
    for (std::size_t i = 0; i < segments.size; ++i) {
      const tt_segment& one = segments.data[i];
      const std::size_t count = one.source_size * one.target_size;
      require(one.weights != nullptr || count == 0, "the weights of a segment");
      given.push_back({from_spans(one.source, one.source_size),
                       from_spans(one.target, one.target_size),
                       {one.weights, one.weights + count}});
    }
    TextHypothesis found;
    found.alignment = aligned_words(
        decode_utf8(texts(&line, 1, "the text of the line").front()),
        decode_utf8(texts(&segments.translation, 1, "the translation").front()), given, threshold);
    *result = new tt_result({Translation{{std::move(found)}}});
  });
}

size_t tt_result_terms(const tt_result* result, size_t line, size_t rank) {
  const TextHypothesis* found = hypothesis_at(result, line, rank);
  return found == nullptr ? 0 : found->terms.size();
}

tt_term tt_result_term(const tt_result* result, size_t line, size_t rank, size_t index) {
  if (index >= tt_result_terms(result, line, rank)) return as_term({});
  return as_term(hypothesis_at(result, line, rank)->terms[index]);
}

tt_status tt_result_as_arrays(tt_result* result, tt_result_arrays* arrays, size_t struct_size) {
  return guarded([&] {
    require(result != nullptr, "result");
    if (!result->arrays) result->arrays = arrays_of(*result);
    const tt_result::Arrays& made = *result->arrays;
    const tt_result_arrays here = {sizeof(tt_result_arrays),       result->translations.size(),
                                   result->piece_ends.size(),      result->token_ends.size(),
                                   result->hypothesis_ends.data(), made.sentences.data(),
                                   result->piece_ends.data(),      made.scores.data(),
                                   made.text_ends.data(),          made.texts.data(),
                                   made.piece_scores.data(),       made.flags.data(),
                                   result->token_ends.data(),      result->tokens.data(),
                                   made.log_prob_ends.data(),      made.log_probs.data()};
    translate_trt::runtime::write_arrays(here, arrays, struct_size);
  });
}
