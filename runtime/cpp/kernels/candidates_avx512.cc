// The best log-probabilities of every row without ever storing a row of the vocabulary.
//
// Each row has a state that logits are shown to in the order of their columns: the largest so far,
// the sum of exponentials relative to it (Milakov and Gimelshein 2018, "Online normalizer
// calculation for softmax"), and a short sorted list of the best.

#include <algorithm>
#include <cmath>
#include <limits>

#include "product8_avx512.h"
#include "product_avx512.h"

namespace translate_trt::avx512 {
namespace {

struct StateMemory;
struct ListMemory;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

std::size_t remaining(std::size_t columns, std::size_t begin) {
  return columns > begin ? columns - begin : 0;
}

struct Entry {
  float value;
  std::int64_t column;
};

// `count` entries, best first.
void insert(Entry* list, std::size_t count, Entry entry) {
  auto place = count - 1;
  for (; place > 0 && list[place - 1].value < entry.value; --place) {
    list[place] = list[place - 1];
  }
  list[place] = entry;
}

// What a row has shown so far. Its numbers are logits / factor: a factor that a whole row shares
// need not be multiplied with each of them.
struct State {
  __m512 sum;    // of exponentials relative to the best
  float factor;  // not negative
  Entry* list;   // the best, sorted

  float best() const { return list[0].value; }
};

// Numbers that may belong to the best of a state, which is rare.
template <int Registers>
__attribute__((noinline)) void take(State& state, std::size_t count,
                                    const __m512 (&numbers)[Registers], std::size_t column) {
  const float before = state.best();
  for (int j = 0; j < Registers; ++j) {
    alignas(64) float values[kLanes];
    _mm512_store_ps(values, numbers[j]);
    const __m512 last = _mm512_set1_ps(state.list[count - 1].value);
    for (unsigned mask = _mm512_cmp_ps_mask(numbers[j], last, _CMP_GT_OQ); mask != 0;
         mask &= mask - 1) {
      const auto lane = static_cast<std::size_t>(__builtin_ctz(mask));
      // Of equal ones the first stays.
      if (values[lane] > state.list[count - 1].value) {
        insert(state.list, count,
               {values[lane], static_cast<std::int64_t>(column + j * kLanes + lane)});
      }
    }
  }
  const float lower = (before - state.best()) * state.factor * kSixteenths;
  state.sum = _mm512_mul_ps(state.sum, power_of_two_16ths(_mm512_set1_ps(lower)));
}

// Shows numbers of neighbouring columns, `Registers` times 16, to a state.
template <int Registers>
inline void show(State& state, std::size_t count, const __m512 (&numbers)[Registers],
                 std::size_t column) {
  const __m512 last = _mm512_set1_ps(state.list[count - 1].value);
  unsigned better = 0;
  for (int j = 0; j < Registers; ++j) {
    better |= _mm512_cmp_ps_mask(numbers[j], last, _CMP_GT_OQ);
  }
  if (better != 0) {
    take(state, count, numbers, column);
  }
  const float scale = state.factor * kSixteenths;
  const __m512 scales = _mm512_set1_ps(scale), shift = _mm512_set1_ps(state.best() * scale);
  __m512 sum = state.sum;
  for (int j = 0; j < Registers; ++j) {
    const __m512 below = _mm512_fmsub_ps(numbers[j], scales, shift);
    sum = _mm512_add_ps(sum, power_of_two_16ths(below));
  }
  state.sum = sum;
}

// States [parts, rows] that have seen nothing.
State* fresh_states(std::size_t parts, std::size_t rows, const float* factors, std::size_t count) {
  const auto states = parts * rows;
  auto* list = scratch<Entry, ListMemory>(states * count);
  std::fill_n(list, states * count, Entry{kNothing, 0});
  auto* all = scratch<State, StateMemory>(states);
  for (std::size_t i = 0; i < states; ++i) {
    const float factor = factors == nullptr ? 1 : factors[i % rows];
    all[i] = {_mm512_setzero_ps(), factor, list + i * count};
  }
  return all;
}

// The states of one row, each of the columns after the former's, as one; returns its log-sum-exp.
float merge(State* states, std::size_t parts, std::size_t stride, std::size_t count) {
  float most = states[0].best();
  for (std::size_t part = 1; part < parts; ++part) {
    most = std::max(most, states[part * stride].best());
  }
  auto& whole = states[0];
  float sum = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto& state = states[part * stride];
    sum += _mm512_reduce_add_ps(state.sum) * std::exp((state.best() - most) * state.factor);
  }
  for (std::size_t part = 1; part < parts; ++part) {
    const auto* list = states[part * stride].list;
    for (std::size_t i = 0; i < count && list[i].value > whole.list[count - 1].value; ++i) {
      insert(whole.list, count, list[i]);
    }
  }
  return most * whole.factor + std::log(sum);
}

void write(const State& state, float log_sum, std::size_t row, const Candidates& out) {
  for (std::size_t i = 0; i < out.count; ++i) {
    out.values[row * out.count + i] = state.list[i].value * state.factor - log_sum;
    out.indices[row * out.count + i] = state.list[i].column;
  }
}

// One logit, the same number as in the whole row.
float logit(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t column) {
  const auto block = column / kLanes, lane = column % kLanes;
  const auto* a = x.values + row * matrix.inputs;
  const auto* w = matrix.weights + block * matrix.inputs * kLanes + lane * 4;
  std::int32_t sum = -x.zero * matrix.column_sums[column];
  for (std::size_t k = 0; k < matrix.inputs; ++k) {
    sum += a[k] * w[k / 4 * 64 + k % 4];
  }
  return static_cast<float>(sum) * matrix.scales[column] * x.scales[row];
}

}  // namespace

