// Reference behaviour of the test graphs (digest_graphs.h): tokens follow from a digest of all
// visible state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "decoder_shape.h"

namespace translate_trt::runtime {

// A hash that depends on the order of its values.
class Digest {
 public:
  Digest& add(std::uint64_t value) {
    value_ = (value_ ^ value) * 0x9E3779B97F4A7C15u;
    value_ = (value_ ^ value_ >> 32) * 0xD6E8FEB86659FD93u;
    value_ ^= value_ >> 32;
    return *this;
  }
  Digest& add(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return add(std::uint64_t{bits});
  }
  Digest& add(const std::string& text) {
    for (const char letter : text) add(static_cast<std::uint64_t>(letter));
    return *this;
  }
  template <class T>
  Digest& add(const std::vector<T>& values) {
    for (const T value : values) add_number(value);
    return *this;
  }

  // A number below the limit. of: selects one of several numbers of a digest.
  std::uint64_t below(std::uint64_t limit, std::uint64_t of = 0) const {
    return Digest(*this).add(of).value_ % limit;
  }

 private:
  void add_number(float value) { add(value); }
  void add_number(std::int64_t value) { add(static_cast<std::uint64_t>(value)); }

  std::uint64_t value_ = 1;
};

// Bit patterns of cache and encoder elements are below this number, so they are finite in every
// type.
inline constexpr std::uint64_t kNotFinite = 0x7C00;
inline constexpr std::uint64_t kPadding = 0x7BFF;  // changes every digest if it is visible

// A sentence that begins with this token fills its row with NaN, and no other.
inline constexpr std::int64_t kNanSource = 2;

// Bit patterns of this type are finite below this number.
inline std::uint64_t finite_limit(Type type) {
  return type == Type::kFloat32 ? 0x7F800000 : kNotFinite;
}

// An element of the vector that the encoder or a step writes for a token. of_vector: digest of
// token and tensor.
inline std::uint64_t element(const Digest& of_vector, std::int64_t head, std::int64_t column) {
  return of_vector.below(kNotFinite, static_cast<std::uint64_t>(head * 16 + column));
}

// Vectors visible to a step, in tensors [N, heads, P or S, columns].
inline Specs vectors(const Specs& specs) {
  Specs found;
  for (const TensorSpec& spec : specs) {
    if (spec.axes.size() == 4 && spec.axes[1] != 1) found.push_back(spec);
  }
  return found;
}

// State of recurrent layers.
inline Specs recurrent(const Contract& contract) {
  Specs found;
  for (const TensorSpec& spec : contract.state) {
    if (spec.name.rfind("ssru_state_", 0) == 0) found.push_back(spec);
  }
  return found;
}

// An element of the state of a beam that continues a beam with that digest.
inline float recurrent_element(const Digest& parent, const std::string& name, std::size_t index) {
  return static_cast<float>(Digest(parent).add(name).below(1000, index));
}

// Number of layers, heads and columns to distinguish.
inline DecoderShape digest_shape() {
  DecoderShape shape = {2, 2, 2, 1, false, {}};
  return shape;
}

inline Digest of_source(const Tokens& tokens, std::int64_t place) {
  return Digest().add(tokens).add(static_cast<std::uint64_t>(place));
}

inline Tokens shortlist_of(const Tokens& source, const ShortlistSize& form) {
  Tokens listed;
  const auto first = static_cast<std::int64_t>(1 + Digest().add(source).below(100));
  const std::int64_t count = form.width(static_cast<std::int64_t>(source.size()));
  for (std::int64_t i = 0; i < count; ++i) listed.push_back(first + i);
  return listed;
}

// State of a sentence without caches and ancestry.
struct DigestState {
  std::vector<std::int64_t> tokens;
  std::vector<float> log_probs;
  std::int64_t position = 0;
  bool done = false;
  Pool pool;
};

// Visible state of a sentence in a step, without vectors.
inline Digest digest_of(const DigestState& state, const std::vector<std::int64_t>& request,
                        const std::vector<float>& penalties, const Tokens& shortlist) {
  Digest digest;
  digest.add(state.tokens).add(state.log_probs).add(static_cast<std::uint64_t>(state.position));
  digest.add(state.pool.scores).add(state.pool.lengths).add(state.pool.parents);
  for (const char truncated : state.pool.truncated) {
    digest.add(static_cast<std::uint64_t>(truncated));
  }
  return digest.add(request).add(penalties).add(shortlist);
}

// Runs the step and returns the parents. beams: digest of the visible state of each beam.
inline std::vector<std::int64_t> choose(DigestState& state, const std::vector<Digest>& beams,
                                        std::int64_t min_length, std::int64_t max_length,
                                        std::int64_t forced) {
  const std::uint64_t k = beams.size();
  Digest all;
  for (const Digest& beam : beams) all.add(beam.below(~std::uint64_t{0}));
  ++state.position;
  std::vector<std::int64_t> parents;
  for (std::uint64_t beam = 0; beam < k; ++beam) {
    const auto number = [&](std::uint64_t limit, std::uint64_t of) {
      return static_cast<std::int64_t>(all.below(limit, of * k + beam));
    };
    parents.push_back(number(k, 1));
    const Digest& parent = beams[static_cast<std::size_t>(parents.back())];
    const auto free = static_cast<std::int64_t>(3 + parent.below(997, beam));
    state.tokens[beam] = forced == kFree ? free : std::max(forced, -2 - forced);
    state.log_probs[beam] = -static_cast<float>(number(1000, 2));
    state.pool.scores[beam] = -static_cast<float>(number(1000, 3));
    state.pool.lengths[beam] = state.position;
    state.pool.parents[beam] = number(k, 4);
    state.pool.truncated[beam] = number(2, 5) != 0;
  }
  const bool is_stopped = state.position >= min_length && all.below(50, 6 * k) == 0;
  state.done = is_stopped || state.position >= max_length;
  return parents;
}

inline float attention_to(const Digest& beam, std::int64_t place) {
  return static_cast<float>(beam.below(1000, static_cast<std::uint64_t>(place)));
}

}  // namespace translate_trt::runtime
