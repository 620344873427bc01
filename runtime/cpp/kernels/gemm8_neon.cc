// Tiles of 8-bit and 16-bit GEMM with NEON: 6 x 16 columns in 24 registers of sums. SDOT multiplies
// four bytes of a row by those of four columns.

#include "gemm8.h"

namespace translate_trt::neon {
namespace {

// Weights in 8 bits: a step has 16 columns and four inputs.
struct Bytes {
  template <int Rows>
  static void add(Ints (&sums)[Rows], const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    const auto weights = in_parts<ByteProducts::Bytes>([=](int j) { return vld1q_s8(w + 16 * j); });
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const auto* four = reinterpret_cast<const std::int32_t*>(a + i * stride);
      const int8x16_t values = vreinterpretq_s8_s32(vld1q_dup_s32(four));
      sums[i] = ints([&](int j) { return vdotq_s32(sums[i].part[j], weights.part[j], values); });
    }
  }
};

// Weights in 16 bits: a step has 16 columns and two inputs.
struct Words {
  template <int Rows>
  static void add(Ints (&sums)[Rows], const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    const auto* words = reinterpret_cast<const std::int16_t*>(w);
    const int16x8x2_t low = vld2q_s16(words), high = vld2q_s16(words + 16);  // first and second
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      std::int16_t two[2];
      std::memcpy(two, a + i * stride, sizeof two);
      auto& part = sums[i].part;
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        part[0] = vmlal_n_s16(part[0], vget_low_s16(low.val[k]), two[k]);
        part[1] = vmlal_high_n_s16(part[1], low.val[k], two[k]);
        part[2] = vmlal_n_s16(part[2], vget_low_s16(high.val[k]), two[k]);
        part[3] = vmlal_high_n_s16(part[3], high.val[k], two[k]);
      }
    }
  }
};

// Computes the sums of `Rows` rows, `stride` bytes apart, and one block of weights, 64 bytes a
// step.
template <class Numbers, int Rows>
__attribute__((noinline)) void multiply_block(const std::uint8_t* a, std::size_t stride,
                                              const std::int8_t* w, Ints (*out)[kPanel]) {
  Ints sums[Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) sums[i] = zero_ints();
  for (std::size_t k = 0; k < stride; k += 4, w += 64) {
    Numbers::template add<Rows>(sums, a + k, stride, w);
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) out[i][0] = sums[i];
}

// GemmKernel::tile. The prefetchers of these processors follow the weights.
template <class Numbers>
void multiply_tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
                   std::size_t block, std::size_t last, const Prefetch&, Sums& sums) {
  const auto stride = matrix.inputs;
  const auto* w = matrix.weights + block * stride * kLanes;
  with_height(height, [&](auto rows) {
    for (auto j = block; j < last; ++j, w += stride * kLanes) {
      auto* out = reinterpret_cast<Ints(*)[kPanel]>(&sums[0][j - block]);
      multiply_block<Numbers, rows.kRows>(x.values + row * stride, stride, w, out);
    }
  });
}

}  // namespace

const GemmKernel kGemm8 = gemm_kernel(multiply_tile<Bytes>);
const GemmKernel kGemm16 = gemm_kernel(multiply_tile<Words>);

}  // namespace translate_trt::neon
