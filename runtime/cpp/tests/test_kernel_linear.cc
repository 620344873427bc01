// Matmuls with fused epilogues, in FP32 and in 8 bits.

#include <algorithm>
#include <cmath>
#include <limits>

#include "../kernels/plain.h"
#include "kernel_check.h"

namespace translate_trt {
namespace {

struct Size {
  std::size_t rows, inputs, outputs;

  std::string text() const {
    return std::to_string(rows) + " x " + std::to_string(inputs) + " x " + std::to_string(outputs);
  }
};

// An epilogue of a matmul.
struct Follows {
  Activation activation;
  bool residual, norm, both;  // both: outputs the sum and its normalization
};

constexpr Follows kFollows[] = {
    {Activation::none, false, false, false}, {Activation::relu, false, false, false},
    {Activation::gelu, false, false, false}, {Activation::swish, false, false, false},
    {Activation::none, true, false, false},  {Activation::none, true, true, false},
    {Activation::none, true, true, true},
};

// Arrays of an epilogue and its outputs.
class Case {
 public:
  Case(const Size& size, const Follows& follows, Numbers& numbers)
      : follows_(follows),
        outputs_(size.outputs),
        bias_(numbers.floats(size.outputs)),
        gamma_(numbers.floats(size.outputs)),
        beta_(numbers.floats(size.outputs)),
        residual_(numbers.floats(size.rows * size.outputs)),
        norm_{gamma_.data(), beta_.data(), 1e-5F},
        y(size.rows * size.outputs, kUntouched),
        normalized_(y) {}

  Epilogue epilogue() {
    return {bias_.data(), follows_.activation, follows_.residual ? residual_.data() : nullptr,
            follows_.norm ? &norm_ : nullptr, follows_.both ? normalized_.data() : nullptr};
  }

  // Checks the outputs against matmul results with the reference epilogue.
  void check(const std::string& what, const std::vector<float>& matmul_results) {
    const auto sums = with_epilogue(matmul_results, epilogue(), outputs_);
    const bool exact =
        follows_.activation == Activation::none || follows_.activation == Activation::relu;
    if (!follows_.norm || follows_.both) {
      exact ? check_same(what, y, sums) : check_close(what, y, sums, 4e-6, 1e-7);
    }
    if (follows_.norm) {
      check_close(what + ", norm", follows_.both ? normalized_ : y,
                  normalized(sums, norm_, outputs_), 1e-4, 1e-4);
    }
  }

 private:
  static constexpr float kUntouched = 12345;

  const Follows follows_;
  const std::size_t outputs_;
  const std::vector<float> bias_, gamma_, beta_, residual_;
  const Norm norm_;

 public:
  std::vector<float> y;

 private:
  std::vector<float> normalized_;
};

// ---- fp32 ----

// Packs weights [inputs, outputs] into the panels of kernels.h.
std::vector<float> in_panels(const std::vector<float>& weights, const Size& size) {
  std::vector<float> laid_out(ceiling(size.outputs, 64) * size.inputs * 64);
  for (std::size_t i = 0; i < size.inputs; ++i) {
    for (std::size_t o = 0; o < size.outputs; ++o) {
      laid_out[(o / 64 * size.inputs + i) * 64 + o % 64] = weights[i * size.outputs + o];
    }
  }
  return laid_out;
}

// Reference matmul in the order of the inputs, with fused multiply-add if the kernels have it.
std::vector<float> matmul(const std::vector<float>& x, const std::vector<float>& weights,
                          const Size& size, const Kernels& kernels) {
  const bool fused = std::string(kernels.name) != "wasm_simd128";
  std::vector<float> y(size.rows * size.outputs);
  for (std::size_t row = 0; row < size.rows; ++row) {
    for (std::size_t o = 0; o < size.outputs; ++o) {
      float sum = 0;
      for (std::size_t i = 0; i < size.inputs; ++i) {
        const float a = x[row * size.inputs + i], b = weights[i * size.outputs + o];
        sum = fused ? fused_multiply_add(a, b, sum) : a * b + sum;
      }
      y[row * size.outputs + o] = sum;
    }
  }
  return y;
}

// Makes some rows equal to their predecessors.
void repeat_rows(std::vector<float>& x, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 1; row < rows; ++row) {
    if (row % 5 == 2 || row % 5 == 3) {
      std::copy_n(x.data() + (row - 1) * columns, columns, x.data() + row * columns);
    }
  }
}

void test_linear() {
  constexpr Size kSizes[] = {{0, 8, 8},    {1, 1, 1},    {1, 513, 65},  {2, 3, 64},   {5, 17, 63},
                             {6, 64, 128}, {7, 65, 130}, {12, 40, 1},   {13, 31, 17}, {68, 12, 70},
                             {133, 7, 66}, {3, 1100, 5}, {20, 1030, 16}};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    std::size_t number = 0;
    for (const auto& size : kSizes) {
      for (const bool repeated : {false, true}) {
        const auto weights = numbers.floats(size.inputs * size.outputs);
        const auto laid_out = in_panels(weights, size);
        auto x = numbers.floats(size.rows * size.inputs);
        if (repeated) repeat_rows(x, size.rows, size.inputs);
        Case one(size, kFollows[number++ % std::size(kFollows)], numbers);
        const Linear linear{{laid_out.data(), size.inputs, size.outputs, ceiling(size.outputs, 64)},
                            one.epilogue()};
        kernels.linear(linear, x.data(), size.rows, one.y.data(), executor);
        one.check(way + "linear " + size.text(), matmul(x, weights, size, kernels));
      }
    }
  });
}

