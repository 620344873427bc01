// The product of 8-bit rows with an 8-bit matrix by tiles of AMX. It uses nothing of AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

namespace translate_trt::amx {

// Activations [rows, inputs], times blocks of 16 columns as Matrix8 stores them, give sums
// [rows, stride], of which the first 16 * blocks are written.
//
// Whole tiles are read and written: rows are rounded up to `readable_rows`, and the inputs of the
// last of them to 64.
struct Product {
  const std::uint8_t* activations;
  const std::int8_t* weights;
  std::int32_t* sums;
  std::size_t rows, inputs, blocks, stride;
};

constexpr std::size_t readable_rows(std::size_t rows) { return (rows + 15) / 16 * 16; }

// Bytes of activations that may be read, all told.
constexpr std::size_t readable_bytes(std::size_t rows, std::size_t inputs) {
  return readable_rows(rows) * inputs + 63;
}

// A thread multiplies between these. ONNX Runtime configures the same tiles for products of its own
// and looks first whether they still are as it left them: it must find them without configuration.
void begin();
void end();

void multiply(const Product& product);

}  // namespace translate_trt::amx
