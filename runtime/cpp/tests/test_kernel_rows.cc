// Normalization of rows, and conversion to FP16.

#include <cmath>
#include <limits>

#include "kernel_check.h"

namespace translate_trt {
namespace {

void test_add_norm() {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const std::size_t columns : {1, 15, 16, 17, 100, 513}) {
      for (const std::size_t rows : {0, 1, 3, 33}) {
        const auto count = rows * columns;
        const auto x = numbers.floats(count, 3), residual = numbers.floats(count, 3);
        const auto gamma = numbers.floats(columns), beta = numbers.floats(columns);
        const Norm norm{gamma.data(), beta.data(), 1e-5F};
        std::vector<float> y(count), kept(count), same(count), sums(count);
        for (std::size_t i = 0; i < count; ++i) sums[i] = x[i] + residual[i];
        const auto run = [&](const std::vector<float>& rows_of, const float* added, float* sum,
                             std::vector<float>& out) {
          kernels.add_norm(rows_of.data(), added, rows, columns, norm, sum, out.data(), executor);
        };
        run(x, residual.data(), nullptr, y);
        const auto what =
            way + "add_norm " + std::to_string(rows) + " x " + std::to_string(columns);
        check_close(what, y, normalized(sums, norm, columns), 1e-5, 1e-5);
        run(x, residual.data(), kept.data(), same);
        check_same(what + ", sum", kept, sums);
        check_same(what + " and sum", same, y);
        run(sums, nullptr, nullptr, same);
        check_same(what + " without a residual", same, y);
        const Norm rms{gamma.data(), nullptr, 1e-5F};
        kernels.add_norm(sums.data(), nullptr, rows, columns, rms, nullptr, y.data(), executor);
        check_close(what + " without a mean", y, normalized(sums, rms, columns), 1e-5, 1e-5);
      }
    }
  });
}

void test_recurrent_unit() {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const std::size_t columns : {1, 15, 16, 17, 256}) {
      for (const std::size_t rows : {0, 1, 3, 33}) {
        const auto count = rows * columns;
        auto gates = numbers.floats(2 * count, 8);
        const auto state = numbers.floats(count, 3);
        // e^-x overflows, or is zero.
        if (count > 0) gates.front() = -1e6F;
        if (columns > 1 && count > 0) gates[1] = 1e6F;
        std::vector<float> next(count), y(count), expected(count), positive(count);
        for (std::size_t i = 0; i < count; ++i) {
          const auto gate = i / columns * 2 * columns + i % columns;
          const double kept = 1 / (1 + std::exp(-static_cast<double>(gates[gate])));
          expected[i] = static_cast<float>(kept * state[i] + (1 - kept) * gates[gate + columns]);
        }
        kernels.recurrent_unit(gates.data(), state.data(), rows, columns, next.data(), y.data(),
                               executor);
        const auto what =
            way + "recurrent_unit " + std::to_string(rows) + " x " + std::to_string(columns);
        check_close(what, next, expected, 1e-5, 1e-5);
        for (std::size_t i = 0; i < count; ++i) positive[i] = std::max(next[i], 0.0F);
        check_same(what + ", output", y, positive);
      }
    }
  });
}

void test_gated_gelu() {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const std::size_t columns : {1, 15, 16, 17, 256}) {
      for (const std::size_t rows : {0, 1, 33}) {
        const auto count = rows * columns;
        auto x = numbers.floats(2 * count, 8);
        if (count > 0) x.front() = -1e6F;  // e^-x overflows
        std::vector<float> y(count), expected(count);
        for (std::size_t i = 0; i < count; ++i) {
          const auto at = i / columns * 2 * columns + i % columns;
          const double value = x[at];
          const double inner = 0.7978845608028654 * (value + 0.044715 * std::pow(value, 3));
          expected[i] = static_cast<float>(0.5 * value * (1 + std::tanh(inner)) * x[at + columns]);
        }
        kernels.gated_gelu(x.data(), rows, columns, y.data(), executor);
        check_close(way + "gated_gelu " + std::to_string(rows) + " x " + std::to_string(columns), y,
                    expected, 1e-5, 1e-5);
      }
    }
  });
}

// A row of equal numbers is normalized to beta.
void test_a_row_without_variance() {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    constexpr std::size_t kColumns = 64;  // a power of two, so that the mean is exact
    Numbers numbers;
    const std::vector<float> x(kColumns, 1024), residual(kColumns, -1000);
    const auto gamma = numbers.floats(kColumns), beta = numbers.floats(kColumns);
    const Norm norm{gamma.data(), beta.data(), 1e-5F};
    std::vector<float> y(kColumns);
    kernels.add_norm(x.data(), residual.data(), 1, kColumns, norm, nullptr, y.data(), executor);
    check_same(way + "a row without variance", y, beta);
  });
}

// All FP16 numbers, the midpoints between them, and the neighbours of the midpoints.
void test_to_half() {
  constexpr unsigned kLargest = 0x7BFF;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x;
  std::vector<std::int64_t> expected;
  for (const unsigned sign : {0U, 0x8000U}) {
    const auto add = [&](float magnitude, unsigned bits) {
      x.push_back(sign == 0 ? magnitude : -magnitude);
      expected.push_back(bits | sign);
    };
    for (unsigned bits = 0; bits < kLargest; ++bits) {
      const float value = float_of_half(static_cast<Half>(bits));
      const float middle = (value + float_of_half(static_cast<Half>(bits + 1))) / 2;
      add(value, bits);
      add(std::nextafter(middle, 0.0F), bits);
      add(middle, bits + bits % 2);  // ties to even
      add(std::nextafter(middle, infinity), bits + 1);
    }
    for (const float large : {kMaxHalf, 65519.0F, 65520.0F, 1e30F, infinity}) add(large, kLargest);
  }
  for (const auto* kernels : tables()) {
    std::vector<Half> y(x.size() + 1, 0xABCD);
    kernels->to_half(x.data(), x.size(), y.data());
    CHECK(y.back() == 0xABCD);
    y.pop_back();
    check_same("to_half", std::vector<std::int64_t>(y.begin(), y.end()), expected);
    for (const std::size_t count : {0, 1, 15, 16, 17, 31}) {
      std::vector<Half> few(count + 1, 0xABCD);
      kernels->to_half(x.data() + 1000, count, few.data());
      CHECK(few[count] == 0xABCD);
      CHECK(std::equal(few.begin(), few.end() - 1, y.begin() + 1000));
    }
  }
}

}  // namespace

void test_kernel_rows() {
  test_add_norm();
  test_recurrent_unit();
  test_gated_gelu();
  test_a_row_without_variance();
  test_to_half();
}

}  // namespace translate_trt
