// The two graphs' inputs and outputs (runtime/contract.py, which says what they mean).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace translate_trt::runtime {

inline constexpr float kMasked = -1e9f;    // hides what must not count
inline constexpr std::int64_t kEmpty = 0;  // in a place of a shortlist that no token has
// In forced_tokens: any token may come next. given(t): t comes next, and its log-probability does
// not count.
inline constexpr std::int64_t kFree = -1;
inline constexpr std::int64_t given(std::int64_t token) { return -2 - token; }
inline constexpr const char* kNext = "next_";

enum class Type { kInt64, kFloat32, kFloat16, kBFloat16, kBool };

std::size_t size_of(Type type);  // bytes

// As ONNX Runtime writes them, such as "tensor(float)".
std::string name_of(Type type);

// Of "float32", "float16" and "bfloat16", which caches may have.
std::optional<Type> cache_type_named(const std::string& name);

// A letter for a size that is known only when a batch runs.
enum Letter : std::int64_t { kN = -1, kK = -2, kS = -3, kP = -4, kW = -5 };

struct Sizes {
  std::int64_t n = 0, k = 0, s = 0, p = 0, w = 0;

  std::int64_t of(std::int64_t axis) const;  // a letter, or a number that stays what it is
};

// Name, element type and axes (numbers or letters) of one input or output.
struct TensorSpec {
  std::string name;
  Type type;
  std::vector<std::int64_t> axes;

  std::vector<std::int64_t> sized(const Sizes& sizes) const;
  bool by_sentence() const { return !axes.empty() && axes[0] == kN; }
};

// How long the list of tokens is that a translation is made of, where there is one.
struct ShortlistForm {
  std::int64_t always, each;

  std::int64_t places(std::int64_t source_size) const { return always + each * source_size; }
};

// How a target lays its graphs out; without a value: made for any number.
struct GraphForm {
  std::optional<std::int64_t> beams, slots;
  Type cache_type = Type::kFloat32;
  std::optional<ShortlistForm> shortlist;

  // So many tokens a beam has to choose from in any sentence.
  std::int64_t choices(std::int64_t vocabulary_size) const;

  // With S, and W that goes with it.
  Sizes with_source(Sizes sizes, std::int64_t source_size) const;
};

// Every step looks for a beam's best 2K + 1 tokens, so there must be as many to choose from.
inline std::int64_t most_beams(std::int64_t choices) { return (choices - 1) / 2; }

using Specs = std::vector<TensorSpec>;

struct GraphShape {
  std::int64_t decoder_layers, heads, key_size, value_size;
  bool attention = false;
  GraphForm form = {};

  Specs encoder_inputs() const;
  Specs encoder_outputs() const;
  Specs request() const;
  Specs caches() const;
  Specs state() const;  // caches included
  Specs step_inputs() const;
  Specs step_outputs() const;
};

}  // namespace translate_trt::runtime
