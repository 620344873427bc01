// The product of rows with a matrix in panels of columns, tile by tile.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>

#include "avx512.h"
#include "kernels.h"
#include "rows_avx512.h"

namespace translate_trt::avx512 {

// Rows of an input without those that equal the one before them.
struct Rows {
  const float* values;        // [count, inputs]
  const std::size_t* begins;  // [count + 1]; row i here is rows [begins[i], begins[i + 1]) outside
  std::size_t count;
};

// Memory is the arena's, or that of x.
Rows distinct(const float* x, std::size_t rows, std::size_t inputs, Arena& arena);

constexpr std::size_t kRegisters = 4;  // of weights in a tile: a panel's columns
constexpr std::size_t kPanelColumns = kRegisters * kLanes;
constexpr std::size_t kTileRows = 6;               // 6 x 4 sums leave room for weights and a row
constexpr std::size_t kTaskRows = 22 * kTileRows;  // at most: of a task, which reads a panel once
constexpr std::size_t kDepth = 512;                // inputs at a time: 128 KiB of a panel

using Sums32 = __m512[kRegisters];  // of one row

// A tile: rows of `a`, `stride` floats apart, times `depth` rows of a panel.
struct Tile {
  const float* a;
  std::size_t stride;
  const float* weights;
  std::size_t depth;
  bool more;  // adds to the sums instead of setting them
  Sums32* sums;
  // Memory to fetch meanwhile, 64 bytes after every so many inputs.
  const char* next;
  std::size_t every;
};

// `rows` is at most kTileRows.
void multiply(std::size_t rows, const Tile& tile);

// Multiplies rows [begin, end), at most kTaskRows, with one panel, and calls use(row, height, sums)
// for each tile. An element's sum is taken in the order of the inputs, whichever tile it is in.
template <class Use>
void multiply(const Rows& x, const Matrix& matrix, std::size_t panel, std::size_t begin,
              std::size_t end, const Use& use) {
  Sums32 sums[kTaskRows];
  const auto rows = end - begin, tiles = ceiling(rows, kTileRows);
  const auto parts = ceiling(matrix.inputs, kDepth);
  for (std::size_t part = 0; part < parts; ++part) {
    const auto k = matrix.inputs * part / parts;
    const auto depth = matrix.inputs * (part + 1) / parts - k;
    const auto* weights = matrix.weights + (panel * matrix.inputs + k) * kPanelColumns;
    // Tiles share in fetching what comes next, which is what follows in memory: the processor
    // itself begins too late, at every panel. With a few tiles there is no time for that: they wait
    // for memory anyhow, and more requests only disturb it.
    const auto lines = ceiling(depth * kRegisters, tiles);
    const auto every = tiles < 3 ? depth + 1 : std::max<std::size_t>(1, depth / lines);
    const auto* next = reinterpret_cast<const char*>(weights + depth * kPanelColumns);
    for (std::size_t tile = 0; tile < tiles; ++tile, next += lines * sizeof(__m512)) {
      const auto row = rows * tile / tiles, height = rows * (tile + 1) / tiles - row;
      auto* here = parts > 1 ? sums + row : sums;
      multiply(height, {x.values + (begin + row) * matrix.inputs + k, matrix.inputs, weights, depth,
                        part > 0, here, next, every});
      if (part + 1 == parts) {
        use(begin + row, height, here);
      }
    }
  }
}

}  // namespace translate_trt::avx512
