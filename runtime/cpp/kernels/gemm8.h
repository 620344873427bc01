// 8-bit GEMM by tiles, with exchangeable micro-kernels.
#pragma once

#include <algorithm>
#include <cstring>

#include "background.h"
#include "kernels.h"
#include "rows.h"
#include "simd.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

struct GemmKernel;

// 8-bit activations: q(x) = round(x / scale) + zero, with one scale per row.
//
// Consecutive duplicate rows are stored once: all beams of a sentence are equal in the first step.
struct Rows8 {
  const std::uint8_t* values;  // bytes of Activation8 [count, inputs], in the kernel's layout
  const float* scales;         // [count]
  const std::size_t* begins;  // [count + 1]; row i stands for input rows [begins[i], begins[i + 1])
  std::size_t count;
  std::int32_t zero;
  const GemmKernel* kernel;  // kernel that the layout is for
};

constexpr std::size_t kPanel = 4;         // blocks of 16 columns in a tile
constexpr std::size_t kMaxTileRows = 32;  // maximum rows of a tile, over all kernels

// Quantizes rows [rows, inputs] for the kernel `best`, or for kGemm8 if they are too few.
// Positive rows use the full unsigned range.
Rows8 quantize(const float* x, std::size_t rows, std::size_t inputs, bool positive,
               const GemmKernel& best, Executor& executor, Arena& arena);

// Integer sums of a tile: [row][block] with 16 columns each.
using Sums = Ints[kMaxTileRows][kPanel];

// Contribution of the zero point to the sums of a block of columns.
inline Ints zero_sums(const Rows8& x, const Matrix8& matrix, std::size_t block) {
  if (x.zero == 0) return zero_ints();
  return multiply(load(matrix.column_sums + block * kLanes), broadcast_int(x.zero));
}

// A micro-kernel that computes tiles, and its tuning parameters.
struct GemmKernel {
  std::size_t min_rows;           // minimum rows of an input
  std::size_t min_prefetch_rows;  // minimum rows for prefetching the next panel, beyond one tile
  std::size_t rows;               // rows of a tile, at most kMaxTileRows
  std::size_t rows_per_task;      // rows of a task, in whole tiles; amortizes reading the weights
  // Called by each thread before and after its tiles (see for_tiles); may be null.
  void (*begin)();
  void (*end)();
  // Multiplies rows [row, row + height), at most `rows`, by blocks [block, last), at most kPanel.
  // The caller subtracts zero_sums.
  void (*tile)(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
               std::size_t block, std::size_t last, const Background& background, Sums& sums);
  // Whether the kernel has tile registers: it runs background tasks, and activations have another
  // layout (see activation_offset).
  bool tiles;

  // Offset of an activation in bytes.
  std::size_t offset(std::size_t row, std::size_t input, std::size_t inputs) const {
    return activation_offset(row, input, inputs, tiles);
  }
};

// A micro-kernel that no share of the next panel is prefetched for.
constexpr GemmKernel gemm_kernel(decltype(GemmKernel::tile) tile, std::size_t rows = kTileRows) {
  constexpr std::size_t kNever = SIZE_MAX;  // rows for prefetching the next panel
  return {0, kNever, rows, 66 / rows * rows, nullptr, nullptr, tile, false};
}

// The share of the next panel that a tile of the current panel prefetches: the tile from `row` on,
// of `rows` rows. A half of the panel or a quarter, so that a tile prefetches as many lines at
// every step.
inline Prefetch next_panel_prefetch(const GemmKernel& kernel, const Matrix8& matrix,
                                    std::size_t last, std::size_t row, std::size_t rows) {
  if (last + kPanel > matrix.blocks || rows < kernel.min_prefetch_rows) return kNoPrefetch;
  const auto tiles = ceiling(rows, kernel.rows), tile = row / kernel.rows;
  const std::size_t shares = tiles < 4 ? 2 : 4;
  if (tile >= shares) return kNoPrefetch;
  const auto lines = matrix.inputs / shares;  // 64 bytes for four inputs and a block
  return {matrix.weights + (last * kLanes + tile * kPanel * kLanes / shares) * matrix.inputs,
          lines};
}

