#include "base/options.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <sstream>
#include <string>

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

std::string is(const char* name, std::int64_t value) {
  return std::string(name) + " is " + std::to_string(value) + "; ";
}

// Returns `whole` with its first bytes replaced by the caller's structure, which may be older.
template <class Options>
Options completed(const Options* given, Options whole, const char* name) {
  const std::size_t size = given->struct_size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  // A larger size means that the structure was not initialized.
  bool known = size >= sizeof(std::size_t) && size < 4096;
  for (std::size_t i = sizeof(Options); known && i < size; ++i) known = bytes[i] == 0;
  if (!known) {
    throw option_error(std::string(name) + ": struct_size is " + std::to_string(size) +
                       ", or fields are set that this library (" + tt_version() +
                       ") does not know. Initialize the structure with " + name +
                       "_default, and use the header and the library of the same version.");
  }
  std::memcpy(&whole, given, std::min(size, sizeof(Options)));
  whole.struct_size = sizeof(Options);
  return whole;
}

// ---- conversion of a field between C and C++, selected by its C++ type ----

void read(const char*, std::int32_t given, int& value) { value = given; }
void read(const char*, double given, double& value) { value = given; }
void read(const char*, std::int32_t given, LengthPenaltyForm& value) {
  value = static_cast<LengthPenaltyForm>(given);
}
void read(const char* name, std::int32_t given, bool& value) { value = is_true(name, given); }
void read(const char*, std::int32_t given, std::optional<int>& value) {
  if (given != 0) value = given;
}
void read(const char*, const char* given, std::optional<std::string>& value) {
  // Invalid UTF-8 becomes U+FFFD, also in messages.
  if (given != nullptr) value = encode_utf8(decode_utf8(given));
}

std::int32_t in_c(int value) { return value; }
double in_c(double value) { return value; }
std::int32_t in_c(LengthPenaltyForm value) { return static_cast<std::int32_t>(value); }
std::int32_t in_c(bool value) { return value; }
std::int32_t in_c(const std::optional<int>& value) { return value.value_or(0); }
const char* in_c(const std::optional<std::string>& value) {
  return value ? value->c_str() : nullptr;
}

template <class Options>
void write(Options from, Options* written, std::size_t size, const char* name) {
  if (written == nullptr) throw option_error(std::string(name) + ": options is NULL.");
  if (size < sizeof(std::size_t) || size > sizeof(Options)) {
    throw option_error(std::string(name) + ": struct_size is " + std::to_string(size) +
                       ", and this library (" + tt_version() + ") supports at most " +
                       std::to_string(sizeof(Options)) +
                       ". Use the header and the library of the same version.");
  }
  from.struct_size = size;
  std::memcpy(written, &from, size);
}

std::string text_of(std::int32_t value) { return std::to_string(value); }
std::string text_of(double value) { return shown(value); }
std::string text_of(const char* value) { return value; }

bool fits(const Range& range, double value) { return range.holds(value); }
bool fits(const Range&, const char*) { return true; }

template <class T>
bool is_set(const T&) {
  return true;
}
template <class T>
bool is_set(const std::optional<T>& value) {
  return value.has_value();
}

}  // namespace

bool is_true(const char* name, std::int32_t value) {
  if (value != 0 && value != 1) throw option_error(is(name, value) + "it must be 0 or 1.");
  return value == 1;
}

void SearchOptions::check() const {
  const auto fail = [](const char* name, const std::string& value, const std::string& demand) {
    throw option_error(std::string(name) + " is " + value + "; " + demand + ".");
  };
  for_each_option([&](const auto& field) {
    const auto& value = this->*field.value;
    if (!is_set(value) || fits(field.range, in_c(value))) return;
    fail(field.name, text_of(in_c(value)), field.demand);
  });
  if (suppress_sequences) read_sequences(*suppress_sequences);
#define TT_RULE(name, refused, demand) \
  if (refused) fail(#name, text_of(name), demand);
#include "base/search_options.inc"
}

const char* SearchOptions::marking_option() const {
  if (repetition_penalty != 1) return "repetition_penalty";
  if (no_repeat_ngram_size > 0) return "no_repeat_ngram_size";
  if (suppress_sequences) return "suppress_sequences";
  return disable_unk ? "disable_unk" : nullptr;
}

const char* SearchOptions::changing_option() const {
  if (marks_tokens()) return marking_option();
  return samples() ? "sampling_top_k" : nullptr;
}

std::vector<std::vector<std::int64_t>> read_sequences(const std::string& text) {
  const auto fail = [&](const std::string& problem) {
    throw option_error("suppress_sequences is " + in_quotes(text) + "; " + problem +
                       ". Write tokens with spaces between them and commas between sequences, such "
                       "as \"12 40, 7\".");
  };
  std::vector<std::vector<std::int64_t>> sequences;
  const auto commas = std::count(text.begin(), text.end(), ',');
  if (static_cast<std::size_t>(commas) >= kMaxSuppressed) {
    throw option_error("suppress_sequences has " + std::to_string(commas + 1) +
                       " sequences; it may have up to " + std::to_string(kMaxSuppressed) + ".");
  }
  // getline drops an empty sequence at the end.
  if (text.empty() || text.back() == ',') fail("a sequence has no tokens");
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream words(part);
    std::vector<std::int64_t>& sequence = sequences.emplace_back();
    for (std::string word; words >> word;) {
      const bool is_token =
          word.size() <= 9 && word.find_first_not_of("0123456789") == std::string::npos;
      if (!is_token) fail(in_quotes(word) + " is not a token");
      sequence.push_back(std::stoll(word));
    }
    if (sequence.empty()) fail("a sequence has no tokens");
  }
  return sequences;
}

