// Top-k candidates: from FP32 and 8-bit vocabularies, from logits, and from shortlists.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "../kernels/plain.h"
#include "kernel_check.h"

namespace translate_trt {
namespace {

constexpr std::size_t kLookups = 3;  // columns to look up in a row

// Results of a kernel or of the reference.
struct Found {
  Found(std::size_t rows, std::size_t count)
      : columns(rows * kLookups),
        values(rows * count),
        indices(rows * count),
        at_columns(rows * kLookups),
        count(count) {}

  Candidates out() {
    return {count, kLookups, columns.data(), values.data(), indices.data(), at_columns.data()};
  }

  void check(const std::string& what, const Found& expected, double tolerance) const {
    check_same(what + ", indices", indices, expected.indices);
    check_close(what + ", values", values, expected.values, tolerance, tolerance);
    check_close(what + ", at columns", at_columns, expected.at_columns, tolerance, tolerance);
  }

  std::vector<std::int64_t> columns;
  std::vector<float> values;
  std::vector<std::int64_t> indices;
  std::vector<float> at_columns;
  std::size_t count;
};

// Reference candidates of one row of logits. looked_up(column): logit of a column to look up.
template <class Logit>
void expect(Found& found, std::size_t row, const std::vector<double>& logits,
            const std::vector<std::int64_t>& columns, const Logit& looked_up) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int64_t i) { return logits[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  double sum = 0;
  for (const double one : logits) sum += std::exp(one - logit(order[0]));
  const double log_sum = logit(order[0]) + std::log(sum);
  for (std::size_t i = 0; i < found.count; ++i) {
    found.indices[row * found.count + i] = order[i];
    found.values[row * found.count + i] = static_cast<float>(logit(order[i]) - log_sum);
  }
  for (auto i = row * kLookups; i < (row + 1) * kLookups; ++i) {
    found.at_columns[i] = static_cast<float>(looked_up(columns[i]) - log_sum);
  }
}

Found expected(const std::vector<std::vector<double>>& logits, const Found& asked) {
  Found found(logits.size(), asked.count);
  for (std::size_t row = 0; row < logits.size(); ++row) {
    expect(found, row, logits[row], asked.columns,
           [&](std::int64_t column) { return logits[row][static_cast<std::size_t>(column)]; });
  }
  return found;
}

Found asked(std::size_t rows, std::size_t count, std::size_t columns, Numbers& numbers) {
  Found found(rows, count);
  found.columns = numbers.integers(rows * kLookups, columns);
  return found;
}

// ---- logits ----

void test_top_logits() {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const std::size_t columns : {1, 15, 16, 17, 63, 64, 65, 1000}) {
      for (const std::size_t count : {1, 2, 9}) {
        if (count > columns) continue;
        for (const std::size_t rows : {0, 1, 5}) {
          auto logits = numbers.floats(rows * columns, 20);
          // Rows with masked columns, with equal logits, and with two distinct logits.
          for (std::size_t i = 0; i < logits.size(); ++i) {
            const auto row = i / columns;
            if (row == 1 && i % 3 == 0) logits[i] = -1e9F;
            if (row == 2) logits[i] = -7;
            if (row == 3) logits[i] = i % 5 < 2 ? 8 : -1e4F;
          }
          std::vector<std::vector<double>> all;
          for (std::size_t row = 0; row < rows; ++row) {
            const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * columns);
            all.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(columns));
          }
          auto found = asked(rows, count, columns, numbers);
          kernels.top_logits(logits.data(), rows, columns, found.out(), executor);
          found.check(way + "top_logits " + std::to_string(columns), expected(all, found), 2e-6);
        }
      }
    }
  });
}

// ---- a vocabulary ----

struct Size {
  std::size_t rows, inputs, outputs, count;

  std::string text() const {
    return std::to_string(rows) + " x " + std::to_string(inputs) + " x " + std::to_string(outputs) +
           ", " + std::to_string(count);
  }
};

// Inputs whose second row equals the first, and whose third row is zero, so that its logits are the
// bias.
std::vector<float> rows_of(const Size& size, Numbers& numbers) {
  auto x = numbers.floats(size.rows * size.inputs);
  if (size.rows > 1) std::copy_n(x.data(), size.inputs, x.data() + size.inputs);
  if (size.rows > 2) std::fill_n(x.data() + 2 * size.inputs, size.inputs, 0.0F);
  return x;
}

// Reference logits of rows with columns [outputs, inputs], and a bias or null.
std::vector<std::vector<double>> logits_of(const std::vector<float>& x,
                                           const std::vector<float>& columns,
                                           const std::vector<float>* bias, const Size& size) {
  std::vector<std::vector<double>> logits(size.rows);
  for (std::size_t row = 0; row < size.rows; ++row) {
    for (std::size_t o = 0; o < size.outputs; ++o) {
      double sum = bias == nullptr ? 0 : (*bias)[o];
      for (std::size_t i = 0; i < size.inputs; ++i) {
        sum += double{x[row * size.inputs + i]} * columns[o * size.inputs + i];
      }
      logits[row].push_back(sum);
    }
  }
  return logits;
}

