// 8-bit and 16-bit GEMM with NEON. SDOT multiplies four bytes of a row by those of four columns.

#include "gemm8_blocks.h"

namespace translate_trt::neon {
namespace {

// The sums of a tile, in registers only as long as no closure captures them.
template <int Rows>
using BlockSums = int32x4_t[Rows][kParts];

// Computes the sums of one block of weights; Numbers::add adds the terms of all inputs.
template <class Numbers>
struct Block {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  __attribute__((noinline)) static void multiply(const std::uint8_t* a, std::size_t stride,
                                                 const std::int8_t* w, Ints (*out)[kPanel]) {
    BlockSums<Rows> sums;
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kParts; ++j) sums[i][j] = vdupq_n_s32(0);
    }
    Numbers::add(sums, a, stride, w);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kParts; ++j) out[i][0].part[j] = sums[i][j];
    }
  }
};

// Weights in 8 bits.
struct Bytes {
  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    std::size_t k = 0;
    int8x16_t rows[Rows];
    for (; k + 16 <= stride; k += 16) {
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        rows[i] = vld1q_s8(reinterpret_cast<const std::int8_t*>(a + i * stride + k));
      }
      add_four<0>(sums, rows, w);
      add_four<1>(sums, rows, w);
      add_four<2>(sums, rows, w);
      add_four<3>(sums, rows, w);
    }
    for (; k < stride; k += 4) {
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        const auto* four = reinterpret_cast<const std::int32_t*>(a + i * stride + k);
        rows[i] = vreinterpretq_s8_s32(vld1q_dup_s32(four));
      }
      add_four<0>(sums, rows, w);
    }
  }

 private:
  // Adds the terms of four inputs, number `Group` in a register of rows, and moves w to the next
  // four. Inline assembly, because GCC 12 reorders the intrinsics and spills the sums.
  template <int Group, int Rows>
  static void add_four(BlockSums<Rows>& sums, const int8x16_t (&rows)[Rows],
                       const std::int8_t*& w) {
#pragma GCC unroll 2
    for (int j = 0; j < kParts; j += 2) {
      int8x16_t left, right;
      asm volatile("ldp %q[left], %q[right], [%[w]], #32"
                   : [left] "=w"(left), [right] "=w"(right), [w] "+r"(w)
                   :
                   : "memory");
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        asm volatile(
            "sdot %[first].4s, %[left].16b, %[row].4b[%c[group]]\n\t"
            "sdot %[second].4s, %[right].16b, %[row].4b[%c[group]]"
            : [first] "+w"(sums[i][j]), [second] "+w"(sums[i][j + 1])
            : [left] "w"(left), [right] "w"(right), [row] "w"(rows[i]), [group] "i"(Group));
      }
    }
  }
};

// Weights in 16 bits: a step has 16 columns and two inputs.
struct Words {
  template <int Rows>
  static void add(BlockSums<Rows>& sums, const std::uint8_t* a, std::size_t stride,
                  const std::int8_t* w) {
    for (std::size_t k = 0; k < stride; k += 4, w += 64) {
      const auto* words = reinterpret_cast<const std::int16_t*>(w);
      const int16x8x2_t low = vld2q_s16(words), high = vld2q_s16(words + 16);  // first and second
#pragma GCC unroll 8
      for (int i = 0; i < Rows; ++i) {
        const auto* two = reinterpret_cast<const std::int32_t*>(a + i * stride + k);
        const int16x4_t row = vreinterpret_s16_s32(vld1_dup_s32(two));
        auto& part = sums[i];
        part[0] = vmlal_lane_s16(part[0], vget_low_s16(low.val[0]), row, 0);
        part[1] = vmlal_high_lane_s16(part[1], low.val[0], row, 0);
        part[2] = vmlal_lane_s16(part[2], vget_low_s16(high.val[0]), row, 0);
        part[3] = vmlal_high_lane_s16(part[3], high.val[0], row, 0);
        part[0] = vmlal_lane_s16(part[0], vget_low_s16(low.val[1]), row, 1);
        part[1] = vmlal_high_lane_s16(part[1], low.val[1], row, 1);
        part[2] = vmlal_lane_s16(part[2], vget_low_s16(high.val[1]), row, 1);
        part[3] = vmlal_high_lane_s16(part[3], high.val[1], row, 1);
      }
    }
  }
};

}  // namespace

const GemmKernel kGemm8 = gemm_kernel(multiply_tile<Block<Bytes>>);
const GemmKernel kGemm16 = gemm_kernel(multiply_tile<Block<Words>>);

}  // namespace translate_trt::neon
