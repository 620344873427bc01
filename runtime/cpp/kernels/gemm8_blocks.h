// GEMM tiles, block by block: up to 6 x 16 columns. For NEON and WebAssembly, where the prefetchers
// follow the weights.
#pragma once

#include "gemm8.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

// GemmKernel::tile.
//
// Block::multiply<Rows>(a, stride, w, out) computes the sums of `Rows` rows, `stride` bytes apart,
// and one block of weights. Block::kBytes: of a row for 64 bytes of weights.
template <class Block>
void multiply_tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
                   std::size_t block, std::size_t last, const Background&, Sums& sums) {
  const auto steps = matrix.inputs / 4, stride = steps * Block::kBytes;
  const auto* w = matrix.weights + block * steps * 64;
  with_height(height, [&](auto rows) {
    for (auto j = block; j < last; ++j, w += steps * 64) {
      auto* out = reinterpret_cast<Ints(*)[kPanel]>(&sums[0][j - block]);
      Block::template multiply<rows.kRows>(x.values + row * stride, stride, w, out);
    }
  });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
