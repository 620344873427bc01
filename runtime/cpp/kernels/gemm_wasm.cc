// Tiles of FP32 GEMM with WebAssembly: 6 x 8 columns in 12 of 16 registers, one eighth of a panel
// after another.

#include "gemm.h"

namespace translate_trt::wasm {
namespace {

constexpr int kWidth = 2;  // registers of columns at a time

// Computes parts [part, part + kWidth) of a tile of 16 columns; `sums` are those of the first row.
template <int Rows>
__attribute__((noinline)) void compute(const Tile& tile, std::size_t column, int part) {
  const auto* a = tile.a;
  const auto* w = tile.weights + column * kLanes + 4 * part;
  Float4 sums[Rows][kWidth];
#pragma clang loop unroll(full)
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < kWidth; ++j) {
      sums[i][j] = tile.more ? tile.sums[i][column].part[part + j] : splat4(0.0F);
    }
  }
  for (std::size_t k = 0; k < tile.depth; ++k, w += kPanelColumns) {
    const Float4 first = load4(w), second = load4(w + 4);
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) {
      const auto value = (Float4)wasm_v128_load32_splat(a + i * tile.stride + k);
      sums[i][0] += first * value;
      sums[i][1] += second * value;
    }
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < kWidth; ++j) tile.sums[i][column].part[part + j] = sums[i][j];
  }
}

}  // namespace

void multiply(std::size_t rows, const Tile& tile) {
  with_height(rows, [&](auto height) {
    for (std::size_t column = 0; column < kRegisters; ++column) {
      for (int part = 0; part < kParts; part += kWidth) compute<height.kRows>(tile, column, part);
    }
  });
}

}  // namespace translate_trt::wasm
