// 8-bit and 16-bit GEMM with WebAssembly, whose one dot product multiplies words and adds two
// terms.

#include "gemm8_blocks.h"

namespace translate_trt::wasm {
namespace {

// Weights in 8 bits, which become words: 64 bytes have 16 columns and four inputs.
struct Bytes {
  static constexpr std::size_t kBytes = 4 * sizeof(Activation8);

  template <int Rows>
  static void multiply(const std::uint8_t* a, std::size_t stride, const std::int8_t* w,
                       Ints (*out)[kPanel]) {
    for (int part = 0; part < kParts; ++part)
      multiply_part<Rows>(a, stride, w + 16 * part, part, out);
  }

 private:
  // Four columns, in 12 of 16 registers. A register of sums has two columns of two sums.
  template <int Rows>
  __attribute__((noinline)) static void multiply_part(const std::uint8_t* a, std::size_t stride,
                                                      const std::int8_t* w, int part,
                                                      Ints (*out)[kPanel]) {
    Int4 sums[Rows][2];
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) sums[i][0] = sums[i][1] = splat4(0);
    for (std::size_t k = 0; k < stride; k += kBytes, w += 64) {
      const v128_t first = wasm_i16x8_load8x8(w), second = wasm_i16x8_load8x8(w + 8);
#pragma clang loop unroll(full)
      for (int i = 0; i < Rows; ++i) {
        const v128_t row = wasm_v128_load64_splat(a + i * stride + k);
        sums[i][0] += (Int4)wasm_i32x4_dot_i16x8(row, first);
        sums[i][1] += (Int4)wasm_i32x4_dot_i16x8(row, second);
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) {
      out[i][0].part[part] = __builtin_shufflevector(sums[i][0], sums[i][1], 0, 2, 4, 6) +
                             __builtin_shufflevector(sums[i][0], sums[i][1], 1, 3, 5, 7);
    }
  }
};

// Weights in 16 bits: 64 bytes have 16 columns and two inputs.
struct Words {
  static constexpr std::size_t kBytes = 2 * sizeof(std::int16_t);

  template <int Rows>
  static void multiply(const std::uint8_t* a, std::size_t stride, const std::int8_t* w,
                       Ints (*out)[kPanel]) {
    for (int part = 0; part < kParts; part += 2) {
      multiply_parts<Rows>(a, stride, w + 16 * part, part, out);
    }
  }

 private:
  // Eight columns.
  template <int Rows>
  __attribute__((noinline)) static void multiply_parts(const std::uint8_t* a, std::size_t stride,
                                                       const std::int8_t* w, int part,
                                                       Ints (*out)[kPanel]) {
    Int4 sums[Rows][2];
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) sums[i][0] = sums[i][1] = splat4(0);
    for (std::size_t k = 0; k < stride; k += kBytes, w += 64) {
      const v128_t first = wasm_v128_load(w), second = wasm_v128_load(w + 16);
#pragma clang loop unroll(full)
      for (int i = 0; i < Rows; ++i) {
        const v128_t row = wasm_v128_load32_splat(a + i * stride + k);
        sums[i][0] += (Int4)wasm_i32x4_dot_i16x8(row, first);
        sums[i][1] += (Int4)wasm_i32x4_dot_i16x8(row, second);
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) {
      for (int j = 0; j < 2; ++j) out[i][0].part[part + j] = sums[i][j];
    }
  }
};

}  // namespace

const GemmKernel kGemm8 = gemm_kernel(multiply_tile<Bytes>);
const GemmKernel kGemm16 = gemm_kernel(multiply_tile<Words>);

}  // namespace translate_trt::wasm
