// 8-bit GEMM with SMMLA (FEAT_I8MM), which multiplies eight inputs of two rows by those of two
// columns.

#include "gemm8_blocks.h"

namespace translate_trt::neon {
namespace {

struct Block {
  static constexpr std::size_t kBytes = 4;

  template <int Rows>
  __attribute__((noinline)) static void multiply(const std::uint8_t* a, std::size_t stride,
                                                 const std::int8_t* w, Ints (*out)[kPanel]) {
    constexpr int kPairs = (Rows + 1) / 2;
    int32x4_t sums[kPairs][2 * kParts];  // two rows by two columns
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < 2 * kParts; ++j) sums[i][j] = vdupq_n_s32(0);
    }
    for (std::size_t k = 0; k < stride; k += 8, w += 64) {
      int8x16_t rows[kPairs];
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        const auto* first = reinterpret_cast<const std::int8_t*>(a + 2 * i * stride + k);
        const auto second = 2 * i + 1 < Rows ? vld1_s8(first + stride) : vdup_n_s8(0);
        rows[i] = vcombine_s8(vld1_s8(first), second);
      }
      add<0>(sums, rows, w);
      add<4>(sums, rows, w);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const auto& pairs = sums[i / 2];
#pragma GCC unroll 4
      for (int j = 0; j < kParts; ++j) {
        const auto left = vreinterpretq_s64_s32(pairs[2 * j]);
        const auto right = vreinterpretq_s64_s32(pairs[2 * j + 1]);
        const auto row = i % 2 == 0 ? vzip1q_s64(left, right) : vzip2q_s64(left, right);
        out[i][0].part[j] = vreinterpretq_s32_s64(row);
      }
    }
  }

 private:
  // Adds the terms of eight columns to the sums from `First` on, and moves w to the next columns. A
  // register of weights has four inputs of four columns; zips of two registers have eight inputs of
  // two columns. Inline assembly for the reason given in gemm8_neon.cc.
  template <int First, int Pairs>
  static void add(int32x4_t (&sums)[Pairs][2 * kParts], const int8x16_t (&rows)[Pairs],
                  const std::int8_t*& w) {
    int8x16_t columns[4], scratch;
    asm volatile(
        "ldp %q[b], %q[d], [%[w]], #32\n\t"
        "ldp %q[c], %q[scratch], [%[w], #32]\n\t"
        "zip1 %[a].4s, %[b].4s, %[c].4s\n\t"
        "zip2 %[b].4s, %[b].4s, %[c].4s\n\t"
        "zip1 %[c].4s, %[d].4s, %[scratch].4s\n\t"
        "zip2 %[d].4s, %[d].4s, %[scratch].4s"
        : [a] "=&w"(columns[0]), [b] "=&w"(columns[1]), [c] "=&w"(columns[2]),
          [d] "=&w"(columns[3]), [scratch] "=&w"(scratch), [w] "+r"(w)
        :
        : "memory");
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
      for (int i = 0; i < Pairs; ++i) {
        asm volatile("smmla %[sum].4s, %[rows].16b, %[columns].16b"
                     : [sum] "+w"(sums[i][First + j])
                     : [rows] "w"(rows[i]), [columns] "w"(columns[j]));
      }
    }
  }
};

// GemmKernel::tile. With fewer rows, zips cost more than SMMLA saves: 16 inputs of 16 columns by
// 2, 3, 4, 5 and 6 rows take 54, 72, 76, 94 and 98 instructions of the loop, and 46, 63, 80, 97 and
// 114 with SDOT (GCC 12).
void tile(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
          std::size_t block, std::size_t last, const Background& background, Sums& sums) {
  const bool pairs = height >= 4 && matrix.inputs % 8 == 0;
  const auto multiply = pairs ? multiply_tile<Block> : kGemm8.tile;
  multiply(x, matrix, row, height, block, last, background, sums);
}

}  // namespace

const GemmKernel kGemm8I8mm = gemm_kernel(tile);

}  // namespace translate_trt::neon