void test_candidates() {
  // Matmuls with 2,048 columns and more use 16 bits.
  constexpr Size kSizes[] = {{0, 8, 20, 2},    {1, 1, 1, 1},     {3, 7, 17, 2},     {4, 33, 500, 9},
                             {1, 64, 2048, 1}, {5, 63, 2050, 8}, {20, 40, 2500, 12}};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const auto& size : kSizes) {
      for (const bool biased : {false, true}) {
        const auto columns = numbers.floats(size.outputs * size.inputs);
        auto bias = numbers.floats(size.outputs);
        for (std::size_t i = 3; i < bias.size(); i += 11) bias[i] = -10000;  // a banned token
        const auto x = rows_of(size, numbers);
        Arena memory;
        const auto vocabulary = kernels.vocabulary(columns.data(), biased ? bias.data() : nullptr,
                                                   size.outputs, size.inputs, memory);
        auto found = asked(size.rows, size.count, size.outputs, numbers);
        kernels.candidates(vocabulary, columns.data(), x.data(), size.rows, found.out(), executor);
        const auto logits = logits_of(x, columns, biased ? &bias : nullptr, size);
        found.check(way + "candidates " + size.text(), expected(logits, found), 3e-5);
      }
    }
  });
}

// Columns that differ by less than a 16-bit step: all logits must be computed in FP32.
void test_columns_nearly_alike() {
  constexpr Size kSize{3, 32, 2500, 4};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    const auto one = numbers.floats(kSize.inputs);
    auto columns = numbers.floats(kSize.outputs * kSize.inputs, 2e-4F);
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i] += one[i % kSize.inputs];
    const auto x = numbers.floats(kSize.rows * kSize.inputs);
    Arena memory;
    const auto vocabulary =
        kernels.vocabulary(columns.data(), nullptr, kSize.outputs, kSize.inputs, memory);
    auto found = asked(kSize.rows, kSize.count, kSize.outputs, numbers);
    kernels.candidates(vocabulary, columns.data(), x.data(), kSize.rows, found.out(), executor);
    found.check(way + "columns nearly alike",
                expected(logits_of(x, columns, nullptr, kSize), found), 1e-5);
  });
}

void test_candidates8() {
  constexpr Size kSizes[] = {{0, 8, 20, 2},   {1, 4, 1, 1},     {3, 8, 15, 2},   {4, 36, 65, 9},
                             {7, 64, 500, 4}, {18, 68, 300, 8}, {33, 32, 70, 5}, {40, 64, 600, 12}};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const auto& size : kSizes) {
      const auto blocks = ceiling(size.outputs, 16);
      const auto weights = numbers.bytes(blocks * 16 * size.inputs);
      const auto scales = numbers.floats(blocks * 16, 0.01F), bias = numbers.floats(blocks * 16);
      std::vector<std::int32_t> sums(blocks * 16);
      const Matrix8 matrix{weights.data(), scales.data(), sums.data(),
                           size.inputs,    size.outputs,  blocks};
      kernels.column_sums(matrix, sums.data());
      const auto x = rows_of(size, numbers);
      auto found = asked(size.rows, size.count, size.outputs, numbers);
      kernels.candidates8(matrix, bias.data(), x.data(), size.rows, found.out(), executor);
      std::vector<std::vector<double>> logits(size.rows);
      for (std::size_t row = 0; row < size.rows; ++row) {
        const Row8 one = in_8_bits(x.data() + row * size.inputs, size.inputs);
        for (std::size_t o = 0; o < size.outputs; ++o) {
          std::int32_t sum = 0;
          for (std::size_t i = 0; i < size.inputs; ++i) {
            const auto at = (o / 16 * (size.inputs / 4) + i / 4) * 64 + o % 16 * 4 + i % 4;
            sum += one.integers[i] * weights[at];
          }
          logits[row].push_back(
              fused_multiply_add(static_cast<float>(sum) * scales[o], one.scale, bias[o]));
        }
      }
      found.check(way + "candidates8 " + size.text(), expected(logits, found), 3e-6);
    }
  });
}

// ---- shortlists ----

struct ListSize {
  std::size_t sentences, beams, places, inputs, count;
};

