#include "rows_avx512.h"

#include <cmath>
#include <cstring>

namespace translate_trt::avx512 {

std::size_t runs(const float* x, std::size_t rows, std::size_t columns, std::size_t* begins) {
  std::size_t count = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto* here = x + row * columns;
    if (row == 0 || std::memcmp(here - columns, here, columns * sizeof(float)) != 0) {
      begins[count++] = row;
    }
  }
  begins[count] = rows;
  return count;
}

void normalize(const float* x, std::size_t columns, const Norm& norm, float* y) {
  __m512 sum = _mm512_setzero_ps();
  for (std::size_t i = 0; i < columns; i += kLanes) {
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(first_lanes(columns - i), x + i));
  }
  const float mean = _mm512_reduce_add_ps(sum) / static_cast<float>(columns);
  const __m512 center = _mm512_set1_ps(mean);
  __m512 squares = _mm512_setzero_ps();
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const auto mask = first_lanes(columns - i);
    const __m512 off = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, x + i), center);
    squares = _mm512_fmadd_ps(off, off, squares);
  }
  const float variance = _mm512_reduce_add_ps(squares) / static_cast<float>(columns);
  const __m512 factor = _mm512_set1_ps(1.0F / std::sqrt(variance + norm.epsilon));
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const auto mask = first_lanes(columns - i);
    __m512 value = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), center);
    value =
        _mm512_mul_ps(_mm512_mul_ps(value, factor), _mm512_maskz_loadu_ps(mask, norm.gamma + i));
    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, norm.beta + i));
    _mm512_mask_storeu_ps(y + i, mask, value);
  }
}

void finish_rows(const Epilogue& epilogue, std::size_t rows, std::size_t columns, float* y,
                 Executor& executor) {
  if (epilogue.norm == nullptr) return;
  auto* normalized = epilogue.normalized == nullptr ? y : epilogue.normalized;
  for_rows(rows, executor, [&](std::size_t row) {
    const auto begin = row * columns;
    normalize(y + begin, columns, *epilogue.norm, normalized + begin);
  });
}

void recurrent_unit(const float* gates, const float* state, std::size_t rows, std::size_t columns,
                    float* next, float* y, Executor& executor) {
  for_rows(rows, executor, [&](std::size_t row) {
    const auto* gate = gates + 2 * row * columns;
    const auto begin = row * columns;
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const auto mask = first_lanes(columns - i);
      const __m512 kept = sigmoid(_mm512_maskz_loadu_ps(mask, gate + i));
      const __m512 old = _mm512_mul_ps(kept, _mm512_maskz_loadu_ps(mask, state + begin + i));
      const __m512 rest = _mm512_sub_ps(_mm512_set1_ps(1), kept);
      const __m512 x = _mm512_maskz_loadu_ps(mask, gate + columns + i);
      const __m512 sum = _mm512_add_ps(old, _mm512_mul_ps(rest, x));
      _mm512_mask_storeu_ps(next + begin + i, mask, sum);
      _mm512_mask_storeu_ps(y + begin + i, mask, _mm512_max_ps(sum, _mm512_setzero_ps()));
    }
  });
}

}  // namespace translate_trt::avx512
