// 8-bit GEMM with AMX tiles, without AVX-512 instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "background.h"

namespace translate_trt::amx {

// Multiplies activations [rows, inputs] by blocks of 16 columns, stored like Matrix8, to sums
// [rows, stride], of which the first 16 * blocks columns are written.
//
// Activations are stored tile by tile (see `offset`): loading a tile whose rows are apart is slower
// from the second-level cache (128 rows by 512 inputs take 1.5 us, and 0.9 us in this layout).
//
// Whole tiles are read and written: rows are padded to `readable_rows`, inputs to
// `readable_inputs`.
struct Gemm {
  const std::uint8_t* activations;
  const std::int8_t* weights;
  std::int32_t* sums;
  std::size_t rows, inputs, blocks, stride;
  const Background* background;  // its tasks do not use tiles
};

constexpr std::size_t readable_rows(std::size_t rows) { return (rows + 15) / 16 * 16; }
constexpr std::size_t readable_inputs(std::size_t inputs) { return (inputs + 63) / 64 * 64; }

// Size in bytes of the activations, padding included.
constexpr std::size_t readable_bytes(std::size_t rows, std::size_t inputs) {
  return readable_rows(rows) * readable_inputs(inputs);
}

// Offset of an activation; a tile has 16 rows by 64 inputs.
constexpr std::size_t offset(std::size_t row, std::size_t input, std::size_t inputs) {
  return row / 16 * 16 * readable_inputs(inputs) + input / 64 * 1024 + row % 16 * 64 + input % 64;
}

// Configure and release the tiles of the calling thread, which must surround `multiply`. ONNX
// Runtime uses tiles, too, and checks whether they still have its configuration, so they must not
// keep ours.
void begin();
void end();

void multiply(const Gemm& gemm);

}  // namespace translate_trt::amx
