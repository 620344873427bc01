#include "rows.h"

#include <cmath>
#include <cstring>

namespace translate_trt::TRANSLATE_TRT_SIMD {

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
  Floats total = zeros();
  for (std::size_t i = 0; norm.beta != nullptr && i < columns; i += kLanes) {
    total = total + load(x + i, first_lanes(columns - i));
  }
  const Floats mean = broadcast(sum(total) / static_cast<float>(columns));
  Floats squares = zeros();
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const auto lanes = first_lanes(columns - i);
    const Floats off = keep(load(x + i, lanes) - mean, lanes, zeros());
    squares = multiply_add(off, off, squares);
  }
  const float variance = sum(squares) / static_cast<float>(columns);
  const Floats factor = broadcast(1.0F / std::sqrt(variance + norm.epsilon));
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const auto lanes = first_lanes(columns - i);
    const Floats scaled = (load(x + i, lanes) - mean) * factor * load(norm.gamma + i, lanes);
    store(y + i, norm.beta == nullptr ? scaled : scaled + load(norm.beta + i, lanes), lanes);
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
      const auto lanes = first_lanes(columns - i);
      const Floats kept = sigmoid(load(gate + i, lanes));
      const Floats old = kept * load(state + begin + i, lanes);
      const Floats added = (broadcast(1) - kept) * load(gate + columns + i, lanes);
      const Floats both = old + added;
      store(next + begin + i, both, lanes);
      store(y + begin + i, max(both, zeros()), lanes);
    }
  });
}

void gated_gelu(const float* x, std::size_t rows, std::size_t columns, float* y,
                Executor& executor) {
  // 1 + tanh(u) is 2 / (1 + e^-2u).
  const Floats one = broadcast(1), cubed = broadcast(0.044715F);
  const Floats scale = broadcast(1.59576912F);  // 2 sqrt(2 / pi)
  for_rows(rows, executor, [&](std::size_t row) {
    const auto* inner = x + 2 * row * columns;
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const auto lanes = first_lanes(columns - i);
      const Floats value = load(inner + i, lanes), gate = load(inner + columns + i, lanes);
      const Floats power = (value * scale) * multiply_add(cubed, value * value, one);
      store(y + row * columns + i, (value * sigmoid(power)) * gate, lanes);
    }
  });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
