// Interface of the kernels, which work on plain arrays and do not depend on ONNX Runtime.
//
// Arrays are dense and row-major; floats are binary32. Sizes have the letters of
// runtime/bundle/contract.py: N sentences, K beams, P slots of a cache, S source tokens, H heads, D
// head size, and V tokens of the vocabulary.
//
// Files that are compiled for special instructions include this header, so it must not contain
// inline functions or templates of the standard library (docs/kernels.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace translate_trt {

class Arena;          // workspace.h
class WorkspacePool;  // workspace.h

// The body of a parallel loop; run(closure, index) runs one task.
struct TaskFunction {
  void (*run)(const void* closure, std::size_t index);
  const void* closure;
};

// Threads and workspaces for a kernel.
class Executor {
 public:
  // Runs tasks 0, ..., count - 1 once each, in any order and possibly in parallel.
  virtual void run(std::size_t count, const TaskFunction& task) = 0;
  virtual WorkspacePool& workspaces() = 0;

 protected:
  ~Executor() = default;
};

// An 8-bit matrix [inputs, outputs] in blocks of 16 columns: element (i, o) is stored at
// [o / 16][i / 4][o % 16][i % 4], so that 64 consecutive bytes are the operand of one instruction.
struct Matrix8 {
  const std::int8_t* weights;
  const float* scales;              // [blocks * 16]
  const std::int32_t* column_sums;  // [blocks * 16]
  std::size_t inputs;               // a multiple of 4
  std::size_t outputs;              // of the matrix; the last block may be padded
  std::size_t blocks;               // of 16 columns
  // Whether, with activations of up to 255, the sum of the terms of two inputs, an even one and the
  // next, always fits 16 bits: |w0 + w1| <= 128.
  bool pairs_fit = false;
};

// Layer normalization (section 5.4 of the paper; Ba et al. 2016).
struct Norm {
  const float* gamma;
  const float* beta;  // null: the mean is not subtracted (Zhang and Sennrich 2019)
  float epsilon;
};

// relu: max(y, 0); gelu: y * P(Y < y) for a normal Y; swish: y / (1 + e^-y).
enum class Activation { none, relu, gelu, swish };

// Operations that follow a matmul, in this order.
struct Epilogue {
  const float* bias;  // [outputs]
  Activation activation;
  const float* residual;  // [rows, outputs] or null
  const Norm* norm;       // or null
  float* normalized;      // [rows, outputs], output of the norm; null: it replaces the sum
};

struct Linear8 {
  Matrix8 matrix;
  bool positive;  // whether the input is non-negative
  Epilogue epilogue;
};

// A matrix [inputs, outputs] in panels of 64 columns: element (i, o) is stored at
// [o / 64][i][o % 64], so that a panel is contiguous.
struct Matrix {
  const float* weights;
  std::size_t inputs;
  std::size_t outputs;  // of the matrix; the last panel may be padded
  std::size_t panels;   // of 64 columns
};

struct Linear {
  Matrix matrix;
  Epilogue epilogue;
};

// Candidates of every row: the best `count` log-probabilities in descending order, ties by lower
// index; and the log-probabilities of given columns.
struct Candidates {
  std::size_t count;
  std::size_t lookups;          // number of given columns, U + 1
  const std::int64_t* columns;  // [rows, lookups]
  float* values;                // [rows, count]
  std::int64_t* indices;        // [rows, count]
  float* at_columns;            // [rows, lookups]
};

// A vocabulary projection [inputs, outputs], prepared for top-k: the matrix in 16 bits, bounds of
// its rounding errors, and a bias of the logits.
struct Vocabulary {
  // 16 columns by two inputs: element (i, o) is stored at [o / 16][i / 2][o % 16][i % 2].
  struct alignas(64) Line {
    std::int16_t words[32];
  };

  std::size_t inputs, outputs, blocks;
  const Line* lines;    // [blocks, pairs of inputs], the last pair padded
  const float* scales;  // [blocks * 16]
  const float* bias;    // [blocks * 16]
  // Maxima over all columns: norm of the integers, norm of the 16-bit column, and norm of its
  // rounding error.
  float integer_norm, norm, error;
  // [inputs], means of the 16-bit columns and of their rounding errors, without banned tokens.
  const float *mean, *mean_error;
};

// Shortlists: the tokens that each sentence may generate, in addition to `Candidates::columns`,
// which are the same for all beams of a sentence.
struct Shortlists {
  std::size_t sentences, beams, entries, inputs;  // N, K, W; columns of the vocabulary matrix
  const std::int64_t* tokens;                     // [N, W], 0 in unused entries
  const float* bias;                              // [V], of the logits, or null
};

// The bits of a binary16 number.
using Half = std::uint16_t;

constexpr float kMaxHalf = 65504;  // largest finite value

