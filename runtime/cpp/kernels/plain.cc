// Every kernel in plain C++: the reference that tests compare the vectorized kernels with.
//
// As in all kernels, the order of a sum depends on the row alone (docs/kernels.md). Sums are kept
// in 16 lanes, which compilers vectorize.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels.h"
#include "plain.h"
#include "workspace.h"

namespace translate_trt {

float fused_multiply_add(float a, float b, float c) {
#if defined(__MINGW32__)
  // std::fma of its C library rounds twice. Here only the sum does, and hardly ever to another
  // float.
  return static_cast<float>(double{a} * double{b} + double{c});
#else
  return std::fma(a, b, c);
#endif
}

namespace {

constexpr std::size_t kLanes = 16;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class T>
T* allocate(Arena& arena, std::size_t count) {
  return static_cast<T*>(arena.allocate(count * sizeof(T)));
}

// Calls task(index) for all indices below `count`.
template <class Task>
void parallel_for(Executor& executor, std::size_t count, const Task& task) {
  const TaskFunction function = {
      [](const void* closure, std::size_t index) { (*static_cast<const Task*>(closure))(index); },
      &task};
  if (count > 0) executor.run(count, function);
}

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float total(const float (&lanes)[kLanes]) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// The sum of value(i) for i below `count`.
template <class Value>
float sum_of(std::size_t count, const Value& value) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += value(i);
  return total(lanes);
}

float dot(const float* a, const float* b, std::size_t count) {
  return sum_of(count, [=](std::size_t i) { return a[i] * b[i]; });
}

// Rounds to the nearest integer, ties to even; for magnitudes below 2^22.
float nearest(float x) {
  constexpr float kMagic = 12582912;  // 1.5 * 2^23, where floats are integers
  return (x + kMagic) - kMagic;
}

// e^x for x <= 0 or NaN, with a relative error below 3e-7 near zero; zero below 2^-126.
float exponential(float x) {
  const float t = std::max(x * 1.44269504F, -127.0F);
  const float n = nearest(t), r = t - n;
  // Minimax polynomial of degree 5 for 2^r, |r| <= 0.5.
  float p = 1.32647e-3F;
  p = p * r + 9.67151e-3F;
  p = p * r + 5.550734e-2F;
  p = p * r + 2.4022242e-1F;
  p = p * r + 6.9314698e-1F;
  p = p * r + 1.0F;
  // In this order, max replaces NaN, whose conversion to an integer is undefined; p is still NaN.
  const auto exponent = static_cast<std::int32_t>(std::max(-127.0F, n)) + 127;
  const float power = float_of(static_cast<std::uint32_t>(exponent) << 23);
  return n < -126 ? 0.0F : p * power;
}

// ---- epilogues and normalization ----

float activate(Activation activation, float x) {
  const double wide = x;
  switch (activation) {
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return static_cast<float>(wide * 0.5 * std::erfc(-wide / std::sqrt(2.0)));
    case Activation::swish:
      return static_cast<float>(wide / (1 + std::exp(-wide)));
    case Activation::none:
      break;
  }
  return x;
}

// Normalizes one row; y may be x.
void normalize(const float* x, std::size_t columns, const Norm& norm, float* y) {
  const auto count = static_cast<float>(columns);
  const bool centered = norm.beta != nullptr;
  const float mean = centered ? sum_of(columns, [=](std::size_t i) { return x[i]; }) / count : 0;
  const float variance =
      sum_of(columns, [=](std::size_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
  const float factor = 1.0F / std::sqrt(variance + norm.epsilon);
  for (std::size_t i = 0; i < columns; ++i) {
    const float scaled = (x[i] - mean) * factor * norm.gamma[i];
    y[i] = centered ? scaled + norm.beta[i] : scaled;
  }
}

// Applies an epilogue to one row of a matmul's result, which is in y.
void finish_row(const Epilogue& epilogue, std::size_t row, std::size_t outputs, float* y) {
  const auto begin = row * outputs;
  for (std::size_t o = 0; o < outputs; ++o) {
    auto& value = y[begin + o];
    value = activate(epilogue.activation, value + epilogue.bias[o]);
    value += epilogue.residual == nullptr ? 0.0F : epilogue.residual[begin + o];
  }
  if (epilogue.norm != nullptr) {
    auto* normalized = epilogue.normalized == nullptr ? y : epilogue.normalized;
    normalize(y + begin, outputs, *epilogue.norm, normalized + begin);
  }
}

void add_norm(const float* x, const float* residual, std::size_t rows, std::size_t columns,
              const Norm& norm, float* sum, float* y, Executor& executor) {
  constexpr std::size_t kRowsOfTask = 16;
  auto* sums = sum == nullptr ? y : sum;
  parallel_for(executor, (rows + kRowsOfTask - 1) / kRowsOfTask, [&](std::size_t task) {
    for (auto row = task * kRowsOfTask; row < std::min(rows, (task + 1) * kRowsOfTask); ++row) {
      const auto begin = row * columns;
      for (auto i = begin; i < begin + columns && residual != nullptr; ++i) {
        sums[i] = x[i] + residual[i];
      }
      normalize((residual == nullptr ? x : sums) + begin, columns, norm, y + begin);
    }
  });
}

void recurrent_unit(const float* gates, const float* state, std::size_t rows, std::size_t columns,
                    float* next, float* y, Executor& executor) {
  parallel_for(executor, rows, [&](std::size_t row) {
    for (std::size_t i = 0; i < columns; ++i) {
      const auto* gate = gates + 2 * row * columns + i;
      const auto at = row * columns + i;
      const float kept = 1 / (1 + std::exp(-*gate));
      next[at] = kept * state[at] + (1 - kept) * gate[columns];
      y[at] = std::max(next[at], 0.0F);
    }
  });
}

void gated_gelu(const float* x, std::size_t rows, std::size_t columns, float* y,
                Executor& executor) {
  parallel_for(executor, rows, [&](std::size_t row) {
    for (std::size_t i = 0; i < columns; ++i) {
      const auto* inner = x + 2 * row * columns + i;
      const double value = *inner;
      const double power = 1.5957691216057308 * (value + 0.044715 * value * value * value);
      y[row * columns + i] = static_cast<float>(value / (1 + std::exp(-power)) * inner[columns]);
    }
  });
}

// ---- matmuls ----

void linear(const Linear& linear, const float* x, std::size_t rows, float* y, Executor& executor) {
  constexpr std::size_t kPanel = 64;
  const auto& matrix = linear.matrix;
  parallel_for(executor, rows, [&](std::size_t row) {
    for (std::size_t panel = 0; panel < matrix.panels; ++panel) {
      const auto* weights = matrix.weights + panel * matrix.inputs * kPanel;
      float sums[kPanel] = {};
      for (std::size_t i = 0; i < matrix.inputs; ++i) {
        const float input = x[row * matrix.inputs + i];
        for (std::size_t o = 0; o < kPanel; ++o) {
          sums[o] = fused_multiply_add(input, weights[i * kPanel + o], sums[o]);
        }
      }
      const auto column = panel * kPanel;
      std::copy_n(sums, std::min(kPanel, matrix.outputs - column),
                  y + row * matrix.outputs + column);
    }
    finish_row(linear.epilogue, row, matrix.outputs, y);
  });
}

// The weight of input i and output o.
std::int8_t weight(const Matrix8& matrix, std::size_t i, std::size_t o) {
  return matrix.weights[(o / 16 * (matrix.inputs / 4) + i / 4) * 64 + o % 16 * 4 + i % 4];
}

void column_sums(const Matrix8& matrix, std::int32_t* sums) {
  for (std::size_t o = 0; o < matrix.blocks * 16; ++o) {
    sums[o] = 0;
    for (std::size_t i = 0; i < matrix.inputs; ++i) sums[o] += weight(matrix, i, o);
  }
}

// Quantizes a row to signed steps and returns the scale: the largest magnitude has 255 steps if the
// row is positive, and 127 otherwise. NaN in the row makes the scale NaN.
float quantize(const float* x, std::size_t count, bool positive, std::int32_t* steps) {
  float largest = 0;
  bool is_number = true;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    is_number = is_number && !std::isnan(x[i]);
  }
  const float scale = largest * (positive ? 1.0F / 255 : 1.0F / 127);
  const float least = positive ? 0 : -128, most = positive ? 255 : 127;
  for (std::size_t i = 0; i < count; ++i) {
    const float ratio = scale == 0 ? 0.0F : x[i] / scale;
    // In this order, min and max replace NaN.
    steps[i] = static_cast<std::int32_t>(std::min(most, std::max(least, nearest(ratio))));
  }
  return is_number ? scale : std::numeric_limits<float>::quiet_NaN();
}

std::int32_t sum_of_steps(const std::int32_t* steps, const Matrix8& matrix, std::size_t o) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < matrix.inputs; ++i) sum += steps[i] * weight(matrix, i, o);
  return sum;
}

