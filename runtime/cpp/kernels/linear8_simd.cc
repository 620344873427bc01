// 8-bit matmul with a fused epilogue, and the residual sum with normalization.

#include <algorithm>

#include "gemm8.h"
#include "rows.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {
namespace {

// x / scale, rounded. Division is slow and seldom needed: multiplying by 1 / scale has at most two
// rounding errors, which matter only near a half.
Ints rounded_ratio(Floats x, Floats scale, Floats inverse) {
  const Floats ratio = x * inverse;
  const Floats rounded = nearest(ratio);
  // 2^-14 exceeds both rounding errors of any 8-bit ratio. NaN also takes the division.
  if (all_less(abs(ratio - rounded), broadcast(0.5F - 0x1p-14F))) return to_ints(rounded);
  return to_ints(x / scale);
}

// Quantizes a row to groups of 64 consecutive values, `next` bytes apart. least: of the values.
void quantize_row(const float* x, std::size_t columns, float scale, std::int32_t zero,
                  std::int32_t least, std::uint8_t* values, std::size_t next) {
  constexpr std::size_t kGroup = 64;
  const Floats scales = broadcast(scale), inverses = broadcast(scale == 0 ? 0 : 1 / scale);
  const Ints zeros = broadcast_int(zero), lowest = broadcast_int(least);
  for (std::size_t begin = 0; begin < columns; begin += kGroup, values += next) {
    const auto quantize = [&](std::size_t i, Lanes lanes) {
      const Floats numbers = load(x + begin + i, lanes);
      const Ints moved = add(rounded_ratio(numbers, scales, inverses), zeros);
      store_activations(reinterpret_cast<Activation8*>(values) + i, max(moved, lowest), lowest,
                        lanes);
    };
    const auto count = columns - begin;
    if (count >= kGroup) {  // without masks
      for (std::size_t i = 0; i < kGroup; i += kLanes) quantize(i, first_lanes(kLanes));
    } else {
      for (std::size_t i = 0; i < count; i += kLanes) quantize(i, first_lanes(count - i));
    }
  }
}

// Converts integer sums of a tile to results, except for the normalization.
//
// A part has a few rows of as many blocks as registers hold the constants of. Four lines of a row
// are written faster than one line of sixteen rows: those are often a power of two apart, and so
// share few sets of the CPU cache, and each is on another page.
template <bool Curved>
struct TileEpilogue {
  static constexpr std::size_t kBlocks = kSums < 16 ? 1 : kPanel;  // of a part
  static constexpr std::size_t kRows = 16 / kBlocks;

  const Linear8* linear;
  const Rows8* x;
  float* y;
  std::size_t row, height, block, last;

  std::size_t parts() const { return ceiling(height, kRows) * (kPanel / kBlocks); }

  void run(std::size_t part, const Sums& sums) const {
    constexpr auto kParts = kPanel / kBlocks;  // of the same rows
    const auto first = part % kParts * kBlocks, begin = part / kParts * kRows;
    const auto end = std::min(height, begin + kRows);
    if (block + first + kBlocks <= last) {
      write<kBlocks>(begin, end, first, sums);
    } else {
      for (auto j = first; block + j < last; ++j) write<1>(begin, end, j, sums);
    }
  }

 private:
  // Writes rows [begin, end) of blocks [first, first + Blocks) of the tile.
  template <std::size_t Blocks>
  void write(std::size_t begin, std::size_t end, std::size_t first, const Sums& sums) const {
    const auto column = (block + first) * kLanes;
    const EpilogueWriter<Blocks> writer(linear->epilogue, linear->matrix.outputs, column, y);
    Ints offsets[Blocks];
    Floats scales[Blocks];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < Blocks; ++j) {
      offsets[j] = zero_sums(*x, linear->matrix, block + first + j);
      scales[j] = load(linear->matrix.scales + column + j * kLanes);
    }
    const auto* begins = x->begins + row;
    for (auto i = begin; i < end; ++i) {
      const Floats row_scale = broadcast(x->scales[row + i]);
      Floats matmul[Blocks];
#pragma GCC unroll 4
      for (std::size_t j = 0; j < Blocks; ++j) {
        matmul[j] = to_floats(subtract(sums[i][first + j], offsets[j])) * row_scale * scales[j];
      }
      writer.template write<Curved>(begins[i], begins[i + 1], matmul);
    }
  }
};

