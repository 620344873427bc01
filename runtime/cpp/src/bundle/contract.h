// Inputs and outputs of a target's graphs (runtime/bundle/contract.py says what they mean).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace translate_trt::runtime {

inline constexpr float kMasked = -1e9f;    // hides what must not count
inline constexpr std::int64_t kEmpty = 0;  // in a place of a shortlist that no token has
// In forced_tokens: any token may come next. unscored(t): t comes next, and its log-probability
// does not count.
inline constexpr std::int64_t kFree = -1;
inline constexpr std::int64_t unscored(std::int64_t token) { return -2 - token; }
inline constexpr const char* kNext = "next_";

enum class Type { kInt64, kFloat32, kFloat16, kBFloat16, kBool };

std::size_t size_of(Type type);  // bytes

// As ONNX Runtime writes them, such as "tensor(float)".
std::string name_of(Type type);

// A letter for a size that is known only when a batch runs.
enum Letter : std::int64_t { kN = -1, kK = -2, kS = -3, kP = -4, kW = -5 };

struct Sizes {
  std::int64_t n = 0, k = 0, s = 0, p = 0, w = 0;

  std::int64_t of(std::int64_t axis) const;  // a letter, or a number that stays what it is
};

// What a sentence's part of the state is before the first step.
enum class Initial {
  kZeros,
  kStartToken,
  kMasked,  // nothing is written yet
  kMinusInfinity,
  kFirstLives,  // 0, and minus infinity for all other beams
  kAscending,   // 0, 1, 2, ...
};

// One input or output of a graph.
struct TensorSpec {
  std::string name;  // of the input; of state, the output has kNext before it
  Type type;
  std::vector<std::int64_t> axes;     // numbers or letters
  Initial initial = Initial::kZeros;  // of state
  bool in_place = false;              // of state: a step writes it where it is

  std::vector<std::int64_t> sized(const Sizes& sizes) const;
  bool by_sentence() const { return !axes.empty() && axes[0] == kN; }
};

// How long the list of tokens is that a translation is made of, where there is one.
struct ShortlistSize {
  std::int64_t always, each;

  std::int64_t width(std::int64_t source_size) const { return always + each * source_size; }
};

using Specs = std::vector<TensorSpec>;

// Every step looks for a beam's best 2K + 1 tokens, so there must be as many to choose from.
inline std::int64_t max_beams(std::int64_t choices) { return (choices - 1) / 2; }

// Inputs and outputs of both graphs of a target, as its manifest lists them.
struct Contract {
  Specs encoder_inputs, encoder_outputs, request, state;
  Specs results;  // of a step besides its state; the parents are the first
  std::optional<ShortlistSize> shortlist = std::nullopt;

  // Where the graphs are made for one number of beams, or of slots.
  std::optional<std::int64_t> beams() const;
  std::optional<std::int64_t> slots() const;

  bool attention() const;  // is among the results

  Specs caches() const;  // the state that a step writes in place
  Specs step_inputs() const;
  Specs step_outputs() const;

  // So many tokens a beam has to choose from in any sentence.
  std::int64_t choices(std::int64_t vocabulary_size) const;

  // With S, and W that goes with it.
  Sizes with_source(Sizes sizes, std::int64_t source_size) const;
};

}  // namespace translate_trt::runtime