// ---- 8 bits ----

// A packed 8-bit matrix.
class Weights {
 public:
  // fit: whether pairs of weights fit (Matrix8::pairs_fit).
  Weights(const Size& size, const Kernels& kernels, Numbers& numbers, bool fit = false)
      : size_(size),
        blocks_(ceiling(size.outputs, 16)),
        plain_(size.inputs * size.outputs),
        scales_(numbers.floats(blocks_ * 16)),
        laid_out_(fit ? numbers.pairs_that_fit(blocks_ * 16 * size.inputs)
                      : numbers.bytes(blocks_ * 16 * size.inputs)),
        sums_(blocks_ * 16) {
    for (std::size_t i = 0; i < size.inputs; ++i) {
      const bool is_second = fit && i % 2 == 1;
      for (std::size_t o = 0; o < blocks_ * 16; ++o) {
        auto& one = laid_out_[(o / 16 * (size.inputs / 4) + i / 4) * 64 + o % 16 * 4 + i % 4];
        // Extreme weights, for the largest sums.
        if (o == 0) one = is_second ? 0 : -128;
        if (o + 1 == size.outputs) one = is_second ? 1 : 127;
        if (o >= size.outputs) one = 0;
        if (o < size.outputs) plain_[i * size.outputs + o] = one;
      }
    }
    kernels.column_sums(matrix(), sums_.data());
    if (kernels.pairs_fit != nullptr) {
      pairs_fit_ = kernels.pairs_fit(matrix());
      CHECK(pairs_fit_ == fit);
    }
    for (std::size_t o = 0; o < blocks_ * 16; ++o) {
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < size.inputs && o < size.outputs; ++i) {
        sum += plain_[i * size.outputs + o];
      }
      CHECK(sums_[o] == sum);
    }
  }

  Matrix8 matrix() const {
    return {laid_out_.data(), scales_.data(), sums_.data(), size_.inputs,
            size_.outputs,    blocks_,        pairs_fit_};
  }

  std::vector<float> matmul(const std::vector<float>& x, bool positive) const {
    std::vector<float> y(size_.rows * size_.outputs);
    for (std::size_t row = 0; row < size_.rows; ++row) {
      const Row8 one = in_8_bits(x.data() + row * size_.inputs, size_.inputs, positive);
      for (std::size_t o = 0; o < size_.outputs; ++o) {
        std::int32_t sum = 0;
        for (std::size_t i = 0; i < size_.inputs; ++i) {
          sum += one.integers[i] * plain_[i * size_.outputs + o];
        }
        y[row * size_.outputs + o] = static_cast<float>(sum) * one.scale * scales_[o];
      }
    }
    return y;
  }

 private:
  const Size size_;
  const std::size_t blocks_;
  std::vector<std::int8_t> plain_;
  const std::vector<float> scales_;
  std::vector<std::int8_t> laid_out_;
  std::vector<std::int32_t> sums_;
  bool pairs_fit_ = false;
};

constexpr Size kSizes8[] = {{0, 8, 8},     {1, 4, 1},     {1, 64, 64},   {2, 68, 17},
                            {5, 36, 15},   {6, 132, 16},  {7, 200, 79},  {16, 64, 65},
                            {17, 60, 33},  {33, 68, 130}, {67, 164, 48}, {130, 12, 70},
                            {20, 1024, 5}, {11, 24, 31}};

void test_linear8() {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    std::size_t number = 0;
    for (const auto& size : kSizes8) {
      for (const auto& [positive, fit] :
           {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        const Weights weights(size, kernels, numbers, fit);
        auto x = numbers.floats(size.rows * size.inputs);
        repeat_rows(x, size.rows, size.inputs);
        if (positive) {
          for (auto& one : x) one = std::abs(one);
        }
        Case one(size, kFollows[number++ % std::size(kFollows)], numbers);
        const Linear8 linear{weights.matrix(), positive, one.epilogue()};
        kernels.linear8(linear, x.data(), size.rows, one.y.data(), executor);
        one.check(way + "linear8 " + size.text(), weights.matmul(x, positive));
      }
    }
  });
}