void linear8(const Linear8& linear, const float* x, std::size_t rows, float* y,
             Executor& executor) {
  const auto& matrix = linear.matrix;
  parallel_for(executor, rows, [&](std::size_t row) {
    const Workspace workspace(executor.workspaces());
    auto* steps = allocate<std::int32_t>(workspace.arena, matrix.inputs);
    const float scale = quantize(x + row * matrix.inputs, matrix.inputs, linear.positive, steps);
    for (std::size_t o = 0; o < matrix.outputs; ++o) {
      y[row * matrix.outputs + o] =
          static_cast<float>(sum_of_steps(steps, matrix, o)) * scale * matrix.scales[o];
    }
    finish_row(linear.epilogue, row, matrix.outputs, y);
  });
}

// ---- candidates ----

// Writes the best log-probabilities of one row of logits, and those at the given columns, whose
// logits are logit(column).
template <class Logit>
void write_best(const float* logits, std::size_t columns, const Logit& logit, std::size_t row,
                const Candidates& out) {
  auto* values = out.values + row * out.count;
  auto* indices = out.indices + row * out.count;
  std::fill_n(values, out.count, kMinusInfinity);
  std::fill_n(indices, out.count, 0);
  for (std::size_t column = 0; column < columns; ++column) {
    const float value = logits[column];
    if (!(value > values[out.count - 1])) continue;  // of equal logits, the first stays
    auto at = out.count - 1;
    for (; at > 0 && values[at - 1] < value; --at) {
      values[at] = values[at - 1];
      indices[at] = indices[at - 1];
    }
    values[at] = value;
    indices[at] = static_cast<std::int64_t>(column);
  }
  const float largest = values[0];
  const float sum =
      sum_of(columns, [=](std::size_t i) { return exponential(logits[i] - largest); });
  const float log_sum = largest + std::log(sum);
  for (std::size_t i = 0; i < out.count; ++i) values[i] -= log_sum;
  for (auto i = row * out.lookups; i < (row + 1) * out.lookups; ++i) {
    out.at_columns[i] = logit(out.columns[i]) - log_sum;
  }
}