void candidates8(const Product& best, const Matrix8& matrix, const float* input,
                 std::size_t rows, const Candidates& out, const ParallelFor& parallel) {
  const auto x = quantize(input, rows, matrix.inputs, false, parallel);
  const auto& product = product_for(x.count, best);
  const auto panels = ceiling(matrix.blocks, kPanel);
  const auto tiles = ceiling(x.count, product.rows);
  // Parts for threads to share; each starts with empty lists, which costs insertions.
  const auto parts = std::min<std::size_t>(panels, x.count > 16 ? 4 : 8);
  auto* states = fresh_states(parts, x.count, x.scales, out.count);
  parallel(parts, [&](std::size_t part) {
    const Ready ready(product);
    auto* mine = states + part * x.count;
    for (auto panel = part * panels / parts; panel < (part + 1) * panels / parts; ++panel) {
      const auto block = panel * kPanel, last = std::min(matrix.blocks, block + kPanel);
      __m512i zeros[kPanel];
      for (auto j = block; j < last; ++j) {
        zeros[j - block] = zero_sums(x, matrix, j);
      }
      for (std::size_t row = 0; row < x.count; row += product.rows) {
        const auto height = std::min(product.rows, x.count - row);
        Sums sums;
        const auto ahead = next_panel(matrix, last, row / product.rows, tiles);
        product.tile(x, matrix, row, height, block, last, ahead, sums);
        for (std::size_t i = 0; i < height; ++i) {
          __m512 numbers[kPanel];
          for (std::size_t j = 0; j < kPanel; ++j) {
            // Columns beyond the matrix only fill up its last block.
            const auto column = (block + j) * kLanes;
            const auto mask = first(remaining(matrix.outputs, column));
            const __m512i sum = _mm512_sub_epi32(sums[i][j], zeros[j]);
            numbers[j] = _mm512_mask_mul_ps(_mm512_set1_ps(kNothing), mask,
                                            _mm512_cvtepi32_ps(sum),
                                            _mm512_maskz_loadu_ps(mask, matrix.scales + column));
          }
          show(mine[row + i], out.count, numbers, block * kLanes);
        }
      }
    }
  });
  for (std::size_t row = 0; row < x.count; ++row) {
    const float log_sum = merge(states + row, parts, x.count, out.count);
    for (auto copy = x.begins[row]; copy < x.begins[row + 1]; ++copy) {
      write(states[row], log_sum, copy, out);
      const auto column = static_cast<std::size_t>(out.column[copy]);
      out.at_column[copy] = logit(x, matrix, row, column) - log_sum;
    }
  }
}

void candidates(const Matrix& matrix, const float* input, std::size_t rows, const Candidates& out,
                const ParallelFor& parallel) {
  const auto x = distinct(input, rows, matrix.inputs);
  const auto panels = matrix.panels;
  const auto parts = std::min<std::size_t>(panels, x.count > 16 ? 4 : 8);  // as above
  auto* states = fresh_states(parts, x.count, nullptr, out.count);
  parallel(parts, [&](std::size_t part) {
    auto* mine = states + part * x.count;
    for (auto panel = part * panels / parts; panel < (part + 1) * panels / parts; ++panel) {
      const auto column = panel * kPanelColumns;
      const auto use = [&](std::size_t row, std::size_t height, const Sums32* sums) {
        for (std::size_t i = 0; i < height; ++i) {
          __m512 numbers[kRegisters];
          for (std::size_t j = 0; j < kRegisters; ++j) {
            const auto mask = first(remaining(matrix.outputs, column + j * kLanes));
            numbers[j] = _mm512_mask_mov_ps(_mm512_set1_ps(kNothing), mask, sums[i][j]);
          }
          show(mine[row + i], out.count, numbers, column);
          // The logits that are asked for are never in reach again.
          for (auto copy = x.begins[row + i]; copy < x.begins[row + i + 1]; ++copy) {
            const auto asked = static_cast<std::size_t>(out.column[copy]) - column;
            if (asked < kPanelColumns) {
              alignas(64) float logits[kPanelColumns];
              for (std::size_t j = 0; j < kRegisters; ++j) {
                _mm512_store_ps(logits + j * kLanes, numbers[j]);
              }
              out.at_column[copy] = logits[asked];
            }
          }
        }
      };
      for (std::size_t row = 0; row < x.count; row += kTaskRows) {
        multiply(x, matrix, panel, row, std::min(x.count, row + kTaskRows), use);
      }
    }
  });
  for (std::size_t row = 0; row < x.count; ++row) {
    const float log_sum = merge(states + row, parts, x.count, out.count);
    for (auto copy = x.begins[row]; copy < x.begins[row + 1]; ++copy) {
      write(states[row], log_sum, copy, out);
      out.at_column[copy] -= log_sum;
    }
  }
}

void top_logits(const float* logits, std::size_t rows, std::size_t columns, const Candidates& out,
                const ParallelFor& parallel) {
  auto* states = fresh_states(1, rows, nullptr, out.count);
  parallel(rows, [&](std::size_t row) {
    const auto* here = logits + row * columns;
    auto& state = states[row];
    for (std::size_t column = 0; column < columns; column += kLanes * kPanel) {
      __m512 registers[kPanel];
      for (std::size_t j = 0; j < kPanel; ++j) {
        const auto begin = column + j * kLanes;
        registers[j] = _mm512_mask_loadu_ps(_mm512_set1_ps(kNothing),
                                            first(remaining(columns, begin)), here + begin);
      }
      show(state, out.count, registers, column);
    }
    const float log_sum = merge(&state, 1, 0, out.count);
    write(state, log_sum, row, out);
    out.at_column[row] = here[out.column[row]] - log_sum;
  });
}

}  // namespace translate_trt::avx512
