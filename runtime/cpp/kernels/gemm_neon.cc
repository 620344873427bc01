// Tiles of FP32 GEMM with NEON: 6 x 16 columns in 24 registers of sums, one quarter of a panel
// after another.

#include "gemm.h"

namespace translate_trt::neon {
namespace {

// Computes a tile of 16 columns; `sums` are those of the first row. The sums stay in registers only
// if the loops over them are unrolled.
template <int Rows>
__attribute__((noinline)) void compute(const Tile& tile, std::size_t column) {
  const auto* a = tile.a;
  const auto* w = tile.weights + column * kLanes;
  Floats sums[Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sums[i] = tile.more ? tile.sums[i][column] : zeros();
  for (std::size_t k = 0; k < tile.depth; ++k, w += kPanelColumns) {
    const Floats weights = load(w);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      sums[i] = multiply_add(weights, broadcast(a[i * tile.stride + k]), sums[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) tile.sums[i][column] = sums[i];
}

}  // namespace

void multiply(std::size_t rows, const Tile& tile) {
  with_height(rows, [&](auto height) {
    for (std::size_t column = 0; column < kRegisters; ++column) {
      compute<height.kRows>(tile, column);
    }
  });
}

}  // namespace translate_trt::neon
