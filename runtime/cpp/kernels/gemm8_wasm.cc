// 8-bit and 16-bit GEMM with WebAssembly, whose one dot product multiplies words and adds two
// terms.

#include "gemm8_blocks.h"

namespace translate_trt::wasm {
namespace {

// Rows of a tile: 8 of 16 registers have sums. With 6 rows, V8 spills some.
constexpr std::size_t kRowsOfTile = 4;

// The sums of 4 * kWidth columns.
constexpr int kWidth = 2;
// Computes the sums of one block of weights, part by part; Numbers has the type of the weights.
template <class Numbers>
struct Block {
  static constexpr std::size_t kBytes = Numbers::kBytes;

  template <int Rows>
  static void multiply(const std::uint8_t* a, std::size_t stride, const std::int8_t* w,
                       Ints (*out)[kPanel]) {
    for (int part = 0; part < kParts; part += Numbers::kPartsOfWidth) {
      multiply_part<Rows>(a, stride, w + 16 * part, part, out);
    }
  }

 private:
  // Loops are unrolled over rows alone: V8 keeps fewer sums in registers if they are longer.
  template <int Rows>
  __attribute__((noinline)) static void multiply_part(const std::uint8_t* a, std::size_t stride,
                                                      const std::int8_t* w, int part,
                                                      Ints (*out)[kPanel]) {
    Int4 sums[Rows][kWidth];
    const std::uint8_t* row[Rows];
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) {
      sums[i][0] = sums[i][1] = splat4(0);
      row[i] = a + i * stride;
    }
    for (std::size_t left = stride; left > 0; left -= kBytes, w += 64) {
      const v128_t first = Numbers::template weights<0>(w),
                   second = Numbers::template weights<1>(w);
#pragma clang loop unroll(full)
      for (int i = 0; i < Rows; ++i) {
        const v128_t values = Numbers::inputs(row[i]);
        row[i] += kBytes;
        sums[i][0] += (Int4)wasm_i32x4_dot_i16x8(values, first);
        sums[i][1] += (Int4)wasm_i32x4_dot_i16x8(values, second);
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < Rows; ++i) Numbers::store(sums[i], out[i][0].part + part);
  }
};

// Weights in 8 bits, which become words: 64 bytes have 16 columns and four inputs. A register of
// sums has two sums of two columns.
struct Bytes {
  static constexpr std::size_t kBytes = 4 * sizeof(Activation8);
  static constexpr int kPartsOfWidth = 1;

  template <int Register>
  static v128_t weights(const std::int8_t* w) {
    return wasm_i16x8_load8x8(w + 8 * Register);
  }
  static v128_t inputs(const std::uint8_t* row) { return wasm_v128_load64_splat(row); }
  static void store(const Int4 (&sums)[kWidth], Int4* to) {
    *to = __builtin_shufflevector(sums[0], sums[1], 0, 2, 4, 6) +
          __builtin_shufflevector(sums[0], sums[1], 1, 3, 5, 7);
  }
};

// Weights in 16 bits: 64 bytes have 16 columns and two inputs.
struct Words {
  static constexpr std::size_t kBytes = 2 * sizeof(std::int16_t);
  static constexpr int kPartsOfWidth = 2;

  template <int Register>
  static v128_t weights(const std::int8_t* w) {
    return wasm_v128_load(w + 16 * Register);
  }
  static v128_t inputs(const std::uint8_t* row) { return wasm_v128_load32_splat(row); }
  static void store(const Int4 (&sums)[kWidth], Int4* to) {
    to[0] = sums[0];
    to[1] = sums[1];
  }
};

}  // namespace

const GemmKernel kGemm8 = gemm_kernel(multiply_tile<Block<Bytes>>, kRowsOfTile);
const GemmKernel kGemm16 = gemm_kernel(multiply_tile<Block<Words>>, kRowsOfTile);

}  // namespace translate_trt::wasm
