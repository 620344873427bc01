// The product of 8-bit rows with an 8-bit matrix by tiles of AMX. It uses nothing of AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

namespace translate_trt::amx {

// Activations [rows, inputs], times blocks of 16 columns as Matrix8 stores them, give sums
// [rows, stride], of which the first 16 * blocks are written.
//
// Activations stand tile by tile, where `offset` says, for a tile whose rows lie apart comes from
// the second cache at a fraction of the speed (128 rows by 512 inputs: 1.5 us, and 0.9 as it is
// here).
//
// Whole tiles are read and written: rows are rounded up to `readable_rows`, inputs to
// `readable_inputs`.
struct Gemm {
  const std::uint8_t* activations;
  const std::int8_t* weights;
  std::int32_t* sums;
  std::size_t rows, inputs, blocks, stride;
  // What is wanted next of memory: so many times 64 bytes are asked for on the way.
  const std::int8_t* prefetch;
  std::size_t prefetch_lines;
};

constexpr std::size_t readable_rows(std::size_t rows) { return (rows + 15) / 16 * 16; }
constexpr std::size_t readable_inputs(std::size_t inputs) { return (inputs + 63) / 64 * 64; }

// Bytes of activations that may be read, all told.
constexpr std::size_t readable_bytes(std::size_t rows, std::size_t inputs) {
  return readable_rows(rows) * readable_inputs(inputs);
}

// Where an activation stands: 16 rows by 64 inputs are a tile.
constexpr std::size_t offset(std::size_t row, std::size_t input, std::size_t inputs) {
  return row / 16 * 16 * readable_inputs(inputs) + input / 64 * 1024 + row % 16 * 64 + input % 64;
}

// A thread multiplies between these. ONNX Runtime configures the same tiles for products of its own
// and looks first whether they still are as it left them: it must find them without configuration.
void begin();
void end();

void multiply(const Gemm& gemm);

}  // namespace translate_trt::amx
