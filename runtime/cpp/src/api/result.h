// Handle of results in the C interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/results.h"
#include "translate_trt/translate_trt.h"

struct tt_result {
  explicit tt_result(std::vector<translate_trt::runtime::Translation> found);

  // Null if the index is out of range.
  const translate_trt::runtime::TextHypothesis* hypothesis(std::size_t line,
                                                           std::size_t rank) const;
  const translate_trt::runtime::Hypothesis* piece(std::size_t line, std::size_t rank,
                                                  std::size_t piece) const;

  // Index of a piece that exists among those of all lines.
  std::size_t piece_index(std::size_t line, std::size_t rank, std::size_t piece) const;

  // What tt_result_arrays refers to, except for what is kept below; made when it is first asked
  // for.
  struct Arrays {
    std::vector<std::size_t> sentences, text_ends, log_prob_ends;
    std::string texts;
    std::vector<double> scores, piece_scores, log_probs;
    std::vector<std::uint8_t> flags;
  };

  // What tt_result_segments refers to, of a hypothesis.
  struct Segments {
    std::vector<std::vector<tt_span>> spans;
    std::vector<tt_segment> segments;
    std::string translation;
  };

  std::vector<translate_trt::runtime::Translation> translations;
  std::vector<std::size_t> hypothesis_ends, piece_ends, token_ends;  // see tt_result_arrays
  std::vector<std::int32_t> tokens;                                  // of all pieces
  std::vector<Segments> segments;  // by hypothesis; empty if there are none
  std::optional<Arrays> arrays;
  std::uint64_t round = 0;  // of texts with markup whose lines were translated (tt_markup)
};
