// Row operations before and after a matmul, for all precisions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

constexpr std::size_t kTileRows = 6;  // most rows of a tile in registers

// A number of rows that is known at compile time, so that the sums of a tile stay in registers.
template <int Rows>
struct Height {
  static constexpr int kRows = Rows;
};

// Calls use(Height<rows>()), for 1 to kTileRows rows.
template <class Use>
void with_height(std::size_t rows, const Use& use) {
  switch (rows) {
    case 1:
      return use(Height<1>());
    case 2:
      return use(Height<2>());
    case 3:
      return use(Height<3>());
    case 4:
      return use(Height<4>());
    case 5:
      return use(Height<5>());
    default:
      return use(Height<6>());
  }
}

// Finds runs of equal rows. Writes their begins, and the end, to begins[rows + 1]; returns their
// number.
std::size_t runs(const float* x, std::size_t rows, std::size_t columns, std::size_t* begins);

// Layer normalization of one row, in place if y is x.
void normalize(const float* x, std::size_t columns, const Norm& norm, float* y);

// Calls task(row) for every row, in parallel tasks of several rows.
template <class Task>
void for_rows(std::size_t rows, Executor& executor, const Task& task) {
  constexpr std::size_t kRowsOfTask = 16;
  parallel_for(executor, ceiling(rows, kRowsOfTask), [&](std::size_t part) {
    const auto end = std::min(rows, (part + 1) * kRowsOfTask);
    for (auto row = part * kRowsOfTask; row < end; ++row) task(row);
  });
}

// Calls use(std::true_type()) if the activation is a curve, and else use(std::false_type()).
template <class Use>
void with_curved(const Epilogue& epilogue, const Use& use) {
  const auto activation = epilogue.activation;
  if (activation == Activation::gelu || activation == Activation::swish) {
    use(std::true_type());
  } else {
    use(std::false_type());
  }
}

// The part of an epilogue that needs complete rows: the normalization, if any.
void finish_rows(const Epilogue& epilogue, std::size_t rows, std::size_t columns, float* y,
                 Executor& executor);

// Applies the epilogue of a matmul to blocks of 16 columns, or to those within the matrix.
template <std::size_t Blocks>
class EpilogueWriter {
 public:
  EpilogueWriter(const Epilogue& epilogue, std::size_t outputs, std::size_t column, float* y)
      : residual_(epilogue.residual == nullptr ? nullptr : epilogue.residual + column),
        y_(y + column),
        outputs_(outputs),
        activation_(epilogue.activation),
        least_(broadcast(activation_ == Activation::relu ? 0 : -INFINITY)) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < Blocks; ++j) {
      const auto begin = column + j * kLanes;
      lanes_[j] = first_lanes(outputs - begin);
      bias_[j] = load(epilogue.bias + begin, lanes_[j]);
    }
  }

  // Writes the results of the equal rows [begin, end), except for the normalization. Curved:
  // whether the activation is a curve, whose calls leave few registers.
  template <bool Curved>
  void write(std::size_t begin, std::size_t end, const Floats (&matmul)[Blocks]) const {
    Floats values[Blocks];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < Blocks; ++j) {
      values[j] = max(least_, matmul[j] + bias_[j]);  // in this order, NaN remains
      if constexpr (Curved) {
        values[j] = activation_ == Activation::swish ? swish(values[j]) : gelu(values[j]);
      }
    }
    for (auto row = begin; row < end; ++row) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < Blocks; ++j) {
        const auto at = row * outputs_ + j * kLanes;
        const Floats residual = residual_ == nullptr ? zeros() : load(residual_ + at, lanes_[j]);
        store(y_ + at, values[j] + residual, lanes_[j]);
      }
    }
  }

 private:
  const float* const residual_;
  float* const y_;
  const std::size_t outputs_;
  Lanes lanes_[Blocks];
  Floats bias_[Blocks];
  const Activation activation_;
  const Floats least_;  // lower limit of the values
};

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