double SearchOptions::length_penalty_beta() const {
  return length_penalty_form == LengthPenaltyForm::kGnmt ? 5.0 : 0.0;
}

double SearchOptions::penalty(std::int64_t length) const {
  const double beta = length_penalty_beta();
  return std::pow((beta + static_cast<double>(length)) / (beta + 1), length_penalty);
}

std::int64_t SearchOptions::max_length_for(std::int64_t source_length) const {
  return max_length ? *max_length : source_length + max_extra_length;
}

SearchOptions read_options(const tt_options* given, const SearchOptions& defaults) {
  if (given == nullptr) return defaults;
  tt_options whole;
  write_options({}, &whole, sizeof(whole));
  whole = completed(given, whole, "tt_options");
  SearchOptions options;
  options.source_language = defaults.source_language;
  options.target_language = defaults.target_language;
  for_each_option(
      [&](const auto& field) { read(field.name, whole.*field.in_c, options.*field.value); });
  options.check();
  return options;
}

void write_options(const SearchOptions& options, tt_options* written, std::size_t size) {
  tt_options from = {};
  for_each_option([&](const auto& field) { from.*field.in_c = in_c(options.*field.value); });
  write(from, written, size, "tt_options");
}

tt_load_options complete(const tt_load_options* given) {
  tt_load_options defaults;
  write_default(&defaults, sizeof(defaults));
  if (given == nullptr) return defaults;
  tt_load_options options = completed(given, defaults, "tt_load_options");
  is_true("shortlist", options.shortlist);
  is_true("check_hashes", options.check_hashes);
  return options;
}

tt_submit_options complete(const tt_submit_options* given) {
  tt_submit_options options;
  write_default(&options, sizeof(options));
  if (given != nullptr) options = completed(given, options, "tt_submit_options");
  is_true("score", options.score);
  is_true("alignments", options.alignments);
  is_true("words", options.words);
  is_true("translate_all", options.translate_all);
  is_true("terms", options.terms);
  is_true("segments", options.segments);
  if (!(options.alignment_threshold <= 1)) {  // also true for NaN
    throw option_error("alignment_threshold is " + shown(options.alignment_threshold) +
                       "; it must be from 0 to 1, or negative.");
  }
  if (!(options.timeout >= 0)) {  // also true for NaN
    throw option_error("timeout is " + shown(options.timeout) + "; it must be at least 0.");
  }
  if (options.caller >> 63 != 0) {
    throw option_error("caller is " + std::to_string(options.caller) +
                       "; it must be less than 2^63.");
  }
  return options;
}

tt_engines complete(const tt_engines* given) {
  const tt_engines options = completed(given, tt_engines{}, "tt_engines");
  is_true("cuda_graphs", options.cuda_graphs);
  if (options.poll_every < 1 || options.poll_every > 64) {
    throw option_error(is("poll_every", options.poll_every) + "it must be from 1 to 64.");
  }
  if (options.encoder_profiles == nullptr || options.encoder_profile_count == 0 ||
      options.step_profiles == nullptr || options.step_profile_count == 0 ||
      options.functions == nullptr ||
      options.functions->struct_size < offsetof(tt_device_functions, memory) ||
      options.functions->struct_size > sizeof(tt_device_functions)) {
    throw option_error(
        "tt_engines has no profiles, or its functions have a size that this library does not "
        "know.");
  }
  return options;
}

tt_device_functions complete(const tt_device_functions& given) {
  tt_device_functions functions = {};
  std::memcpy(&functions, &given, given.struct_size);
  functions.struct_size = sizeof(functions);
  return functions;
}

void write_default(tt_load_options* written, std::size_t size) {
  tt_load_options from = {};
  from.check_hashes = 1;
  write(from, written, size, "tt_load_options");
}

void write_default(tt_submit_options* written, std::size_t size) {
  tt_submit_options options = {};
  options.alignment_threshold = -1;
  write(options, written, size, "tt_submit_options");
}

void write_memory(const tt_engine_memory& memory, tt_engine_memory* written, std::size_t size) {
  write(memory, written, size, "tt_engine_memory");
}

void write_statistics(const tt_statistics& statistics, tt_statistics* written, std::size_t size) {
  write(statistics, written, size, "tt_statistics");
}

void write_arrays(const tt_result_arrays& arrays, tt_result_arrays* written, std::size_t size) {
  write(arrays, written, size, "tt_result_arrays");
}

}  // namespace translate_trt::runtime
