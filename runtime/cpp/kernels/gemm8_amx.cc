#include "gemm8_amx.h"

#include <cstring>
#include <utility>

#include "tiles.h"

namespace translate_trt::amx {
namespace {

constexpr std::size_t kColumns = kTileBytes / 4;  // columns of a block
static_assert(readable_rows(1) == kTileRows && readable_inputs(1) == kTileBytes);
static_assert(offset(kTileRows, kTileBytes, 2 * kTileBytes) == 3 * kTileSize);

// Calls task(0), ..., task(Count - 1) with compile-time constants, which tile numbers must be.
template <class Task, int... Index>
inline void each(const Task& task, std::integer_sequence<int, Index...>) {
  (task(std::integral_constant<int, Index>{}), ...);
}

template <int Count, class Task>
inline void each(const Task& task) {
  each(task, std::make_integer_sequence<int, Count>{});
}

// Tile register assignment for a group of Rows x Blocks tiles of sums.
template <int Rows, int Blocks>
struct Layout {
  static constexpr int sums(int row, int block) { return row * Blocks + block; }
  static constexpr int activations(int row) { return Rows * Blocks + row; }
  // Blocks of weights share the remaining tiles in turn.
  static constexpr int weights(int block) {
    constexpr int first = Rows * Blocks + Rows;
    static_assert(first < kTiles, "no tile is left for weights");
    return first + block % (kTiles - first);
  }
};

// Accumulates 64 inputs. row_size: distance of activation tiles in bytes. block_size: distance of
// weight blocks.
template <int Rows, int Blocks>
inline void step(const std::uint8_t* activations, std::size_t row_size, const std::int8_t* weights,
                 std::size_t block_size) {
  using Tile = Layout<Rows, Blocks>;
  each<Rows>(
      [&](auto row) { load<Tile::activations(row)>(activations + row * row_size, kTileBytes); });
  each<Blocks>([&](auto block) {
    constexpr int kBlock = block;
    // A row of the tile is four inputs of 16 columns, 64 bytes.
    load<Tile::weights(kBlock)>(weights + kBlock * block_size, kTileBytes);
    each<Rows>([](auto row) {
      multiply_add<Tile::sums(row, kBlock), Tile::activations(row), Tile::weights(kBlock)>();
    });
  });
}

// Accumulates the last, fewer than 64 inputs. Weights are padded with zeros, so the contents after
// the activations do not matter.
template <int Rows, int Blocks>
void last_step(const std::uint8_t* activations, std::size_t row_size, const std::int8_t* weights,
               std::size_t block_size, std::size_t left) {
  alignas(64) std::int8_t filled[Blocks][kTileSize] = {};
  for (int block = 0; block < Blocks; ++block) {
    std::memcpy(filled[block], weights + block * block_size, left * kColumns);
  }
  step<Rows, Blocks>(activations, row_size, filled[0], kTileSize);
}

// Spreads the prefetches and the tasks of a GEMM evenly over its steps.
class Spread {
 public:
  Spread(const Background& background, std::size_t steps)
      : next_(background.prefetch.weights),
        lines_((background.prefetch.lines + steps - 1) / steps),
        end_(next_ + background.prefetch.lines * 64),
        task_(background.task),
        tasks_(background.tasks),
        steps_(steps) {}

  // Does the share of one step, after its tile instructions, which take longer.
  void step() {
    for (std::size_t i = 0; i < lines_ && next_ < end_; ++i, next_ += 64) {
      __builtin_prefetch(next_, 0, 2);  // into the second cache
    }
    for (due_ += tasks_; due_ >= steps_; due_ -= steps_) task_.run(task_.closure, done_++);
  }

 private:
  const std::int8_t* next_;
  const std::size_t lines_;
  const std::int8_t* const end_;
  const TaskFunction task_;
  const std::size_t tasks_, steps_;
  std::size_t done_ = 0, due_ = 0;  // tasks; due_ is in shares of 1 / steps_
};

// Number of steps of a GEMM.
std::size_t steps(const Gemm& p) {
  const auto pairs = (p.rows + kTileRows - 1) / (2 * kTileRows);
  const auto singles = p.rows > pairs * 2 * kTileRows ? 1 : 0;
  const auto groups = pairs * ((p.blocks + 1) / 2) + singles * ((p.blocks + 3) / 4);
  return groups * readable_inputs(p.inputs) / kTileBytes;
}

// Computes the sums of Rows * 16 rows and Blocks blocks, starting at `row` and `block`.
template <int Rows, int Blocks>
void group(const Gemm& p, std::size_t row, std::size_t block, Spread& background) {
  using Tile = Layout<Rows, Blocks>;
  const auto block_size = p.inputs * kColumns, row_size = readable_inputs(p.inputs) * kTileRows;
  const auto* activations = p.activations + row / kTileRows * row_size;
  const auto* weights = p.weights + block * block_size;
  each<Rows * Blocks>([](auto tile) { zero<tile>(); });
  const auto left = p.inputs % kTileBytes, whole = p.inputs - left;
  for (std::size_t k = 0; k < whole; k += kTileBytes) {
    step<Rows, Blocks>(activations + k * kTileRows, row_size, weights + k * kColumns, block_size);
    background.step();
  }
  if (left != 0) {
    last_step<Rows, Blocks>(activations + whole * kTileRows, row_size, weights + whole * kColumns,
                            block_size, left);
    background.step();
  }
  auto* sums = p.sums + row * p.stride + block * kColumns;
  each<Rows>([&](auto r) {
    constexpr int kRow = r;
    each<Blocks>([&](auto b) {
      store<Tile::sums(kRow, b)>(sums + kRow * kTileRows * p.stride + b * kColumns,
                                 p.stride * sizeof *sums);
    });
  });
}

// Computes all blocks from `block` on, at most Blocks at a time.
template <int Rows, int Blocks>
void groups(const Gemm& p, std::size_t row, std::size_t block, Spread& background) {
  for (; block + Blocks <= p.blocks; block += Blocks) {
    group<Rows, Blocks>(p, row, block, background);
  }
  if constexpr (Blocks > 1) {
    if (block < p.blocks) groups<Rows, Blocks - 1>(p, row, block, background);
  }
}

}  // namespace

void begin() { configure(); }

void end() { release(); }

void multiply(const Gemm& gemm) {
  // Four tiles of sums at a time: the instruction has a throughput of 16 cycles and a latency
  // of 52. Of all shapes with four tiles, two by two loads the fewest.
  Spread background(*gemm.background, steps(gemm));
  std::size_t row = 0;
  for (; row + kTileRows < gemm.rows; row += 2 * kTileRows) groups<2, 2>(gemm, row, 0, background);
  if (row < gemm.rows) groups<1, 4>(gemm, row, 0, background);
}

}  // namespace translate_trt::amx
