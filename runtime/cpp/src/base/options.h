// Search options (runtime/interface/search_options.py), and conversions of the C option structures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "translate_trt/device.h"
#include "translate_trt/translate_trt.h"

namespace translate_trt::runtime {

// Most sequences of suppress_sequences, and most candidates that a token is drawn from by rank.
// ---- limits, made by scripts/declare.py ----
inline constexpr std::size_t kMaxSuppressed = 256;
inline constexpr int kMaxTopK = 1024;
// ---- end ----

// Beam size above which a message is logged: the cost of a step grows with its square.
inline constexpr int kManyBeams = 64;

// Formula of the length penalty. The fixed underlying type lets an invalid value of a caller pass
// until `check` reports it.
enum class LengthPenaltyForm : std::int32_t {
  kGnmt = TT_LENGTH_PENALTY_GNMT,
  kLength = TT_LENGTH_PENALTY_LENGTH,
};

// Search options; docs/beam-search.md is the specification.
struct SearchOptions {
#define TT_OPTION(type, name, value, range, demand) type name = value;
#include "base/search_options.inc"

  // Throws an option error that names the first option out of range, or that is not well-formed.
  void check() const;

  // Name of the first option that marks tokens (rule 13); null if none does.
  const char* marking_option() const;
  bool marks_tokens() const { return marking_option() != nullptr; }

  // Whether tokens are drawn at random (rule 14).
  bool samples() const { return sampling_top_k != 1; }

  // Name of the first option that marks or draws tokens; null if none does.
  const char* changing_option() const;

  // The beta of ((beta + length) / (beta + 1)) ** alpha for this form.
  double length_penalty_beta() const;

  // The length penalty of a hypothesis of `length` tokens, which divides its log-probability.
  double penalty(std::int64_t length) const;

  // Maximum number of generated tokens for a source of `source_length` tokens without end symbol.
  std::int64_t max_length_for(std::int64_t source_length) const;
};

// Reads sequences of tokens such as "12 40, 7": tokens apart by spaces, sequences by commas. Throws
// an option error.
std::vector<std::vector<std::int64_t>> read_sequences(const std::string& text);

// Numbers that an option may be.
struct Range {
  double least, most;
  bool above = false;  // whether `least` itself is too small

  bool holds(double value) const {  // false for NaN
    return value >= least && value <= most && !(above && value == least);
  }
};

// A field of the search options: its name, its members in C and C++, its values, and the end of the
// message about others. The type of the C++ member selects the conversion.
template <class InC, class Value>
struct OptionField {
  const char* name;
  InC tt_options::* in_c;
  Value SearchOptions::* value;
  Range range;
  const char* demand;

  constexpr OptionField(const char* its_name, InC tt_options::* its_c,
                        Value SearchOptions::* its_value, Range its_range, const char* its_demand)
      : name(its_name), in_c(its_c), value(its_value), range(its_range), demand(its_demand) {}
};

namespace option_table {

constexpr Range within(double least, double most) { return {least, most}; }
constexpr Range above(double least, double most) { return {least, most, true}; }
constexpr Range kAny = within(0, 1);

// All search options, in the order of tt_options.
inline constexpr std::tuple kOptionFields = {
#define TT_OPTION(type, name, value, range, demand) \
  OptionField{#name, &tt_options::name, &SearchOptions::name, range, demand},
#include "base/search_options.inc"
};

}  // namespace option_table

// Calls visit(field) for every search option.
template <class Visit>
void for_each_option(const Visit& visit) {
  std::apply([&](const auto&... fields) { (visit(fields), ...); }, option_table::kOptionFields);
}

// Converts and checks options of the C interface; null takes the defaults, which also give the
// languages that are not set.
SearchOptions read_options(const tt_options* given, const SearchOptions& defaults = {});

// Writes the first `size` bytes of the options as a C structure, whose strings belong to `options`.
void write_options(const SearchOptions& options, tt_options* written, std::size_t size);

// Converts a flag of the C interface. Throws an option error that names it unless it is 0 or 1.
bool is_true(const char* name, std::int32_t value);

// Converts a caller's structure, which begins with its size, to this library's version of it:
// fields that the caller's version lacks get their defaults. Throws an option error if the
// structure has fields that this library does not know.
tt_load_options complete(const tt_load_options* given);
tt_submit_options complete(const tt_submit_options* given);
tt_engines complete(const tt_engines* given);

// As above, for the functions of a completed tt_engines.
tt_device_functions complete(const tt_device_functions& given);

// Write the first `size` bytes of the default options.
void write_default(tt_load_options* written, std::size_t size);
void write_default(tt_submit_options* written, std::size_t size);

// Writes the first `size` bytes of the memory.
void write_memory(const tt_engine_memory& memory, tt_engine_memory* written, std::size_t size);

// Writes the first `size` bytes of the statistics.
void write_statistics(const tt_statistics& statistics, tt_statistics* written, std::size_t size);

// Writes the first `size` bytes of the arrays.
void write_arrays(const tt_result_arrays& arrays, tt_result_arrays* written, std::size_t size);

}  // namespace translate_trt::runtime