extern const GemmKernel kGemm8;

// 16-bit GEMM on the same structures: Rows8 and Matrix8 hold the bytes of 16-bit numbers, with
// twice as many inputs.
extern const GemmKernel kGemm16;

#ifdef TRANSLATE_TRT_I8MM
extern const GemmKernel kGemm8I8mm;
#endif

#if defined(TRANSLATE_TRT_AMX) && defined(TRANSLATE_TRT_FOR_AVX512)
extern const GemmKernel kGemm8Amx;

// Whether both kernels compute equal sums of pseudo-random numbers.
bool same_sums(const GemmKernel& one, const GemmKernel& other);
#endif

// The kernel for that many rows: `best`, or kGemm8 for few rows.
inline const GemmKernel& kernel_for(std::size_t rows, const GemmKernel& best) {
  return rows < best.min_rows ? kGemm8 : best;
}

// An activation.
inline std::int32_t activation(const Rows8& x, std::size_t row, std::size_t input,
                               std::size_t inputs) {
  Activation8 found;
  std::memcpy(&found, x.values + x.kernel->offset(row, input, inputs), sizeof found);
  return found;
}

// Computes tiles, each followed by its epilogue: run(part, sums) for every part below parts(). With
// tile registers, the epilogue runs between the steps of the next tile. A step keeps the matrix
// unit busy for 64 cycles with a dozen instructions, which leaves the vector units to the epilogue;
// out-of-order execution alone does not look as far ahead as from one tile to the next.
template <class Epilogue>
class TilePipeline {
 public:
  explicit TilePipeline(const GemmKernel& kernel) : kernel_(kernel) {}

  // Computes a tile (GemmKernel::tile). Its epilogue ends before that of the next one begins.
  void add(const Rows8& x, const Matrix8& matrix, std::size_t row, std::size_t height,
           std::size_t block, std::size_t last, const Prefetch& prefetch,
           const Epilogue& epilogue) {
    const auto next = 1 - last_;
    const TaskFunction task = {[](const void* pipeline, std::size_t part) {
                                 static_cast<const TilePipeline*>(pipeline)->run(part);
                               },
                               this};
    kernel_.tile(x, matrix, row, height, block, last, {prefetch, task, parts_}, sums_[next]);
    last_ = next;
    epilogue_ = epilogue;
    parts_ = epilogue.parts();
    if (!kernel_.tiles) flush();
  }

  // Ends the epilogue of the last tile.
  void flush() {
    for (std::size_t part = 0; part < parts_; ++part) run(part);
    parts_ = 0;
  }

 private:
  void run(std::size_t part) const { epilogue_.run(part, sums_[last_]); }

  const GemmKernel& kernel_;
  Sums sums_[2];
  std::size_t last_ = 0;  // index of the sums of the last tile
  Epilogue epilogue_;
  std::size_t parts_ = 0;  // of the epilogue, if it has not run
};

// Calls body(pipeline, task) for tasks 0, ..., count - 1 in parallel. With tile registers, a thread
// takes tasks until none is left, so that epilogues overlap with the tiles of the next task, and
// its tiles are configured once. It releases them at the end: ONNX Runtime uses tiles, too,
// switching between threads saves tiles in use, and they keep an idle core from saving power.
template <class Epilogue, class Body>
void for_tiles(const GemmKernel& kernel, std::size_t count, Executor& executor, const Body& body) {
  std::size_t next = 0;
  parallel_for(executor, count, [&](std::size_t task) {
    TilePipeline<Epilogue> pipeline(kernel);
    if (!kernel.tiles) return body(pipeline, task);
    const auto take = [&] { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); };
    task = take();
    if (task >= count) return;
    kernel.begin();
    for (; task < count; task = take()) body(pipeline, task);
    pipeline.flush();
    kernel.end();
  });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