// The same where the columns to look up are among the logits.
void write_best(const float* logits, std::size_t columns, std::size_t row, const Candidates& out) {
  write_best(logits, columns, [=](std::int64_t column) { return logits[column]; }, row, out);
}

void top_logits(const float* logits, std::size_t rows, std::size_t columns, const Candidates& out,
                Executor& executor) {
  parallel_for(executor, rows, [&](std::size_t row) {
    const auto* here = logits + row * columns;
    write_best(here, columns, row, out);
  });
}

void candidates8(const Matrix8& matrix, const float* bias, const float* x, std::size_t rows,
                 const Candidates& out, Executor& executor) {
  parallel_for(executor, rows, [&](std::size_t row) {
    const Workspace workspace(executor.workspaces());
    auto* steps = allocate<std::int32_t>(workspace.arena, matrix.inputs);
    auto* logits = allocate<float>(workspace.arena, matrix.outputs);
    const float scale = quantize(x + row * matrix.inputs, matrix.inputs, false, steps);
    for (std::size_t o = 0; o < matrix.outputs; ++o) {
      const auto sum = static_cast<float>(sum_of_steps(steps, matrix, o));
      logits[o] = fused_multiply_add(sum * matrix.scales[o], scale, bias[o]);
    }
    write_best(logits, matrix.outputs, row, out);
  });
}