// Attention of all queries of a sentence (beams or source tokens) over shared keys and values,
// which are floats or `Half`.
template <class Number>
struct Attention {
  std::size_t sentences, queries, heads, positions;  // N, K or S, H, P or S
  std::size_t size;                                  // D, of keys and of values
  const float* query;                                // [N, queries, query_stride], head h at h * D
  std::size_t query_stride;
  // Elements of sentence n, head h and position p start at the sum of the indices times their
  // strides.
  const Number* key;
  const Number* value;
  std::size_t sentence_stride, head_stride, position_stride;
  const float* bias;      // [N, bias_heads, bias_rows, positions]; values below -1e8 mask
  std::size_t bias_rows;  // number of queries, or 1 shared by all
  float* context;         // [N, queries, H * D]
  // [N, H, queries, positions], receives the normalized weights, 0 at masked positions; or null.
  float* weights = nullptr;
  std::size_t bias_heads = 1;  // H, which mask the same positions, or 1
};

// The kernels for one instruction set. Operators whose kernel is null are not registered, and ONNX
// Runtime runs their function bodies.
struct Kernels {
  const char* name;
  void (*column_sums)(const Matrix8&, std::int32_t* sums) = nullptr;
  // Finds out Matrix8::pairs_fit; null for kernels that do not need it.
  bool (*pairs_fit)(const Matrix8&) = nullptr;
  void (*linear8)(const Linear8&, const float* x, std::size_t rows, float* y, Executor&) = nullptr;
  // bias [blocks * 16].
  void (*candidates8)(const Matrix8&, const float* bias, const float* x, std::size_t rows,
                      const Candidates&, Executor&) = nullptr;
  void (*linear)(const Linear&, const float* x, std::size_t rows, float* y, Executor&) = nullptr;
  // columns: [outputs, inputs]. bias: [outputs] or null. The arrays of the result belong to the
  // arena.
  Vocabulary (*vocabulary)(const float* columns, const float* bias, std::size_t outputs,
                           std::size_t inputs, Arena&) = nullptr;
  // columns: those that the vocabulary was made from.
  void (*candidates)(const Vocabulary&, const float* columns, const float* x, std::size_t rows,
                     const Candidates&, Executor&) = nullptr;
  void (*top_logits)(const float* logits, std::size_t rows, std::size_t columns, const Candidates&,
                     Executor&) = nullptr;
  // x: [N, K, inputs]. matrix: [V, inputs], of which the shortlists select rows.
  void (*shortlist_candidates)(const Shortlists&, const float* matrix, const float* x,
                               const Candidates&, Executor&) = nullptr;
  // matrix: 8-bit, with a scale [V] and a sum [V] for each row.
  void (*shortlist_candidates8)(const Shortlists&, const std::int8_t* matrix, const float* scales,
                                const std::int32_t* row_sums, const float* x, const Candidates&,
                                Executor&) = nullptr;
  void (*attention)(const Attention<float>&, Executor&) = nullptr;
  void (*attention16)(const Attention<Half>&, Executor&) = nullptr;
  // Rounds to nearest; clamps to the largest finite value.
  void (*to_half)(const float* x, std::size_t count, Half* y) = nullptr;
  // residual: added to x, or null. sum: receives that sum, or null.
  void (*add_norm)(const float* x, const float* residual, std::size_t rows, std::size_t columns,
                   const Norm&, float* sum, float* y, Executor&) = nullptr;
  // A recurrent unit (SSRU): next = f * state + (1 - f) * x and y = max(next, 0), where
  // f = 1 / (1 + e^-g). gates: [rows, 2 * columns], g and beside it x; others: [rows, columns].
  void (*recurrent_unit)(const float* gates, const float* state, std::size_t rows,
                         std::size_t columns, float* next, float* y, Executor&) = nullptr;
  // y = gelu(x) * g, by the approximation with tanh. x: [rows, 2 * columns], x and beside it g.
  void (*gated_gelu)(const float* x, std::size_t rows, std::size_t columns, float* y,
                     Executor&) = nullptr;
};

// The best kernels for this CPU.
const Kernels& host_kernels();

// Every kernel in portable C++: the reference implementation of the others. A library built with
// -D TRANSLATE_TRT_PLAIN=ON registers it on any CPU.
extern const Kernels plain;

// No kernels: only portable operators are registered (search_operators.cc, source_operators.cc).
// ONNX Runtime runs the bodies of the others, with matmuls that are many times faster than those of
// `plain` (docs/kernels.md).
extern const Kernels portable;
#ifdef TRANSLATE_TRT_NEON
extern const Kernels neon_dotprod;
#endif
#ifdef TRANSLATE_TRT_I8MM
extern const Kernels neon_i8mm;
#endif
#ifdef TRANSLATE_TRT_WASM
extern const Kernels wasm_simd128;
#endif
#ifdef TRANSLATE_TRT_AVX2
extern const Kernels avx2_fma;
#endif
#ifdef TRANSLATE_TRT_AVX_VNNI
extern const Kernels avx2_vnni;
#endif
#ifdef TRANSLATE_TRT_AVX512
extern const Kernels avx512_vnni;
#endif
#ifdef TRANSLATE_TRT_AMX
extern const Kernels amx_int8;
// avx512_vnni under names that say why AMX is not in use.
extern const Kernels amx_not_permitted, amx_not_correct;

// Whether matmuls of amx_int8 and avx512_vnni are equal in a self-test.
bool amx_is_correct();
#endif

}  // namespace translate_trt
