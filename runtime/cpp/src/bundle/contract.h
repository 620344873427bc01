// Inputs and outputs of a target's graphs; runtime/bundle/contract.py documents each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace translate_trt::runtime {

inline constexpr float kMasked = -1e9f;    // added to scores of masked positions
inline constexpr std::int64_t kEmpty = 0;  // an unused entry of a shortlist
// Values of forced_tokens: kFree allows any token, t forces and scores token t, and unscored(t)
// forces it without counting its log-probability.
inline constexpr std::int64_t kFree = -1;
inline constexpr std::int64_t unscored(std::int64_t token) { return -2 - token; }
inline constexpr const char* kNext = "next_";
// Names of the request that hosts fill anew for each step; runtime/interface/tensors.py explains
// them.
inline constexpr const char* kMarkedTokens = "marked_tokens";
inline constexpr const char* kMarkedFactors = "marked_factors";
inline constexpr const char* kSamplingNoise = "sampling_noise";
inline constexpr const char* kTailTokens = "tail_tokens";
inline constexpr const char* kTailNoise = "tail_noise";
inline constexpr const char* kConstraintTokens = "constraint_tokens";
inline constexpr const char* kConstraintProgress = "constraint_progress";
inline constexpr const char* kOtherProgress = "other_progress";
// Value of unused entries of the tokens among them.
inline constexpr std::int64_t kUnmarked = -1;

enum class Type { kInt64, kFloat32, kFloat16, kBFloat16, kBool };

std::size_t size_of(Type type);  // bytes

// The name that ONNX Runtime uses, such as "tensor(float)".
std::string name_of(Type type);

// A symbolic size, known only when a batch runs: minus the letter.
enum Letter : std::int64_t {
  kN = -'N',
  kK = -'K',
  kS = -'S',
  kP = -'P',
  kW = -'W',
  kB = -'B',
  kR = -'R',
  kU = -'U',
  kD = -'D'
};

struct Sizes {
  std::int64_t n = 0, k = 0, s = 0, p = 0, w = 0, b = 0, r = 0, u = 0, d = 0;

  std::int64_t of(std::int64_t axis) const;  // resolves a letter; a number is returned unchanged
};

// Initial value of a sentence's row of the state, before the first step.
enum class Initial {
  kZeros,
  kStartToken,
  kMasked,  // no slot is visible yet
  kMinusInfinity,
  kFirstLives,  // 0 for the first beam, minus infinity for the others
  kAscending,   // 0, 1, 2, ...
};

// One input or output of a graph.
struct TensorSpec {
  std::string name;  // of the input; the output of a state tensor has the prefix kNext
  Type type;
  std::vector<std::int64_t> axes;     // numbers or letters
  Initial initial = Initial::kZeros;  // of a state tensor
  bool in_place = false;              // a cache, which a step updates in place

  std::vector<std::int64_t> sized(const Sizes& sizes) const;
  bool by_sentence() const { return !axes.empty() && axes[0] == kN; }
};

// Width of the shortlist, the list of tokens that a translation may use.
struct ShortlistSize {
  std::int64_t always, each;

  std::int64_t width(std::int64_t source_size) const { return always + each * source_size; }
};

using Specs = std::vector<TensorSpec>;

// Largest beam size K for that many tokens: every step selects the best 2K + 1 tokens of a beam.
// With B marked tokens, samples of R candidates and U tokens of constraints a step selects B + R +
// U more candidates, or all tokens if they are fewer.
inline std::int64_t max_beams(std::int64_t choices) { return (choices - 1) / 2; }

// Inputs and outputs of both graphs of a target, as listed in its manifest.
struct Contract {
  Specs encoder_inputs, encoder_outputs, request, state;
  Specs results;  // outputs of a step other than its state; the first is `parents`
  std::optional<ShortlistSize> shortlist = std::nullopt;

  // The number of beams or cache slots, if the graphs were compiled for a fixed one. A contract
  // without caches has 0 slots.
  std::optional<std::int64_t> beams() const;
  std::optional<std::int64_t> slots() const;

  bool attention() const;  // whether the step returns attention
  bool marks() const;      // whether the step can mark tokens and draw samples

  Specs caches() const;  // state tensors that a step updates in place
  Specs step_inputs() const;
  Specs step_outputs() const;

  // Number of tokens that a beam can choose from in any sentence.
  std::int64_t choices(std::int64_t vocabulary_size) const;

  // Sizes with S = source_size and the W that belongs to it.
  Sizes with_source(Sizes sizes, std::int64_t source_size) const;
};

}  // namespace translate_trt::runtime