Vocabulary vocabulary(const float*, const float* bias, std::size_t outputs, std::size_t inputs,
                      Arena& arena) {
  auto* biases = allocate<float>(arena, outputs);
  for (std::size_t o = 0; o < outputs; ++o) biases[o] = bias == nullptr ? 0.0F : bias[o];
  return {inputs, outputs, 0, nullptr, nullptr, biases, 0, 0, 0, nullptr, nullptr};
}

void candidates(const Vocabulary& vocabulary, const float* columns, const float* x,
                std::size_t rows, const Candidates& out, Executor& executor) {
  const auto inputs = vocabulary.inputs;
  parallel_for(executor, rows, [&](std::size_t row) {
    const Workspace workspace(executor.workspaces());
    auto* logits = allocate<float>(workspace.arena, vocabulary.outputs);
    for (std::size_t o = 0; o < vocabulary.outputs; ++o) {
      logits[o] = dot(x + row * inputs, columns + o * inputs, inputs) + vocabulary.bias[o];
    }
    write_best(logits, vocabulary.outputs, row, out);
  });
}

// Writes the candidates of each row from its sentence's shortlist. logit(prepare(row, arena),
// token) computes a logit without bias.
template <class Prepare, class Logit>
void best_of_shortlists(const Shortlists& shortlists, const Candidates& out, Executor& executor,
                        const Prepare& prepare, const Logit& logit) {
  constexpr float kMasked = -1e9F;  // runtime/bundle/contract.py
  parallel_for(executor, shortlists.sentences * shortlists.beams, [&](std::size_t row) {
    const Workspace workspace(executor.workspaces());
    auto* tokens = allocate<std::int64_t>(workspace.arena, shortlists.entries);
    const auto* list = shortlists.tokens + row / shortlists.beams * shortlists.entries;
    const auto* end = std::copy_if(list, list + shortlists.entries, tokens,
                                   [](auto token) { return token != 0; });
    const auto count = static_cast<std::size_t>(end - tokens);
    auto* indices = out.indices + row * out.count;
    if (count == 0) {  // a finished sentence
      std::fill_n(out.values + row * out.count, out.count, kMasked);
      std::fill_n(indices, out.count, 0);
      std::fill_n(out.at_columns + row * out.lookups, out.lookups, 0.0F);
      return;
    }
    const auto x = prepare(row, workspace.arena);
    const auto biased = [&](std::int64_t token) {
      const auto at = static_cast<std::size_t>(token);
      return logit(x, at) + (shortlists.bias == nullptr ? 0.0F : shortlists.bias[at]);
    };
    auto* logits = allocate<float>(workspace.arena, count);
    for (std::size_t i = 0; i < count; ++i) logits[i] = biased(tokens[i]);
    write_best(logits, count, biased, row, out);
    for (std::size_t i = 0; i < out.count; ++i) {
      indices[i] = tokens[static_cast<std::size_t>(indices[i])];
    }
  });
}

void shortlist_candidates(const Shortlists& shortlists, const float* matrix, const float* x,
                          const Candidates& out, Executor& executor) {
  const auto inputs = shortlists.inputs;
  best_of_shortlists(
      shortlists, out, executor, [&](std::size_t row, Arena&) { return x + row * inputs; },
      [&](const float* row, std::size_t token) {
        return dot(row, matrix + token * inputs, inputs);
      });
}