// Tests a matrix of floats, or of bytes with a scale per row.
template <class Weight>
void test_listed(const ListSize& size, const Kernels& kernels, TestExecutor& executor,
                 const std::string& what, bool biased) {
  constexpr bool kBytes = std::is_same_v<Weight, std::int8_t>;
  constexpr std::size_t kVocabulary = 300;
  Numbers numbers(static_cast<std::uint32_t>(size.places));
  const auto rows = size.sentences * size.beams;
  const auto floats = numbers.floats(kVocabulary * size.inputs);
  const auto bytes = numbers.bytes(kVocabulary * size.inputs);
  const auto scales = numbers.floats(kVocabulary, 0.01F);
  auto bias = numbers.floats(kVocabulary);
  if (size.places > 1) bias[1] = -10000;  // the first token of a list is banned
  std::vector<std::int32_t> sums(kVocabulary);
  for (std::size_t i = 0; i < bytes.size(); ++i) sums[i / size.inputs] += bytes[i];
  auto x = numbers.floats(rows * size.inputs);
  if (rows > 1) std::copy_n(x.data(), size.inputs, x.data() + size.inputs);
  // Distinct tokens and some unused entries; the last of several sentences is done.
  std::vector<std::int64_t> tokens(size.sentences * size.places);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto n = i / size.places, place = i % size.places;
    const bool is_done = n > 0 && n + 1 == size.sentences;
    const bool is_empty = is_done || (place > size.count && place % 4 == 1);
    tokens[i] =
        is_empty ? 0 : static_cast<std::int64_t>(1 + (place * 7 + n * 31) % (kVocabulary - 1));
  }
  Found found(rows, size.count), right(rows, size.count);
  for (std::size_t i = 0; i < rows * kLookups; ++i) {  // equal for all beams of a sentence
    const auto n = i / kLookups / size.beams, lookup = i % kLookups;
    found.columns[i] = static_cast<std::int64_t>((n * 13 + lookup * 29) % kVocabulary);
  }
  const Shortlists lists{size.sentences, size.beams,    size.places,
                         size.inputs,    tokens.data(), biased ? bias.data() : nullptr};
  if constexpr (kBytes) {
    kernels.shortlist_candidates8(lists, bytes.data(), scales.data(), sums.data(), x.data(),
                                  found.out(), executor);
  } else {
    kernels.shortlist_candidates(lists, floats.data(), x.data(), found.out(), executor);
  }
  const auto logit = [&](std::size_t row, std::int64_t token) {
    const auto at = static_cast<std::size_t>(token);
    const auto* here = x.data() + row * size.inputs;
    double sum = 0;
    if constexpr (kBytes) {
      const Row8 one = in_8_bits(here, size.inputs);
      for (std::size_t i = 0; i < size.inputs; ++i) {
        sum += static_cast<double>(one.integers[i]) * bytes[at * size.inputs + i];
      }
      sum *= double{one.scale} * scales[at];
    } else {
      for (std::size_t i = 0; i < size.inputs; ++i) {
        sum += double{here[i]} * floats[at * size.inputs + i];
      }
    }
    return sum + (biased ? bias[at] : 0);
  };
  for (std::size_t row = 0; row < rows; ++row) {
    const auto n = row / size.beams;
    std::vector<std::int64_t> listed;
    for (std::size_t i = 0; i < size.places; ++i) {
      if (tokens[n * size.places + i] != 0) listed.push_back(tokens[n * size.places + i]);
    }
    if (listed.empty()) {
      std::fill_n(right.values.data() + row * size.count, size.count, -1e9F);
      continue;
    }
    std::vector<double> logits;
    for (const auto token : listed) logits.push_back(logit(row, token));
    expect(right, row, logits, found.columns,
           [&](std::int64_t column) { return logit(row, column); });
    for (std::size_t i = 0; i < size.count; ++i) {
      auto& index = right.indices[row * size.count + i];
      index = listed[static_cast<std::size_t>(index)];
    }
  }
  found.check(what, right, 5e-6);
}

void test_lists() {
  constexpr ListSize kSizes[] = {{1, 1, 1, 1, 1},   {1, 4, 10, 64, 2},   {2, 3, 17, 65, 4},
                                 {3, 5, 50, 63, 9}, {5, 2, 129, 130, 8}, {2, 4, 31, 16, 5},
                                 {3, 1, 50, 63, 3}, {2, 1, 129, 130, 3}, {1, 1, 16, 64, 3}};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    for (const auto& size : kSizes) {
      for (const bool biased : {false, true}) {
        const auto text = std::to_string(size.places) + (biased ? ", biased" : "");
        test_listed<float>(size, kernels, executor, way + "listed " + text, biased);
        test_listed<std::int8_t>(size, kernels, executor, way + "listed8 " + text, biased);
      }
    }
  });
}

}  // namespace

void test_kernel_candidates() {
  test_top_logits();
  test_candidates();
  test_columns_nearly_alike();
  test_candidates8();
  test_lists();
}

}  // namespace translate_trt
