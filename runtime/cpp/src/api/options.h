// Decoding options (runtime/options.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "translate_trt/device.h"
#include "translate_trt/translate_trt.h"

namespace translate_trt::runtime {

// Of alpha: with n ** 10, the penalty of the longest hypothesis there can be is finite in float32.
inline constexpr int kMaxLengthPenalty = 10;

// Beams from which on the log is told: the cost of a step grows with the square of their number.
inline constexpr int kManyBeams = 64;

// Formula of the length penalty. The underlying type is fixed: an invalid number of a caller is
// kept until `check` reports it.
enum class LengthPenaltyForm : std::int32_t {
  kGnmt = TT_LENGTH_PENALTY_GNMT,
  kLength = TT_LENGTH_PENALTY_LENGTH,
};

// How to search (the specification is docs/beam-search.md).
struct SearchOptions {
  int beam_size = 4;
  double length_penalty = 0.6;
  LengthPenaltyForm length_penalty_form = LengthPenaltyForm::kGnmt;
  bool early_stopping = false;
  std::optional<int> max_length;
  int min_length = 0;
  int num_hypotheses = 1;
  bool return_attention = false;
  std::optional<std::string> source_language, target_language;  // of a model of several

  // An option error that names the option, if a value is out of range.
  void check() const;

  // The beta of ((beta + length) / (beta + 1)) ** alpha for this form.
  double length_penalty_beta() const;

  // What the score of a hypothesis of so many tokens is divided by.
  double penalty(std::int64_t length) const;

  // Largest number of generated tokens for a source of that many tokens (no end symbol).
  std::int64_t max_length_for(std::int64_t source_length) const;
};

// A field of the search options: its name, and where C and C++ keep it. The type of `value` decides
// how the field is read.
template <class InC, class Value>
struct OptionField {
  const char* name;
  InC tt_options::* in_c;
  Value SearchOptions::* value;

  constexpr OptionField(const char* its_name, InC tt_options::* its_c,
                        Value SearchOptions::* its_value)
      : name(its_name), in_c(its_c), value(its_value) {}
};

// All fields, in the order of tt_options.
#define TT_OPTION(name) \
  OptionField { #name, &tt_options::name, &SearchOptions::name }
inline constexpr std::tuple kOptionFields = {
    TT_OPTION(beam_size),       TT_OPTION(length_penalty),   TT_OPTION(length_penalty_form),
    TT_OPTION(early_stopping),  TT_OPTION(max_length),       TT_OPTION(min_length),
    TT_OPTION(num_hypotheses),  TT_OPTION(return_attention), TT_OPTION(source_language),
    TT_OPTION(target_language),
};
#undef TT_OPTION

// Calls visit(field) for every field.
template <class Visit>
void for_each_option(const Visit& visit) {
  std::apply([&](const auto&... fields) { (visit(fields), ...); }, kOptionFields);
}

// Of the C interface, checked. languages: whose languages are taken where none are given.
SearchOptions read_options(const tt_options& given, const SearchOptions& languages = {});

// The first `size` bytes of what these options are in C; its texts are theirs.
void write_options(const SearchOptions& options, tt_options* written, std::size_t size);

// A structure that begins with its size, in this library's own size: what the caller's has not is
// as in `defaults`. An option error if it has what this library does not know.
tt_options complete(const tt_options* given, const tt_options& defaults);
tt_load_options complete(const tt_load_options* given);
tt_submit_options complete(const tt_submit_options* given);
tt_engines complete(const tt_engines* given);

// The first `size` bytes of the default ones.
void write_default(tt_load_options* written, std::size_t size);
void write_default(tt_submit_options* written, std::size_t size);

// The first `size` bytes of these.
void write_statistics(const tt_statistics& statistics, tt_statistics* written, std::size_t size);

}  // namespace translate_trt::runtime