// Rows of zeros, of largest and of smallest numbers.
void test_extreme_rows() {
  const Size size{20, 36, 19};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    const Weights weights(size, kernels, numbers);
    auto x = numbers.floats(size.rows * size.inputs);
    const float factors[] = {0, 1e-45F, 1e-41F, 1e-39F, 1e-37F, 1e-20F, 1, 1e20F, 1e34F};
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= factors[i / size.inputs % std::size(factors)];
    }
    Case one(size, kFollows[0], numbers);
    const Linear8 linear{weights.matrix(), false, one.epilogue()};
    kernels.linear8(linear, x.data(), size.rows, one.y.data(), executor);
    one.check(way + "extreme rows", weights.matmul(x, false));
  });
}

// Activations next to the midpoint of two steps, which only a division rounds correctly.
void test_ratios_near_a_half() {
  const Size size{50, 256, 3};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    const Weights weights(size, kernels, numbers);
    const auto largest = numbers.floats(size.rows);
    std::vector<float> x(size.rows * size.inputs);
    for (std::size_t row = 0; row < size.rows; ++row) {
      auto* here = x.data() + row * size.inputs;
      here[0] = largest[row];
      const float scale = std::abs(largest[row]) * (1.0F / 127);
      for (std::size_t i = 1; i < size.inputs; ++i) {
        const auto middle = (static_cast<float>(i / 3) + 0.5F) * scale;
        here[i] = i % 3 == 0   ? middle
                  : i % 3 == 1 ? std::nextafter(middle, 0.0F)
                               : std::nextafter(middle, INFINITY);
      }
    }
    Case one(size, kFollows[0], numbers);
    const Linear8 linear{weights.matrix(), false, one.epilogue()};
    kernels.linear8(linear, x.data(), size.rows, one.y.data(), executor);
    one.check(way + "ratios near a half", weights.matmul(x, false));
  });
}

// A row of NaN must not change other rows.
void test_rows_that_are_no_numbers() {
  const Size size{19, 68, 70};
  constexpr std::size_t kBad = 7;
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    const Weights weights(size, kernels, numbers);
    const auto plain = in_panels(numbers.floats(size.inputs * size.outputs), size);
    auto x = numbers.floats(size.rows * size.inputs);
    Case one(size, kFollows[5], numbers);
    const Linear8 linear8{weights.matrix(), false, one.epilogue()};
    const Linear linear{{plain.data(), size.inputs, size.outputs, 2}, one.epilogue()};
    std::vector<std::vector<float>> good, bad;
    for (auto* found : {&good, &bad}) {
      kernels.linear8(linear8, x.data(), size.rows, one.y.data(), executor);
      found->push_back(one.y);
      kernels.linear(linear, x.data(), size.rows, one.y.data(), executor);
      found->push_back(one.y);
      std::fill_n(x.data() + kBad * size.inputs, size.inputs,
                  std::numeric_limits<float>::quiet_NaN());
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
      const auto row = bad[i].begin() + kBad * size.outputs;
      std::copy_n(good[i].begin() + kBad * size.outputs, size.outputs, row);
      check_same(way + "beside a row that is no number", bad[i], good[i]);
    }
  });
}

// One NaN must not become ordinary numbers.
void test_one_element_that_is_no_number() {
  const Size size{3, 68, 70};
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string&) {
    Numbers numbers;
    const Weights weights(size, kernels, numbers);
    const auto plain = in_panels(numbers.floats(size.inputs * size.outputs), size);
    for (const std::size_t column : {0, 1, 33, 67}) {
      auto x = numbers.floats(size.rows * size.inputs);
      x[size.inputs + column] = std::numeric_limits<float>::quiet_NaN();
      Case one(size, kFollows[0], numbers);
      const auto check_row = [&] {
        for (std::size_t i = 0; i < one.y.size(); ++i) {
          CHECK(std::isnan(one.y[i]) == (i / size.outputs == 1));
        }
      };
      kernels.linear8({weights.matrix(), false, one.epilogue()}, x.data(), size.rows, one.y.data(),
                      executor);
      check_row();
      kernels.linear({{plain.data(), size.inputs, size.outputs, 2}, one.epilogue()}, x.data(),
                     size.rows, one.y.data(), executor);
      check_row();
    }
  });
}

}  // namespace

void test_kernel_linear() {
  test_linear();
  test_linear8();
  test_extreme_rows();
  test_ratios_near_a_half();
  test_rows_that_are_no_numbers();
  test_one_element_that_is_no_number();
}

}  // namespace translate_trt
