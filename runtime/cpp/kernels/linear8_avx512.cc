// 8-bit matmul with a fused epilogue, and the residual sum with normalization.

#include <algorithm>

#include "gemm8_amx.h"
#include "gemm8_avx512.h"
#include "rows_avx512.h"

namespace translate_trt::avx512 {
namespace {

// x / scale, rounded. Division is slow and seldom needed: multiplying by 1 / scale has at most two
// rounding errors, which matter only near a half.
__m512i rounded_ratio(__m512 x, __m512 scale, __m512 inverse) {
  const __m512 ratio = _mm512_mul_ps(x, inverse);
  const __m512 nearest = _mm512_roundscale_ps(ratio, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 off = _mm512_abs_ps(_mm512_sub_ps(ratio, nearest));
  // 2^-14 exceeds both rounding errors of any 8-bit ratio. NaN also takes the division.
  const auto close = _mm512_cmp_ps_mask(off, _mm512_set1_ps(0.5F - 0x1p-14F), _CMP_NLT_UQ);
  if (close == 0) return _mm512_cvtps_epi32(nearest);
  return _mm512_cvtps_epi32(_mm512_div_ps(x, scale));
}

// Quantizes a row to groups of 64 consecutive values, `next` bytes apart.
void quantize_row(const float* x, std::size_t columns, float scale, std::int32_t zero,
                  std::uint8_t* values, std::size_t next) {
  const auto offset = [&](std::size_t i) { return i / 64 * next + i % 64; };
  if (scale == 0) {
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const __m128i zeros = _mm_set1_epi8(static_cast<char>(zero));
      _mm_mask_storeu_epi8(values + offset(i), first_lanes(columns - i), zeros);
    }
    return;
  }
  const __m512 scales = _mm512_set1_ps(scale), inverses = _mm512_set1_ps(1 / scale);
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const auto mask = first_lanes(columns - i);
    const __m512i ratio = rounded_ratio(_mm512_maskz_loadu_ps(mask, x + i), scales, inverses);
    __m512i rounded = _mm512_add_epi32(ratio, _mm512_set1_epi32(zero));
    rounded = _mm512_max_epi32(rounded, _mm512_setzero_si512());
    _mm512_mask_cvtusepi32_storeu_epi8(values + offset(i), mask, rounded);
  }
}

// Converts integer sums of a tile to results, except for the normalization.
void finish(const Linear8& linear, const Rows8& x, std::size_t row, std::size_t rows,
            std::size_t block, std::size_t last, const Sums& sums, float* y) {
  for (auto j = block; j < last; ++j) {
    const auto column = j * kLanes;
    const EpilogueWriter writer(linear.epilogue, linear.matrix.outputs, column, y);
    const __m512i zeros = zero_sums(x, linear.matrix, j);
    const __m512 scales = _mm512_loadu_ps(linear.matrix.scales + column);
    for (std::size_t i = 0; i < rows; ++i) {
      __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[i][j - block], zeros));
      value = _mm512_mul_ps(value, _mm512_set1_ps(x.scales[row + i]));
      writer.write(x.begins[row + i], x.begins[row + i + 1], _mm512_mul_ps(value, scales));
    }
  }
}

}  // namespace

Rows8 quantize(const float* x, std::size_t rows, std::size_t inputs, bool positive,
               const GemmKernel& best, Executor& executor, Arena& arena) {
  auto* begins = allocate<std::size_t>(arena, rows + 1);
  const auto count = runs(x, rows, inputs, begins);
  const auto& kernel = kernel_for(count, best);
  const auto next = kernel.offset(0, 64, inputs);
  auto* values = allocate<std::uint8_t>(arena, amx::readable_bytes(count, inputs));
  auto* scales = allocate<float>(arena, count);
  const float step = positive ? 1.0F / 255 : 1.0F / 127;
  const std::int32_t zero = positive ? 0 : 128;
  for_rows(count, executor, [&](std::size_t row) {
    const auto* here = x + begins[row] * inputs;
    scales[row] = max_magnitude(here, inputs) * step;
    quantize_row(here, inputs, scales[row], zero, values + kernel.offset(row, 0, inputs), next);
  });
  return {values, scales, begins, count, zero, &kernel};
}

void column_sums(const Matrix8& matrix, std::int32_t* sums) {
  const __m512i ones = _mm512_set1_epi8(1);
  const auto* w = matrix.weights;
  for (std::size_t block = 0; block < matrix.blocks; ++block) {
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t k = 0; k < matrix.inputs; k += 4, w += 64) {
      sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(w));
    }
    _mm512_storeu_si512(sums + block * kLanes, sum);
  }
}

void linear8(const GemmKernel& best, const Linear8& linear, const float* input, std::size_t rows,
             float* y, Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto& matrix = linear.matrix;
  const auto outputs = matrix.outputs;
  const auto x =
      quantize(input, rows, matrix.inputs, linear.positive, best, executor, workspace.arena);
  const auto& kernel = *x.kernel;
  // Consecutive tasks read the same weights.
  const auto chunks = ceiling(x.count, kernel.rows_per_task);
  parallel_for(executor, ceiling(matrix.blocks, kPanel) * chunks, [&](std::size_t task) {
    const TileScope scope(kernel);
    const auto block = task / chunks * kPanel, begin = task % chunks * kernel.rows_per_task;
    const auto last = std::min(matrix.blocks, block + kPanel);
    const auto end = std::min(x.count, begin + kernel.rows_per_task);
    for (auto row = begin; row < end; row += kernel.rows) {
      const auto height = std::min(kernel.rows, end - row);
      Sums sums;
      const auto prefetch = next_panel_prefetch(kernel, matrix, last, row - begin, end - begin);
      kernel.tile(x, matrix, row, height, block, last, prefetch, sums);
      finish(linear, x, row, height, block, last, sums, y);
    }
  });
  finish_rows(linear.epilogue, rows, outputs, y, executor);
}

void add_norm(const float* x, const float* residual, std::size_t rows, std::size_t columns,
              const Norm& norm, float* y, Executor& executor) {
  for_rows(rows, executor, [&](std::size_t row) {
    const auto begin = row * columns;
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const auto mask = first_lanes(columns - i);
      const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + begin + i),
                                       _mm512_maskz_loadu_ps(mask, residual + begin + i));
      _mm512_mask_storeu_ps(y + begin + i, mask, sum);
    }
    normalize(y + begin, columns, norm, y + begin);
  });
}

}  // namespace translate_trt::avx512
