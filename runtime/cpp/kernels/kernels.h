// What the operators compute, without ONNX Runtime: plain arrays in, plain arrays out.
//
// All arrays are dense and row-major, floats are binary32. Letters as in
// runtime/bundle/contract.py: N sentences, K beams, P slots of a cache, S source tokens, H heads, D
// columns of a head.
//
// Files that are compiled for special instructions include this one, so that it has no inline
// functions and no templates of the standard library (docs/kernels.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace translate_trt {

class Arena;          // workspace.h
class WorkspacePool;  // workspace.h

// The body of a parallel loop: run(closure, index) is one task.
struct TaskFunction {
  void (*run)(const void* closure, std::size_t index);
  const void* closure;
};

// What a kernel runs on: threads, and scratch memory for a call or a task.
class Executor {
 public:
  // Run tasks 0 ... count - 1, each once, in any order, perhaps at the same time.
  virtual void run(std::size_t count, const TaskFunction& task) = 0;
  virtual WorkspacePool& workspaces() = 0;

 protected:
  ~Executor() = default;
};

// A matrix [inputs, outputs] in 8 bits, in blocks of 16 columns: element (i, o) stands at
// [o / 16][i / 4][o % 16][i % 4], so that 64 consecutive bytes are what one instruction multiplies.
struct Matrix8 {
  const std::int8_t* weights;
  const float* scales;              // [blocks * 16]
  const std::int32_t* column_sums;  // [blocks * 16]
  std::size_t inputs;               // a multiple of 4
  std::size_t outputs;              // of the matrix; blocks may hold a few columns more
  std::size_t blocks;               // of 16 columns
};

// Residual and normalization that follow a product (section 5.4 of the paper, equation of
// "Layer Normalization", Ba et al. 2016).
struct Norm {
  const float* gamma;
  const float* beta;
  float epsilon;
};

// max(y, 0), y times the normal distribution's P(Y < y), y / (1 + e^-y).
enum class Activation { none, relu, gelu, swish };

// What is done to a product, in this order.
struct Epilogue {
  const float* bias;  // [outputs]
  Activation activation;
  const float* residual;  // [rows, outputs] or null
  const Norm* norm;       // or null
  float* normalized;      // [rows, outputs] of what the norm gives; null: in place of the sum
};

struct Linear8 {
  Matrix8 matrix;
  bool positive;  // the input has no negative value
  Epilogue epilogue;
};

// A matrix [inputs, outputs] in panels of 64 columns: element (i, o) stands at
// [o / 64][i][o % 64], so that a panel is read from its first byte to its last.
struct Matrix {
  const float* weights;
  std::size_t inputs;
  std::size_t outputs;  // of the matrix; the last panel may hold more columns
  std::size_t panels;   // of 64 columns
};

struct Linear {
  Matrix matrix;
  Epilogue epilogue;
};

// Candidates of every row: the best `count` log-probabilities, best first, of equal ones the lower
// index first; and the log-probability at one given column.
struct Candidates {
  std::size_t count;
  const std::int64_t* column;  // [rows]
  float* values;               // [rows, count]
  std::int64_t* indices;       // [rows, count]
  float* at_column;            // [rows]
};

// A matrix [inputs, outputs] whose columns are rows of numbers in memory, such as a vocabulary's,
// with what finds the best columns for a row: the same in 16 bits, and how far that can be off. A
// bias is added to the products.
struct Vocabulary {
  // 16 columns by two inputs: element (i, o) is at [o / 16][i / 2][o % 16][i % 2].
  struct alignas(64) Line {
    std::int16_t words[32];
  };

  std::size_t inputs, outputs, blocks;
  const Line* lines;    // [blocks, pairs of inputs], the last pair filled up
  const float* scales;  // [blocks * 16]
  const float* bias;    // [blocks * 16]
  // Of a column at most: the norms of its integers, of itself in 16 bits, and of the difference
  // that these make.
  float integer_norm, norm, error;
  // [inputs], of the columns in 16 bits and these differences; without those that never come.
  const float *mean, *mean_error;
};