// Multiplies and applies the epilogue, except for the normalization.
template <bool Curved>
void multiply(const Linear8& linear, const Rows8& x, float* y, Executor& executor) {
  using Epilogue = TileEpilogue<Curved>;
  const auto& matrix = linear.matrix;
  const auto& kernel = *x.kernel;
  // Consecutive tasks read the same weights.
  const auto chunks = ceiling(x.count, kernel.rows_per_task);
  const auto tasks = ceiling(matrix.blocks, kPanel) * chunks;
  for_tiles<Epilogue>(kernel, tasks, executor, [&](auto& pipeline, std::size_t task) {
    const auto block = task / chunks * kPanel, begin = task % chunks * kernel.rows_per_task;
    const auto last = std::min(matrix.blocks, block + kPanel);
    const auto end = std::min(x.count, begin + kernel.rows_per_task);
    for (auto row = begin; row < end; row += kernel.rows) {
      const auto height = std::min(kernel.rows, end - row);
      const auto prefetch = next_panel_prefetch(kernel, matrix, last, row - begin, end - begin);
      pipeline.add(x, matrix, row, height, block, last, prefetch,
                   Epilogue{&linear, &x, y, row, height, block, last});
    }
  });
}

}  // namespace

Rows8 quantize(const float* x, std::size_t rows, std::size_t inputs, bool positive,
               const GemmKernel& best, Executor& executor, Arena& arena) {
  auto* begins = allocate<std::size_t>(arena, rows + 1);
  const auto count = runs(x, rows, inputs, begins);
  const auto& kernel = kernel_for(count, best);
  const auto next = kernel.offset(0, 64, inputs);
  auto* values = allocate<std::uint8_t>(arena, activation_bytes(count, inputs));
  auto* scales = allocate<float>(arena, count);
  const float step = positive ? 1.0F / 255 : 1.0F / 127;
  const std::int32_t zero = positive ? kPositiveZero : kZeroPoint;
  const std::int32_t least = positive ? kPositiveZero : kZeroPoint - 128;
  for_rows(count, executor, [&](std::size_t row) {
    const auto* here = x + begins[row] * inputs;
    scales[row] = max_magnitude(here, inputs) * step;
    quantize_row(here, inputs, scales[row], zero, least, values + kernel.offset(row, 0, inputs),
                 next);
  });
  return {values, scales, begins, count, zero, &kernel};
}

void column_sums(const Matrix8& matrix, std::int32_t* sums) {
  for (std::size_t block = 0; block < matrix.blocks; ++block) {
    const auto* weights = matrix.weights + block * kLanes * matrix.inputs;
    store(sums + block * kLanes, column_sums_of_block(weights, matrix.inputs));
  }
}

void linear8(const GemmKernel& best, const Linear8& linear, const float* input, std::size_t rows,
             float* y, Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto x =
      quantize(input, rows, linear.matrix.inputs, linear.positive, best, executor, workspace.arena);
  with_curved(linear.epilogue, [&](auto curved) { multiply<curved>(linear, x, y, executor); });
  finish_rows(linear.epilogue, rows, linear.matrix.outputs, y, executor);
}

void add_norm(const float* x, const float* residual, std::size_t rows, std::size_t columns,
              const Norm& norm, float* sum, float* y, Executor& executor) {
  auto* sums = sum == nullptr ? y : sum;
  for_rows(rows, executor, [&](std::size_t row) {
    const auto begin = row * columns;
    for (std::size_t i = 0; i < columns && residual != nullptr; i += kLanes) {
      const auto lanes = first_lanes(columns - i);
      store(sums + begin + i, load(x + begin + i, lanes) + load(residual + begin + i, lanes),
            lanes);
    }
    normalize((residual == nullptr ? x : sums) + begin, columns, norm, y + begin);
  });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
