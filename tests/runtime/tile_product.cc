// Compares GEMMs of all sizes with emulated tiles to a plain C++ reference: `tile_product INPUTS`.
//
// Arrays have exactly the size that may be read, so that a sanitizer detects other accesses. The
// first wrong result is printed, and the exit code is 1.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "gemm8_amx.h"

namespace {

using namespace translate_trt;

constexpr std::int32_t kUntouched = 0x5A5A5A5A;
constexpr std::size_t kMoreColumns = 5;  // columns of the sums that the GEMM does not write

struct Case {
  std::size_t rows, inputs, blocks;
  bool largest;  // whether all numbers are extreme instead of random

  std::size_t stride() const { return 16 * blocks + kMoreColumns; }
};

template <class T>
std::unique_ptr<T[]> numbers(std::size_t count, int least, int most, bool largest) {
  static std::minstd_rand generator;
  std::uniform_int_distribution<int> any(least, most);
  std::unique_ptr<T[]> result(new T[count]);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<T>(largest ? (least < 0 ? least : most) : any(generator));
  }
  return result;
}

std::int32_t expected(const Case& c, const std::uint8_t* x, const std::int8_t* weights,
                      std::size_t row, std::size_t column) {
  if (column >= 16 * c.blocks) {
    return kUntouched;
  }
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < c.inputs; ++i) {
    const auto at = ((column / 16 * (c.inputs / 4) + i / 4) * 16 + column % 16) * 4 + i % 4;
    sum += x[amx::offset(row, i, c.inputs)] * weights[at];
  }
  return sum;
}

// Tasks that ran in order.
struct Tasks {
  static constexpr std::size_t kCount = 21;
  std::size_t done = 0;

  static void run(const void* tasks, std::size_t index) {
    auto& done = const_cast<Tasks*>(static_cast<const Tasks*>(tasks))->done;
    done = done == index ? done + 1 : kCount + 1;
  }
};

bool is_right(const Case& c) {
  const auto x = numbers<std::uint8_t>(amx::readable_bytes(c.rows, c.inputs), 0, 255, c.largest);
  const auto weights = numbers<std::int8_t>(c.blocks * 16 * c.inputs, -128, 127, c.largest);
  const auto count = amx::readable_rows(c.rows) * c.stride() - kMoreColumns;
  const auto sums = numbers<std::int32_t>(count, 0, kUntouched, true);
  Tasks tasks;
  const Background background{{weights.get(), c.blocks}, {Tasks::run, &tasks}, Tasks::kCount};
  amx::begin();
  amx::multiply(
      {x.get(), weights.get(), sums.get(), c.rows, c.inputs, c.blocks, c.stride(), &background});
  amx::end();
  if (tasks.done != Tasks::kCount) {
    std::printf("%zu rows, %zu inputs, %zu blocks: not all tasks ran in order\n", c.rows, c.inputs,
                c.blocks);
    return false;
  }
  for (std::size_t i = 0; i < count && i < c.rows * c.stride(); ++i) {
    const auto row = i / c.stride(), column = i % c.stride();
    const auto wanted = expected(c, x.get(), weights.get(), row, column);
    if (sums[i] != wanted) {
      std::printf("%zu rows, %zu inputs, %zu blocks, %s numbers: ", c.rows, c.inputs, c.blocks,
                  c.largest ? "largest" : "random");
      std::printf("row %zu, column %zu is %d, not %d\n", row, column, sums[i], wanted);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int, char** arguments) {
  const auto inputs = static_cast<std::size_t>(std::atoi(arguments[1]));
  for (std::size_t rows = 1; rows <= 70; ++rows) {
    for (std::size_t blocks = 1; blocks <= 9; ++blocks) {
      if (!is_right({rows, inputs, blocks, false}) || !is_right({rows, inputs, blocks, true})) {
        return 1;
      }
    }
  }
  return 0;
}
