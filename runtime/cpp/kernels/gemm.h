// FP32 GEMM by tiles, with the matrix in panels of columns.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels.h"
#include "rows.h"
#include "simd.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

// Rows of an input without consecutive duplicates.
struct Rows {
  const float* values;        // [count, inputs]
  const std::size_t* begins;  // [count + 1]; row i stands for input rows [begins[i], begins[i + 1])
  std::size_t count;
};

// Removes consecutive duplicate rows. The result uses memory of the arena or of x.
Rows distinct(const float* x, std::size_t rows, std::size_t inputs, Arena& arena);

constexpr std::size_t kRegisters = 4;  // `Floats` of weights in a tile, one panel wide
constexpr std::size_t kPanelColumns = kRegisters * kLanes;
constexpr std::size_t kTaskRows = 22 * kTileRows;  // maximum per task, which reads a panel once

using Sums32 = Floats[kRegisters];  // sums of one row

// A tile: rows of `a`, `stride` floats apart, times `depth` inputs of a panel.
struct Tile {
  const float* a;
  std::size_t stride;
  const float* weights;
  std::size_t depth;
  bool more;  // whether to add to the sums
  Sums32* sums;
  // Memory to prefetch, 64 bytes after every `every` inputs.
  const char* next;
  std::size_t every;
};

// Computes a tile of at most kTileRows rows.
void multiply(std::size_t rows, const Tile& tile);

// Multiplies rows [begin, end), at most kTaskRows, by one panel and calls use(row, height, sums)
// for each tile. Every sum is accumulated in the order of the inputs, independent of the tile.
template <class Use>
void multiply(const Rows& x, const Matrix& matrix, std::size_t panel, std::size_t begin,
              std::size_t end, const Use& use) {
  Sums32 sums[kTaskRows];
  const auto rows = end - begin, tiles = ceiling(rows, kTileRows);
  const auto parts = ceiling(matrix.inputs, kGemmDepth);
  for (std::size_t part = 0; part < parts; ++part) {
    const auto k = matrix.inputs * part / parts;
    const auto depth = matrix.inputs * (part + 1) / parts - k;
    const auto* weights = matrix.weights + (panel * matrix.inputs + k) * kPanelColumns;
    // The tiles share the prefetch of the weights that follow in memory, because the hardware
    // prefetcher starts late at every panel. Few tiles are limited by memory, and prefetching would
    // slow them down.
    const auto lines = ceiling(depth * kRegisters, tiles);
    const auto every = tiles < 3 ? depth + 1 : std::max<std::size_t>(1, depth / lines);
    const auto* next = reinterpret_cast<const char*>(weights + depth * kPanelColumns);
    for (std::size_t tile = 0; tile < tiles; ++tile, next += lines * sizeof(Floats)) {
      const auto row = rows * tile / tiles, height = rows * (tile + 1) / tiles - row;
      auto* here = parts > 1 ? sums + row : sums;
      multiply(height, {x.values + (begin + row) * matrix.inputs + k, matrix.inputs, weights, depth,
                        part > 0, here, next, every});
      if (part + 1 == parts) use(begin + row, height, here);
    }
  }
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
