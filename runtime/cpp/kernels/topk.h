// Streaming top-k and log-sum-exp.
//
// Each row has a state, which is updated with logits in the order of their columns: the maximum so
// far, the sum of exponentials relative to it (Milakov and Gimelshein 2018, "Online normalizer
// calculation for softmax"), and a short sorted list of the best logits.
//
// The columns of a large matrix are divided into parts with a state each, which threads process in
// parallel. The rounding of a sum depends on the parts, so they must not depend on the number of
// rows. Lists do not depend on the parts, and a new list costs insertions, so consecutive parts may
// share one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "gemm8.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

inline std::size_t remaining(std::size_t columns, std::size_t begin) {
  return columns > begin ? columns - begin : 0;
}

struct Entry {
  float value;
  std::int64_t column;
};
static_assert(sizeof(Entry) == 16 && offsetof(Entry, column) == 8);

// Inserts an entry into a list of `count` entries, best first. The entry is stored by one
// instruction, because store forwarding does not combine two stores for the load of the next
// insertion.
inline void insert(Entry* list, std::size_t count, Entry entry) {
  auto position = count - 1;
  for (; position > 0 && list[position - 1].value < entry.value; --position) {
    list[position] = list[position - 1];
  }
  typedef std::uint64_t Pair __attribute__((vector_size(16), aligned(8), may_alias));
  std::uint32_t value;
  std::memcpy(&value, &entry.value, sizeof value);
  *reinterpret_cast<Pair*>(list + position) = Pair{value, static_cast<std::uint64_t>(entry.column)};
}

// The state of a row.
struct TopKState {
  Floats sum;   // of exponentials relative to the maximum
  float most;   // the maximum
  Entry* list;  // the best logits, sorted; possibly shared with the previous parts
};

// The rare case of an update: a logit belongs to the list, or is a new maximum.
template <int Registers>
__attribute__((noinline)) void insert_candidates(TopKState& state, std::size_t count,
                                                 const Floats (&logits)[Registers],
                                                 std::size_t column) {
  float most = state.most;
  for (int j = 0; j < Registers; ++j) {
    most = std::max(most, largest(logits[j]));
    unsigned mask = greater(logits[j], broadcast(state.list[count - 1].value));
    if (mask == 0) continue;
    alignas(64) float values[kLanes];
    store(values, logits[j]);
    for (; mask != 0; mask &= mask - 1) {
      const auto lane = static_cast<std::size_t>(__builtin_ctz(mask));
      // Of equal logits, the first stays.
      if (values[lane] > state.list[count - 1].value) {
        insert(state.list, count,
               {values[lane], static_cast<std::int64_t>(column + j * kLanes + lane)});
      }
    }
  }
  if (most > state.most) {
    const float lower = (state.most - most) * kLog2E;
    state.sum = state.sum * power_of_two(broadcast(lower));
    state.most = most;
  }
}

// Updates a state with 16 * Registers logits of consecutive columns.
template <int Registers>
inline void update(TopKState& state, std::size_t count, const Floats (&logits)[Registers],
                   std::size_t column) {
  const Floats least = broadcast(std::min(state.list[count - 1].value, state.most));
  unsigned better = 0;
  for (int j = 0; j < Registers; ++j) better |= greater(logits[j], least);
  if (better != 0) insert_candidates(state, count, logits, column);
  const Floats scale = broadcast(kLog2E), shift = broadcast(state.most * kLog2E);
  Floats sum = state.sum;
  for (int j = 0; j < Registers; ++j) {
    sum = sum + power_of_two(multiply_subtract(logits[j], scale, shift));
  }
  state.sum = sum;
}

// Merges a row's states, in the order of their columns, into the first; returns the log-sum-exp.
inline float merge(TopKState* states, std::size_t parts, std::size_t stride, std::size_t count) {
  float most = states[0].most;
  for (std::size_t part = 1; part < parts; ++part) {
    most = std::max(most, states[part * stride].most);
  }
  auto& whole = states[0];
  float total = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto& state = states[part * stride];
    total += sum(state.sum) * std::exp(state.most - most);
  }
  for (std::size_t part = 1; part < parts; ++part) {
    const auto* list = states[part * stride].list;
    if (list == states[(part - 1) * stride].list) continue;
    for (std::size_t i = 0; i < count && list[i].value > whole.list[count - 1].value; ++i) {
      insert(whole.list, count, list[i]);
    }
  }
  return most + std::log(total);
}

// Writes the candidates of a row.
inline void write(const TopKState& state, float log_sum, std::size_t row, const Candidates& out) {
  for (std::size_t i = 0; i < out.count; ++i) {
    out.values[row * out.count + i] = state.list[i].value - log_sum;
    out.indices[row * out.count + i] = state.list[i].column;
  }
}

// Updates a state with a row of logits; returns the log-sum-exp.
inline float update_all(TopKState& state, std::size_t count, const float* logits,
                        std::size_t columns) {
  for (std::size_t column = 0; column < columns; column += kLanes * kPanel) {
    Floats registers[kPanel];
    for (std::size_t j = 0; j < kPanel; ++j) {
      const auto begin = column + j * kLanes;
      const auto lanes = first_lanes(remaining(columns, begin));
      registers[j] = load(logits + begin, lanes, broadcast(kNothing));
    }
    update(state, count, registers, column);
  }
  return merge(&state, 1, 0, count);
}

// States [parts, rows].
struct TopKStates {
  TopKState* all;
  std::size_t parts, rows;

  // Merges the states of a row into the first part; returns the log-sum-exp.
  float merged(std::size_t row, std::size_t count) const {
    return merge(all + row, parts, rows, count);
  }
};

// Creates empty states with lists of `count` entries, one list per `shared` parts.
TopKStates make_topk_states(std::size_t parts, std::size_t shared, std::size_t rows,
                            std::size_t count, Arena& arena);

// Multiplies quantized rows by a matrix, adds a bias [blocks * 16], and returns states of the
// logits.
TopKStates matmul_topk(const Rows8& x, const Matrix8& matrix, const float* bias, std::size_t count,
                       Executor& executor, Arena& arena);

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
