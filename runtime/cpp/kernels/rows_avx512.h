// What products of every precision do with rows: before the product and after it.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "avx512.h"
#include "kernels.h"

namespace translate_trt::avx512 {

inline std::size_t ceiling(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Where runs of equal rows begin, and the end, in begins[rows + 1]; returns how many runs there
// are.
std::size_t runs(const float* x, std::size_t rows, std::size_t columns, std::size_t* begins);

// One row, in place if y is x. Mean and variance as the paper's section 5.4 has them from Ba et al.
// (2016).
void normalize(const float* x, std::size_t columns, const Norm& norm, float* y);

// Calls task(row) for every row, some rows at a time.
template <class Task>
void for_rows(std::size_t rows, Executor& executor, const Task& task) {
  constexpr std::size_t kRowsOfTask = 16;
  parallel_for(executor, ceiling(rows, kRowsOfTask), [&](std::size_t part) {
    const auto end = std::min(rows, (part + 1) * kRowsOfTask);
    for (auto row = part * kRowsOfTask; row < end; ++row) {
      task(row);
    }
  });
}

// What follows a product when its rows are complete: the normalization, if there is one.
void finish_rows(const Epilogue& epilogue, std::size_t rows, std::size_t columns, float* y,
                 Executor& executor);

// 16 columns of a product's result, or those of them that are within it.
class EpilogueWriter {
 public:
  EpilogueWriter(const Epilogue& epilogue, std::size_t outputs, std::size_t column, float* y)
      : residual_(epilogue.residual),
        y_(y),
        outputs_(outputs),
        column_(column),
        mask_(first_lanes(outputs - column)),
        bias_(_mm512_maskz_loadu_ps(mask_, epilogue.bias + column)),
        activation_(epilogue.activation),
        least_(_mm512_set1_ps(activation_ == Activation::relu ? 0 : -INFINITY)) {}

  // Products of rows [begin, end), which are equal, with all that follows but the normalization.
  void write(std::size_t begin, std::size_t end, __m512 product) const {
    __m512 value = _mm512_max_ps(_mm512_add_ps(product, bias_), least_);
    if (activation_ == Activation::swish) {
      value = swish(value);
    } else if (activation_ == Activation::gelu) {
      value = gelu(value);
    }
    for (auto row = begin; row < end; ++row) {
      const auto at = row * outputs_ + column_;
      const __m512 residual =
          residual_ == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask_, residual_ + at);
      _mm512_mask_storeu_ps(y_ + at, mask_, _mm512_add_ps(value, residual));
    }
  }

 private:
  const float* const residual_;
  float* const y_;
  const std::size_t outputs_, column_;
  const __mmask16 mask_;
  const __m512 bias_;
  const Activation activation_;
  const __m512 least_;  // whatever is smaller becomes that
};

}  // namespace translate_trt::avx512