void shortlist_candidates8(const Shortlists& shortlists, const std::int8_t* matrix,
                           const float* scales, const std::int32_t*, const float* x,
                           const Candidates& out, Executor& executor) {
  struct Row {
    const std::int32_t* steps;
    float scale;
  };
  const auto inputs = shortlists.inputs;
  best_of_shortlists(
      shortlists, out, executor,
      [&](std::size_t row, Arena& arena) {
        auto* steps = allocate<std::int32_t>(arena, inputs);
        const float scale = quantize(x + row * inputs, inputs, false, steps);
        return Row{steps, scale};
      },
      [&](const Row& row, std::size_t token) {
        const auto* weights = matrix + token * inputs;
        std::int32_t sum = 0;
        for (std::size_t i = 0; i < inputs; ++i) sum += row.steps[i] * weights[i];
        return static_cast<float>(sum) * row.scale * scales[token];
      });
}

// ---- attention ----

Half half_of(float x) {
  const float limited = x < kMaxHalf ? x : kMaxHalf;
  const std::uint32_t bits = bits_of(limited > -kMaxHalf ? limited : -kMaxHalf);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  // The addition rounds subnormal numbers: the last bit of 0.5 is worth 2^-24.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  // The exponent has another bias, and the fraction is rounded to ten bits, half to even.
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  const std::uint32_t rounded = magnitude < 113U << 23 ? subnormal : normal;
  return static_cast<Half>(rounded | (bits >> 16 & 0x8000));
}

void to_half(const float* x, std::size_t count, Half* y) {
  for (std::size_t i = 0; i < count; ++i) y[i] = half_of(x[i]);
}

float number(Half x) {
  // The multiplication corrects the exponent's bias, of subnormal numbers too.
  const float finite = float_of((x & 0x7FFFU) << 13) * 0x1p112F;
  const std::uint32_t special = (x & 0x7C00) == 0x7C00 ? 0x7F800000U : 0U;
  return float_of(bits_of(finite) | special | (x & 0x8000U) << 16);
}

// Returns keys or values as floats; those in binary16 are converted into `copy`.
const float* as_floats(const float* x, std::size_t, float*) { return x; }

const float* as_floats(const Half* x, std::size_t count, float* copy) {
  for (std::size_t i = 0; i < count; ++i) copy[i] = number(x[i]);
  return copy;
}

// The slots of a sentence that at least one query attends to.
struct SeenSlots {
  const std::size_t* slots;
  std::size_t count;
};

template <class Number>
SeenSlots seen_slots(const Attention<Number>& a, std::size_t sentence, Arena& arena) {
  constexpr float kHidden = -1e8F;
  const auto* bias = a.bias + sentence * a.bias_heads * a.bias_rows * a.positions;
  auto* slots = allocate<std::size_t>(arena, a.positions);
  std::size_t count = 0;
  for (std::size_t slot = 0; slot < a.positions; ++slot) {
    bool is_seen = false;
    for (std::size_t row = 0; row < a.bias_rows; ++row) {
      is_seen = is_seen || bias[row * a.positions + slot] > kHidden;
    }
    if (is_seen) slots[count++] = slot;
  }
  return {slots, count};
}

// Replaces scores by unnormalized softmax weights; returns the normalizing factor.
float softmax(float* scores, std::size_t count) {
  const float largest = *std::max_element(scores, scores + count);
  for (std::size_t i = 0; i < count; ++i) scores[i] = exponential(scores[i] - largest);
  return 1.0F / sum_of(count, [=](std::size_t i) { return scores[i]; });
}

