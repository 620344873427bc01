// Exact FP32 candidates from a 16-bit matmul with the vocabulary matrix, which takes half the time
// and half the memory bandwidth.
//
// The error of a dot product of rounded vectors x' and w' is bounded by
//   |x w - x' w'| <= |x - x'| |w'| + |x| |w - w'|       (Cauchy-Schwarz inequality)
// In 16 bits, only a few columns can be among the best. Their logits are recomputed in FP32, so
// candidates and their logits are those of FP32. All other columns contribute only to the sum of
// exponentials, where their errors are small and cancel, except for the mean error, which is known
// and subtracted (docs/kernels.md has the resulting precision). If too many logits of a row are
// nearly equal for the bound to decide, the row is multiplied by all columns in FP32.
//
// The bias is added in FP32 to both kinds of logits, so it affects the bound only by one rounding.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "topk.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {
namespace {

constexpr float kMaxOfColumn = 2047;  // 11 bits and a sign; rows then have about as many
constexpr float kMaxOfRow = 32767;
constexpr double kMaxOfSum = 2147483647;
// Columns with a smaller bias, such as banned tokens, do not contribute to any sum.
constexpr float kBannedBias = -1000;
// Smaller vocabularies use FP32 for all columns: they are cheap, and their errors cancel less well.
constexpr std::size_t kMinColumns = 2048;

// Dot product in a fixed order, so that the logits of a row do not depend on other rows.
float dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kParts = 4;
  Floats sums[kParts];
  std::fill_n(sums, kParts, zeros());
  for (std::size_t i = 0; i < count; i += kParts * kLanes) {
    for (std::size_t j = 0; j < kParts; ++j) {
      const auto at = i + j * kLanes;
      const auto lanes = first_lanes(remaining(count, at));
      sums[j] = multiply_add(load(a + at, lanes), load(b + at, lanes), sums[j]);
    }
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

float norm(const float* x, std::size_t count) { return std::sqrt(dot(x, x, count)); }

// 16 numbers rounded to integers, and their rounding errors.
struct Rounded {
  Ints integers;
  Floats rest;

  Rounded(const float* x, std::size_t count, float scale) {
    const Floats values = load(x, first_lanes(count)), scales = broadcast(scale);
    integers = scale == 0 ? zero_ints() : to_ints(values / scales);
    rest = subtract_product(values, to_floats(integers), scales);
  }
};

// Errors of a row's 16-bit logits.
struct Error {
  float most;  // bound for a single logit
  float mean;  // mean error, to add to a 16-bit logit
};

// 16-bit rows, as the bytes of Rows8.
struct Rows16 {
  Rows8 rows;
  const Error* errors;  // [count]
};

// Number of quantization steps for the largest magnitude of a row such that no sum overflows 32
// bits.
float steps(const Vocabulary& vocabulary, float most, float norm) {
  const double integers = 0.99 * kMaxOfSum / vocabulary.integer_norm -
                          0.5 * std::sqrt(static_cast<double>(vocabulary.inputs));
  return std::min(kMaxOfRow, static_cast<float>(std::floor(integers * most / norm)));
}

Rows16 quantize16(const Vocabulary& vocabulary, const float* x, std::size_t rows,
                  Executor& executor, Arena& arena) {
  const auto inputs = vocabulary.inputs, filled = inputs + inputs % 2;
  auto* begins = allocate<std::size_t>(arena, rows + 1);
  const auto count = runs(x, rows, inputs, begins);
  auto* values = allocate<std::int16_t>(arena, count * filled);
  auto* scales = allocate<float>(arena, count);
  auto* errors = allocate<Error>(arena, count);
  for_rows(count, executor, [&](std::size_t row) {
    const auto* here = x + begins[row] * inputs;
    auto* out = values + row * filled;
    const float most = max_magnitude(here, inputs), size = norm(here, inputs);
    const float scale = size > 0 ? most / steps(vocabulary, most, size) : 0;
    Floats left = zeros(), mean = zeros();
    for (std::size_t i = 0; i < inputs; i += kLanes) {
      const Rounded rounded(here + i, inputs - i, scale);
      const auto lanes = first_lanes(inputs - i);
      store_words(out + i, rounded.integers, first_lanes(filled - i));
      left = multiply_add(rounded.rest, rounded.rest, left);
      mean = multiply_add(rounded.rest, load(&vocabulary.mean[i], lanes), mean);
      mean = multiply_add(load(here + i, lanes), load(&vocabulary.mean_error[i], lanes), mean);
    }
    scales[row] = scale;
    // Rounding errors of 16 bits, and of an FP32 sum in any order (Higham 2002, section 3.1).
    const float in_fp32 = static_cast<float>(inputs + 8) * 0x1p-24F * size * vocabulary.norm;
    errors[row] = {std::sqrt(sum(left)) * vocabulary.norm + size * vocabulary.error + in_fp32,
                   sum(mean)};
  });
  return {{reinterpret_cast<const std::uint8_t*>(values), scales, begins, count, 0, &kGemm16},
          errors};
}

Matrix8 as_bytes(const Vocabulary& vocabulary) {
  return {reinterpret_cast<const std::int8_t*>(vocabulary.lines),
          vocabulary.scales,
          nullptr,
          2 * (vocabulary.inputs + vocabulary.inputs % 2),
          vocabulary.outputs,
          vocabulary.blocks};
}

template <class T>
T* zeroed(Arena& arena, std::size_t count) {
  auto* array = allocate<T>(arena, count);
  std::memset(array, 0, count * sizeof(T));
  return array;
}

bool better(const Entry& a, const Entry& b) {
  return a.value > b.value || (a.value == b.value && a.column < b.column);
}

// Insertion sort, since entries are few and nearly sorted.
void sort(Entry* list, std::size_t count) {
  for (std::size_t i = 1; i < count; ++i) {
    const auto entry = list[i];
    auto position = i;
    for (; position > 0 && better(entry, list[position - 1]); --position) {
      list[position] = list[position - 1];
    }
    list[position] = entry;
  }
}

// Recomputes the logits of a row's shortlisted columns in FP32 and corrects the log-sum-exp.
// Returns false if other columns could be among the best.
bool refine(Entry* list, std::size_t shortlisted, std::size_t wanted, const Error& error,
            const float* x, const float* columns, const Vocabulary& vocabulary, float& log_sum) {
  const auto inputs = vocabulary.inputs;
  for (std::size_t i = 0; i < shortlisted; ++i) {
    prefetch(columns + static_cast<std::size_t>(list[i].column) * inputs, inputs * sizeof(float));
  }
  // Upper bound of the logits of other columns; the bias is added with one rounding here and one in
  // FP32.
  const float last = list[shortlisted - 1].value;
  const float elsewhere = last + error.most + 0x1p-22F * (std::abs(last) + error.most);
  const float most = list[0].value;
  double sum = std::exp(static_cast<double>(log_sum - most));  // relative to most + error.mean
  for (std::size_t i = 0; i < shortlisted; ++i) {
    const float rounded = list[i].value - most;
    const auto column = static_cast<std::size_t>(list[i].column);
    list[i].value = dot(x, columns + column * inputs, inputs) + vocabulary.bias[column];
    sum += std::exp(static_cast<double>(list[i].value - most - error.mean)) -
           std::exp(static_cast<double>(rounded));
  }
  sort(list, shortlisted);
  log_sum = most + error.mean + static_cast<float>(std::log(sum));
  return list[wanted - 1].value > elsewhere;
}

}  // namespace

Vocabulary vocabulary(const float* columns, const float* bias, std::size_t outputs,
                      std::size_t inputs, Arena& arena) {
  const auto blocks = ceiling(outputs, kLanes), pairs = ceiling(inputs, 2);
  auto* scales = zeroed<float>(arena, blocks * kLanes);
  auto* biases = zeroed<float>(arena, blocks * kLanes);
  auto* mean = allocate<float>(arena, inputs);
  auto* mean_error = allocate<float>(arena, inputs);
  auto* sums = zeroed<double>(arena, inputs);
  auto* errors = zeroed<double>(arena, inputs);
  // The largest array is allocated last, because the arena at least doubles with every block.
  auto* lines = zeroed<Vocabulary::Line>(arena, blocks * pairs);
  if (bias != nullptr) std::copy_n(bias, outputs, biases);
  Vocabulary result{inputs, outputs, blocks, lines, scales, biases, 0, 0, 0, mean, mean_error};
  double count = 0;  // number of columns in the means
  for (std::size_t column = 0; column < outputs; ++column) {
    const auto* w = columns + column * inputs;
    const float scale = max_magnitude(w, inputs) / kMaxOfColumn;
    const double share = biases[column] < kBannedBias ? 0 : 1;
    count += share;
    auto* line = lines + column / kLanes * pairs;
    const auto lane = column % kLanes * 2;
    Floats squares = zeros(), left = zeros();
    for (std::size_t i = 0; i < inputs; i += kLanes) {
      const Rounded rounded(w + i, inputs - i, scale);
      const Floats integers = to_floats(rounded.integers);
      squares = multiply_add(integers, integers, squares);
      left = multiply_add(rounded.rest, rounded.rest, left);
      alignas(64) std::int32_t lanes[kLanes];
      store(lanes, rounded.integers);
      alignas(64) float rest[kLanes];
      store(rest, rounded.rest);
      for (std::size_t k = 0; k < std::min(kLanes, inputs - i); ++k) {
        line[(i + k) / 2].words[lane + k % 2] = static_cast<std::int16_t>(lanes[k]);
        sums[i + k] += share * static_cast<float>(lanes[k]) * scale;
        errors[i + k] += share * rest[k];
      }
    }
    const float integer_norm = std::sqrt(sum(squares));
    scales[column] = scale;
    result.integer_norm = std::max(result.integer_norm, integer_norm);
    result.norm = std::max(result.norm, integer_norm * scale);
    result.error = std::max(result.error, std::sqrt(sum(left)));
  }
  for (std::size_t i = 0; i < inputs; ++i) {
    mean[i] = static_cast<float>(sums[i] / std::max(count, 1.0));
    mean_error[i] = static_cast<float>(errors[i] / std::max(count, 1.0));
  }
  return result;
}

void candidates(const Vocabulary& vocabulary, const float* columns, const float* input,
                std::size_t rows, const Candidates& out, Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto inputs = vocabulary.inputs, outputs = vocabulary.outputs;
  const auto x = quantize16(vocabulary, input, rows, executor, workspace.arena);
  // Twice the requested number has always been sufficient for trained models.
  const auto shortlisted = std::min(outputs, std::max<std::size_t>(16, 2 * out.count));
  const auto states = matmul_topk(x.rows, as_bytes(vocabulary), vocabulary.bias, shortlisted,
                                  executor, workspace.arena);
  const auto row_of = [&](std::size_t row) { return input + x.rows.begins[row] * inputs; };
  const auto logit = [&](std::size_t row, std::size_t column) {
    return dot(row_of(row), columns + column * inputs, inputs) + vocabulary.bias[column];
  };
  const auto finish = [&](std::size_t row, const TopKState& state, float log_sum) {
    for (auto copy = x.rows.begins[row]; copy < x.rows.begins[row + 1]; ++copy) {
      write(state, log_sum, copy, out);
      for (auto i = copy * out.lookups; i < (copy + 1) * out.lookups; ++i) {
        out.at_columns[i] = logit(row, static_cast<std::size_t>(out.columns[i])) - log_sum;
      }
    }
  };
  auto* decided = allocate<bool>(workspace.arena, x.rows.count);
  for_rows(x.rows.count, executor, [&](std::size_t row) {
    auto& state = states.all[row];
    float log_sum = states.merged(row, shortlisted);
    decided[row] = refine(state.list, shortlisted, out.count, x.errors[row], row_of(row), columns,
                          vocabulary, log_sum) &&
                   outputs >= kMinColumns;
    finish(row, state, log_sum);
  });
  for (std::size_t row = 0; row < x.rows.count; ++row) {
    if (decided[row]) continue;
    const Workspace row_workspace(executor.workspaces());
    auto* logits = allocate<float>(row_workspace.arena, outputs);
    for_rows(outputs, executor, [&](std::size_t column) { logits[column] = logit(row, column); });
    const auto state = make_topk_states(1, 1, 1, out.count, row_workspace.arena);
    finish(row, *state.all, update_all(*state.all, out.count, logits, outputs));
  }
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