// The tokens that each sentence may choose from, besides `Candidates::column`, which is the same
// for all beams of a sentence.
struct Shortlists {
  std::size_t sentences, beams, entries, inputs;  // N, K, W; columns of the vocabulary's matrix
  const std::int64_t* tokens;                     // [N, W], 0 in empty places
  const float* bias;                              // [V], of the logits, or null
};

// A number of binary16, by its bits.
using Half = std::uint16_t;

constexpr float kMaxHalf = 65504;  // that there is

// Attention of all queries of a sentence, its beams or its source tokens, over the same keys and
// values, floats or of `Half`.
template <class Number>
struct Attention {
  std::size_t sentences, queries, heads, positions;  // N, K or S, H, P or S
  std::size_t size;                                  // D, of keys and of values
  const float* query;                                // [N, queries, query_stride], head h at h * D
  std::size_t query_stride;
  const Number* key;  // of sentence n, head h and place p at the sum of these times their strides
  const Number* value;
  std::size_t sentence_stride, head_stride, position_stride;
  const float* bias;      // [N, bias_rows, places]; what is below -1e8 counts nothing
  std::size_t bias_rows;  // queries, or 1 for all of them
  float* context;         // [N, queries, H * D]
};

// The kernels that one kind of processor has. Operators without one are not registered: ONNX
// Runtime runs their bodies.
struct Kernels {
  const char* name;
  void (*column_sums)(const Matrix8&, std::int32_t* sums) = nullptr;
  void (*linear8)(const Linear8&, const float* x, std::size_t rows, float* y, Executor&) = nullptr;
  // bias [blocks * 16].
  void (*candidates8)(const Matrix8&, const float* bias, const float* x, std::size_t rows,
                      const Candidates&, Executor&) = nullptr;
  void (*linear)(const Linear&, const float* x, std::size_t rows, float* y, Executor&) = nullptr;
  // From columns [outputs, inputs] and a bias [outputs] or null; its arrays are the arena's.
  Vocabulary (*vocabulary)(const float* columns, const float* bias, std::size_t outputs,
                           std::size_t inputs, Arena&) = nullptr;
  // `columns` are those that the vocabulary was made from.
  void (*candidates)(const Vocabulary&, const float* columns, const float* x, std::size_t rows,
                     const Candidates&, Executor&) = nullptr;
  void (*top_logits)(const float* logits, std::size_t rows, std::size_t columns, const Candidates&,
                     Executor&) = nullptr;
  // x [N, K, inputs] times rows of a matrix [V, inputs].
  void (*shortlist_candidates)(const Shortlists&, const float* matrix, const float* x,
                               const Candidates&, Executor&) = nullptr;
  // In 8 bits, with a scale [V] for each of its rows, and their sums [V].
  void (*shortlist_candidates8)(const Shortlists&, const std::int8_t* matrix, const float* scales,
                                const std::int32_t* row_sums, const float* x, const Candidates&,
                                Executor&) = nullptr;
  void (*attention)(const Attention<float>&, Executor&) = nullptr;
  void (*attention16)(const Attention<Half>&, Executor&) = nullptr;
  // The nearest of `Half`; what is beyond them becomes the largest.
  void (*to_half)(const float* x, std::size_t count, Half* y) = nullptr;
  void (*add_norm)(const float* x, const float* residual, std::size_t rows, std::size_t columns,
                   const Norm&, float* y, Executor&) = nullptr;
};

// Those for this processor.
const Kernels& host_kernels();

// Every kernel in plain C++: the reference of the others. The library of -D TRANSLATE_TRT_PLAIN=ON
// registers it, on any processor.
extern const Kernels plain;

// Empty: on a processor without kernels of its own only the operators of beam_search.h are
// registered. ONNX Runtime runs the bodies of the others at least as fast as `plain` would.
extern const Kernels portable;
#ifdef TRANSLATE_TRT_AVX512
extern const Kernels avx512_vnni;
#endif
#ifdef TRANSLATE_TRT_AMX
extern const Kernels amx_int8;
// avx512_vnni as well, but their names say why they are in use where there is AMX.
extern const Kernels amx_not_permitted, amx_not_correct;

// Whether products of amx_int8 are those of avx512_vnni, by trying.
bool amx_is_correct();
#endif

}  // namespace translate_trt
