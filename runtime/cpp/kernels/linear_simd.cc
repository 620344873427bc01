// FP32 matmul with a fused epilogue.

#include <cstring>

#include "gemm.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

Rows distinct(const float* x, std::size_t rows, std::size_t inputs, Arena& arena) {
  auto* begins = allocate<std::size_t>(arena, rows + 1);
  const auto count = runs(x, rows, inputs, begins);
  if (count == rows) return {x, begins, count};
  auto* values = allocate<float>(arena, count * inputs);
  for (std::size_t row = 0; row < count; ++row) {
    std::memcpy(values + row * inputs, x + begins[row] * inputs, inputs * sizeof(float));
  }
  return {values, begins, count};
}

void linear(const Linear& linear, const float* input, std::size_t rows, float* y,
            Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto& matrix = linear.matrix;
  const auto outputs = matrix.outputs;
  const auto x = distinct(input, rows, matrix.inputs, workspace.arena);
  // Narrow matrices have few panels, so tasks are smaller. Consecutive tasks read the same weights.
  const auto rows_per_task = matrix.panels < 16 ? kTaskRows / 2 : kTaskRows;
  const auto chunks = ceiling(x.count, rows_per_task);
  parallel_for(executor, matrix.panels * chunks, [&](std::size_t task) {
    const auto panel = task / chunks, begin = task % chunks * rows_per_task;
    const auto end = std::min(x.count, begin + rows_per_task);
    const auto column = panel * kPanelColumns;
    const auto registers = std::min(kRegisters, ceiling(outputs - column, kLanes));
    multiply(
        x, matrix, panel, begin, end, [&](std::size_t row, std::size_t height, const Sums32* sums) {
          for (std::size_t j = 0; j < registers; ++j) {
            const EpilogueWriter<1> writer(linear.epilogue, outputs, column + j * kLanes, y);
            for (std::size_t i = 0; i < height; ++i) {
              with_curved(linear.epilogue, [&](auto curved) {
                const Floats matmul[] = {sums[i][j]};
                writer.template write<curved>(x.begins[row + i], x.begins[row + i + 1], matmul);
              });
            }
          }
        });
  });
  finish_rows(linear.epilogue, rows, outputs, y, executor);
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
