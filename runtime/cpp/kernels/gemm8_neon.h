// GEMM tiles of NEON, block by block: 6 x 16 columns in 24 registers of sums.
#pragma once

#include "gemm8.h"

namespace translate_trt::neon {

// GemmKernel::tile. The prefetchers of these processors follow the weights.
//
// Block::multiply<Rows>(a, stride, w, out) computes the sums of `Rows` rows, `stride` bytes apart,
// and one block of weights.
template <class Block>
void multiply_tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
                   std::size_t block, std::size_t last, const Prefetch&, Sums& sums) {
  const auto stride = matrix.inputs;
  const auto* w = matrix.weights + block * stride * kLanes;
  with_height(height, [&](auto rows) {
    for (auto j = block; j < last; ++j, w += stride * kLanes) {
      auto* out = reinterpret_cast<Ints(*)[kPanel]>(&sums[0][j - block]);
      Block::template multiply<rows.kRows>(x.values + row * stride, stride, w, out);
    }
  });
}

}  // namespace translate_trt::neon
