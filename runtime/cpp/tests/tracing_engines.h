// Fake engines that trace the movement of rows: the encoder writes token ids to the cross-attention
// keys, a step writes its number to its cache slot, and fails if it does not find the values of its
// sentence or if the ancestry shows other slots than those of the sentence's past.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bundle/profiles.h"
#include "decoder_shape.h"
#include "engines/device.h"

namespace translate_trt::runtime {

// A sentence of this token has NaN log-probabilities and leaves NaN in memory.
inline constexpr std::int64_t kNanToken = 99;
// A sentence that begins with this token ends after a few tokens.
inline constexpr std::int64_t kShortToken = 97, kShort = 5;

// One layer, one head, one beam, and enough slots for all tests.
inline DecoderShape tracing_shape() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.beams = 1;
  shape.form.slots = 96;
  return shape;
}

inline const Profiles kTracedEncoder = {{1, 48}, {3, 16}, {6, 24}, {6, 48}};

// The profiles of a step: every bucket with every number of slots.
inline Profiles with_slots(const Profiles& buckets, const std::vector<std::int64_t>& slots) {
  Profiles all;
  for (const Profile& bucket : buckets) {
    for (const std::int64_t count : slots) {
      all.push_back({bucket.batch, bucket.source_length, count});
    }
  }
  return all;
}

inline const Profiles kTracedStep = with_slots(kTracedEncoder, {8, 24, 96});

constexpr std::int64_t kTracedEnd = 2;  // the end symbol

// The tensors of a run.
struct TracedTensors {
  std::map<std::string, Address> addresses;
  std::int64_t rows = 0, columns = 0, slots = 0;  // N, S and P

  // shape: null for an output.
  void add(const std::string& name, Address address, const std::int64_t* shape) {
    addresses[name] = address;
    if (shape == nullptr) return;
    rows = shape[0];
    if (name == "source_ids") columns = shape[1];
    if (name == "source_bias") columns = shape[3];
    if (name == "ancestry") slots = shape[2];
  }

  template <class T>
  T* row(const std::string& name, std::int64_t row, std::int64_t size = 1) const {
    return reinterpret_cast<T*>(addresses.at(name)) + row * size;
  }
};

inline void trace_encoder(const TracedTensors& given) {
  const std::int64_t size = given.columns;
  for (std::int64_t row = 0; row < given.rows; ++row) {
    for (std::int64_t i = 0; i < size; ++i) {
      const bool is_there = i < *given.row<std::int64_t>("source_lengths", row);
      const std::int64_t* ids = given.row<std::int64_t>("source_ids", row, size);
      const std::int64_t token = ids[i] == kTracedEnd ? ids[0] : ids[i];
      given.row<float>("source_bias", row, size)[i] = is_there ? 0 : kMasked;
      given.row<float>("cross_key_0", row, size)[i] =
          token == kNanToken ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(token);
    }
  }
}

// Whether a row contains any NaN, masked or not.
inline bool has_nan(const TracedTensors& given, std::int64_t row) {
  const auto is_nan = [](float value) { return std::isnan(value); };
  const std::int64_t slots = *tracing_shape().form.slots;
  const float* keys = given.row<float>("cross_key_0", row, given.columns);
  const float* past = given.row<float>("self_key_0", row, slots);
  return std::any_of(keys, keys + given.columns, is_nan) || std::any_of(past, past + slots, is_nan);
}

inline void leave_nan(const TracedTensors& given, std::int64_t row, std::int64_t position) {
  given.row<float>("self_key_0", row, *tracing_shape().form.slots)[position] =
      std::numeric_limits<float>::quiet_NaN();
}

// Checks the source and the past of a row against its sentence, and writes the trace of the step.
inline void trace_row(const TracedTensors& given, std::int64_t row, std::int64_t position) {
  const float* keys = given.row<float>("cross_key_0", row, given.columns);
  const float* bias = given.row<float>("source_bias", row, given.columns);
  for (std::int64_t i = 0; i < given.columns; ++i) {
    if (bias[i] != 0 && bias[i] != kMasked) throw std::runtime_error("a bias of anything");
    if (bias[i] == 0 && keys[i] != keys[0]) throw std::runtime_error("another's source");
  }
  float* past = given.row<float>("self_key_0", row, *tracing_shape().form.slots);
  const float* ancestry = given.row<float>("ancestry", row, given.slots);
  if (position >= given.slots) throw std::runtime_error("a slot that no step reads");
  for (std::int64_t i = 0; i < given.slots; ++i) {
    if (ancestry[i] != (i < position ? 0 : kMasked)) throw std::runtime_error("another's ancestry");
  }
  for (std::int64_t i = 0; i < position; ++i) {
    if (past[i] != keys[0] * 100 + static_cast<float>(i)) throw std::runtime_error("a past lost");
  }
  past[position] = keys[0] * 100 + static_cast<float>(position);
}

inline void trace_step(const TracedTensors& given) {
  for (std::int64_t row = 0; row < given.rows; ++row) {
    const bool was_done = *given.row<char>("done", row) != 0;
    const std::int64_t position = *given.row<std::int64_t>("positions", row);
    const bool is_nan = has_nan(given, row);
    if (!was_done && !is_nan) trace_row(given, row, position);
    if (is_nan) leave_nan(given, row, position);
    const auto next = position + (was_done ? 0 : 1);
    *given.row<std::int64_t>("next_positions", row) = next;
    const std::int64_t forced = *given.row<std::int64_t>("forced_tokens", row);
    const auto own =
        is_nan ? 0
               : static_cast<std::int64_t>(*given.row<float>("cross_key_0", row, given.columns));
    const std::int64_t longest = *given.row<std::int64_t>("max_lengths", row);
    *given.row<char>("next_done", row) =
        was_done || next >= (own == kShortToken ? std::min(kShort, longest) : longest);
    *given.row<std::int64_t>("next_tokens", row) = forced == kFree ? own : forced;
    *given.row<std::int64_t>("parents", row) = 0;
    *given.row<float>("next_log_probs", row) =
        is_nan ? std::numeric_limits<float>::quiet_NaN() : *given.row<float>("log_probs", row) - 1;
    *given.row<float>("next_finished_scores", row) = -static_cast<float>(next);
    *given.row<std::int64_t>("next_finished_lengths", row) = next;
    *given.row<std::int64_t>("next_finished_parents", row) = 0;
    *given.row<char>("next_finished_truncated", row) = 0;
    float* ancestry = given.row<float>("next_ancestry", row, given.slots);
    std::memcpy(ancestry, given.row<float>("ancestry", row, given.slots),
                sizeof(float) * static_cast<std::size_t>(given.slots));
    if (position < given.slots) ancestry[position] = 0;
  }
}

}  // namespace translate_trt::runtime