// Attention of queries [begin, end) of one head. Each key or value is read and converted once.
template <class Number>
void attend(const Attention<Number>& a, const SeenSlots& seen, std::size_t sentence,
            std::size_t head, std::size_t begin, std::size_t end, Arena& arena) {
  const auto plane = sentence * a.sentence_stride + head * a.head_stride;
  const auto bias_head = sentence * a.bias_heads + (a.bias_heads == 1 ? 0 : head);
  const auto* bias = a.bias + bias_head * a.bias_rows * a.positions;
  auto* copy = allocate<float>(arena, a.size);
  auto* weights = allocate<float>(arena, (end - begin) * seen.count);
  for (std::size_t i = 0; i < seen.count; ++i) {
    const auto slot = seen.slots[i];
    const auto* key = as_floats(a.key + plane + slot * a.position_stride, a.size, copy);
    for (auto q = begin; q < end; ++q) {
      const auto* query = a.query + (sentence * a.queries + q) * a.query_stride + head * a.size;
      weights[(q - begin) * seen.count + i] =
          dot(query, key, a.size) + bias[(a.bias_rows == 1 ? 0 : q) * a.positions + slot];
    }
  }
  const auto width = a.heads * a.size;
  auto* context = a.context + (sentence * a.queries + begin) * width + head * a.size;
  auto* factors = allocate<float>(arena, end - begin);
  for (std::size_t row = 0; row < end - begin; ++row) {
    factors[row] = softmax(weights + row * seen.count, seen.count);
    std::fill_n(context + row * width, a.size, 0.0F);
  }
  for (std::size_t i = 0; i < seen.count; ++i) {
    const auto* value =
        as_floats(a.value + plane + seen.slots[i] * a.position_stride, a.size, copy);
    for (std::size_t row = 0; row < end - begin; ++row) {
      const float weight = weights[row * seen.count + i];
      auto* here = context + row * width;
      for (std::size_t d = 0; d < a.size; ++d) here[d] += weight * value[d];
    }
  }
  for (std::size_t row = 0; row < end - begin; ++row) {
    for (std::size_t d = 0; d < a.size; ++d) context[row * width + d] *= factors[row];
    if (a.weights == nullptr) continue;
    auto* here = a.weights + ((sentence * a.heads + head) * a.queries + begin + row) * a.positions;
    std::fill_n(here, a.positions, 0.0F);
    for (std::size_t i = 0; i < seen.count; ++i) {
      here[seen.slots[i]] = weights[row * seen.count + i] * factors[row];
    }
  }
}

template <class Number>
void attend_sentences(const Attention<Number>& a, Executor& executor) {
  constexpr std::size_t kQueries = 16;  // queries processed together
  // With few sentences, threads also share the heads of a sentence.
  const auto parts = a.sentences < 4 ? a.heads : 1;
  parallel_for(executor, a.sentences * parts, [&](std::size_t task) {
    const auto sentence = task / parts, part = task % parts;
    const Workspace workspace(executor.workspaces());
    const auto seen = seen_slots(a, sentence, workspace.arena);
    for (auto head = part * a.heads / parts; head < (part + 1) * a.heads / parts; ++head) {
      for (std::size_t begin = 0; begin < a.queries; begin += kQueries) {
        const auto end = std::min(a.queries, begin + kQueries);
        if (seen.count > 0) {
          const Workspace own(executor.workspaces());
          attend(a, seen, sentence, head, begin, end, own.arena);
          continue;
        }
        for (auto query = begin; query < end; ++query) {  // an idle row
          const auto row = sentence * a.queries + query;
          std::fill_n(a.context + (row * a.heads + head) * a.size, a.size, 0.0F);
          if (a.weights == nullptr) continue;
          const auto weight_row = (sentence * a.heads + head) * a.queries + query;
          std::fill_n(a.weights + weight_row * a.positions, a.positions, 0.0F);
        }
      }
    }
  });
}

void attention(const Attention<float>& a, Executor& executor) { attend_sentences(a, executor); }

void attention16(const Attention<Half>& a, Executor& executor) { attend_sentences(a, executor); }

}  // namespace

const Kernels plain = {
    "plain",
    column_sums,
    nullptr,
    linear8,
    candidates8,
    linear,
    vocabulary,
    candidates,
    top_logits,
    shortlist_candidates,
    shortlist_candidates8,
    attention,
    attention16,
    to_half,
    add_norm,
    recurrent_unit,
    gated_gelu,
};

}  // namespace translate_trt
