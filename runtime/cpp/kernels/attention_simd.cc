// Attention of a sentence's beams or source tokens over the keys and values that they share.
//
// Reading the caches dominates the time of a decoding step: a key or value is read once for all
// beams, and not at all if no beam attends to it. FP16 halves the bytes to read. In the encoder,
// with many queries per sentence, keys and values stay in the CPU cache.

#include <algorithm>

#include "kernels.h"
#include "simd.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {
namespace {

constexpr float kHidden = -1e8F;
constexpr std::size_t kGroup = 4;  // queries, positions and registers processed together
// Positions or registers that have a sum for every query at the same time.
constexpr std::size_t kAtOnce = kSums / kGroup;
constexpr std::size_t kMany = 16;  // number of queries that indicates an encoder

// The positions of a sentence that at least one query attends to.
struct Visible {
  const std::int32_t* positions;  // [count]
  float* bias;                    // [bias_rows, width], of the first head if heads differ
  std::size_t count;
  std::size_t width;  // at least count, padded by a whole register
};

template <class Number>
Visible visible_positions(const Attention<Number>& a, std::size_t sentence, Arena& arena) {
  const auto* bias = a.bias + sentence * a.bias_heads * a.bias_rows * a.positions;
  // Compressed positions are stored as whole registers, so one more is needed.
  const auto width = (a.positions / kLanes + 2) * kLanes;
  auto* positions = allocate<std::int32_t>(arena, width);
  auto* kept = allocate<float>(arena, a.bias_rows * width);
  const Floats hidden = broadcast(kHidden);
  std::size_t count = 0;
  for (std::size_t position = 0; position < a.positions; position += kLanes) {
    const auto lanes = first_lanes(a.positions - position);
    unsigned seen = 0;
    for (std::size_t row = 0; row < a.bias_rows; ++row) {
      seen |= greater(load(bias + row * a.positions + position, lanes), hidden, lanes);
    }
    const Ints here = add(lane_numbers(), broadcast_int(static_cast<std::int32_t>(position)));
    store_selected(positions + count, here, seen);
    for (std::size_t row = 0; row < a.bias_rows; ++row) {
      store_selected(kept + row * width + count, load(bias + row * a.positions + position, lanes),
                     seen);
    }
    count += static_cast<std::size_t>(__builtin_popcount(seen));
  }
  return {positions, kept, count, width};
}

// Replaces the bias of the visible positions by that of another head.
template <class Number>
void read_bias(const Attention<Number>& a, const Visible& visible, std::size_t sentence,
               std::size_t head) {
  const auto first = (sentence * a.bias_heads + head) * a.bias_rows;
  for (std::size_t row = 0; row < a.bias_rows; ++row) {
    const auto* bias = a.bias + (first + row) * a.positions;
    auto* kept = visible.bias + row * visible.width;
    for (std::size_t i = 0; i < visible.count; ++i) kept[i] = bias[visible.positions[i]];
  }
}

// Scores of `Queries` queries at the first kGroup of `count` positions; that of query `row` at
// position j is in lane row * kGroup + j. Prefetches the values, `next`.
template <int Queries, class Number>
Floats scores_of_group(const Attention<Number>& a, const std::int32_t* positions, std::size_t count,
                       const float* query, const Number* keys, const Number* next) {
  const Number* key[kGroup];
  for (std::size_t j = 0; j < kGroup; ++j) {
    const auto position = positions[std::min(j, count - 1)] * a.position_stride;
    key[j] = keys + position;
    // The hardware prefetcher cannot predict these positions.
    prefetch(next + position, a.size * sizeof(Number));
  }
  Floats sums[16];
#pragma GCC unroll 16
  for (auto& one : sums) one = zeros();
#pragma GCC unroll 4
  for (std::size_t first = 0; first < kGroup; first += kAtOnce) {
    Floats totals[Queries][kAtOnce];  // in registers, as the loops over them are unrolled
#pragma GCC unroll 4
    for (int row = 0; row < Queries; ++row) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kAtOnce; ++j) totals[row][j] = zeros();
    }
    for (std::size_t d = 0; d < a.size; d += kLanes) {
      const auto lanes = first_lanes(a.size - d);
      Floats k[kAtOnce];
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kAtOnce; ++j) k[j] = load(key[first + j] + d, lanes);
#pragma GCC unroll 4
      for (int row = 0; row < Queries; ++row) {
        const Floats q = load(query + row * a.query_stride + d, lanes);
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kAtOnce; ++j) {
          totals[row][j] = multiply_add(q, k[j], totals[row][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (int row = 0; row < Queries; ++row) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kAtOnce; ++j) sums[row * kGroup + first + j] = totals[row][j];
    }
  }
  return sums_of_rows(sums);
}

// Scores of `Queries` queries at every visible position, with their biases, to
// weights[row * width + i]. most: receives the largest of each query. A row's scores are stored
// sixteen at a time, since `softmax` would wait for smaller stores.
template <int Queries, class Number>
void scores(const Attention<Number>& a, const Visible& visible, const float* query,
            const float* const (&bias)[Queries], const Number* keys, const Number* next,
            float* weights, Floats (&most)[Queries]) {
  for (auto& one : most) one = broadcast(-3e38F);
  for (std::size_t i = 0; i < visible.count; i += kLanes) {
    Floats rows[kGroup] = {zeros(), zeros(), zeros(), zeros()};
    for (std::size_t j = 0; j < kLanes && i + j < visible.count; j += kGroup) {
      rows[j / kGroup] = scores_of_group<Queries>(a, visible.positions + i + j,
                                                  visible.count - i - j, query, keys, next);
    }
    transpose_fours(rows);
    const auto lanes = first_lanes(visible.count - i);
#pragma GCC unroll 4
    for (int row = 0; row < Queries; ++row) {
      const Floats score = rows[row] + load(bias[row] + i, lanes);
      most[row] = keep(max(most[row], score), lanes, most[row]);
      store(weights + row * visible.width + i, score);
    }
  }
}

// Replaces scores, the largest of which is `most`, by unnormalized softmax weights; returns the
// normalizing factor. Loads and stores whole registers, because loads wait for masked stores.
float softmax(float* weights, float most, std::size_t count) {
  const Floats shift = broadcast(most);
  Floats total = zeros();
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto lanes = first_lanes(count - i);
    const Floats weight = keep(exponential(load(weights + i) - shift), lanes, zeros());
    total = total + weight;
    store(weights + i, weight);
  }
  return 1.0F / sum(total);
}

// Weighted sums of values for `Queries` queries, to context[row * heads * size + d]. Prefetches the
// keys of the next head, `next`.
template <int Queries, class Number>
void contexts(const Attention<Number>& a, const Visible& visible, const float* weights,
              const float* factors, const Number* values, const Number* next, float* context) {
  for (std::size_t d = 0; d < a.size; d += kAtOnce * kLanes) {
    Lanes lanes[kAtOnce];
    for (std::size_t j = 0; j < kAtOnce; ++j) {
      const auto begin = d + j * kLanes;
      lanes[j] = begin < a.size ? first_lanes(a.size - begin) : Lanes{};
    }
    Floats sums[Queries][kAtOnce];
#pragma GCC unroll 4
    for (int row = 0; row < Queries; ++row) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kAtOnce; ++j) sums[row][j] = zeros();
    }
    for (std::size_t i = 0; i < visible.count; ++i) {
      const auto position = visible.positions[i] * a.position_stride;
      const Number* value = values + position + d;
      prefetch(next + position + d, std::min(a.size - d, kAtOnce * kLanes) * sizeof(Number));
      Floats v[kAtOnce];
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kAtOnce; ++j) v[j] = load(value + j * kLanes, lanes[j]);
#pragma GCC unroll 4
      for (int row = 0; row < Queries; ++row) {
        const Floats weight = broadcast(weights[row * visible.width + i]);
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kAtOnce; ++j) {
          sums[row][j] = multiply_add(weight, v[j], sums[row][j]);
        }
      }
    }
#pragma GCC unroll 4
    for (int row = 0; row < Queries; ++row) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kAtOnce; ++j) {
        store(context + row * a.heads * a.size + d + j * kLanes,
              sums[row][j] * broadcast(factors[row]), lanes[j]);
      }
    }
  }
}

// Attention of queries [begin, begin + Queries) of one sentence and head. weights: scratch buffer
// [Queries, visible.width].
template <int Queries, class Number>
void attend(const Attention<Number>& a, const Visible& visible, std::size_t sentence,
            std::size_t head, std::size_t begin, float* weights) {
  const auto query = sentence * a.queries + begin;
  const auto plane = sentence * a.sentence_stride + head * a.head_stride;
  const auto next = head + 1 < a.heads ? plane + a.head_stride : plane;
  const float* bias[Queries];
  for (int row = 0; row < Queries; ++row) {
    bias[row] = visible.bias + (a.bias_rows == 1 ? 0 : (begin + row) * visible.width);
  }
  Floats most[Queries];
  scores<Queries>(a, visible, a.query + query * a.query_stride + head * a.size, bias, a.key + plane,
                  a.value + plane, weights, most);
  float factors[Queries];
  for (int row = 0; row < Queries; ++row) {
    factors[row] = softmax(weights + row * visible.width, largest(most[row]), visible.count);
  }
  contexts<Queries>(a, visible, weights, factors, a.value + plane, a.key + next,
                    a.context + (query * a.heads + head) * a.size);
  if (a.weights == nullptr) return;
  auto* normalized = a.weights + ((sentence * a.heads + head) * a.queries + begin) * a.positions;
  std::fill_n(normalized, Queries * a.positions, 0.0F);
  for (int row = 0; row < Queries; ++row, normalized += a.positions) {
    for (std::size_t i = 0; i < visible.count; ++i) {
      normalized[visible.positions[i]] = weights[row * visible.width + i] * factors[row];
    }
  }
}

template <class Number>
void attend_heads(const Attention<Number>& a, std::size_t sentence, std::size_t begin,
                  std::size_t end, Arena& arena) {
  const auto visible = visible_positions(a, sentence, arena);
  if (visible.count == 0) {  // an idle row
    const auto width = a.heads * a.size;
    for (auto query = sentence * a.queries; query < (sentence + 1) * a.queries; ++query) {
      std::fill(a.context + query * width + begin * a.size,
                a.context + query * width + end * a.size, 0.0F);
    }
    if (a.weights != nullptr) {
      const auto plane = a.queries * a.positions;
      std::fill_n(a.weights + (sentence * a.heads + begin) * plane, (end - begin) * plane, 0.0F);
    }
    return;
  }
  auto* weights = allocate<float>(arena, kGroup * visible.width);
  for (auto head = begin; head < end; ++head) {
    if (a.bias_heads > 1) read_bias(a, visible, sentence, head);
    for (std::size_t query = 0; query < a.queries; query += kGroup) {
      switch (std::min(kGroup, a.queries - query)) {
        case 1:
          attend<1>(a, visible, sentence, head, query, weights);
          break;
        case 2:
          attend<2>(a, visible, sentence, head, query, weights);
          break;
        case 3:
          attend<3>(a, visible, sentence, head, query, weights);
          break;
        default:
          attend<4>(a, visible, sentence, head, query, weights);
          break;
      }
    }
  }
}

template <class Number>
void attend_sentences(const Attention<Number>& a, Executor& executor) {
  // With few sentences, threads also share the heads of a sentence.
  const auto shared = a.queries > kMany ? a.heads : std::min<std::size_t>(a.heads, 2);
  const auto parts = a.sentences < 4 ? shared : 1;
  parallel_for(executor, a.sentences * parts, [&](std::size_t task) {
    const Workspace workspace(executor.workspaces());
    const auto part = task % parts;
    attend_heads(a, task / parts, part * a.heads / parts, (part + 1) * a.heads / parts,
                 workspace.arena);
  });
}

}  // namespace

void attention(const Attention<float>& a, Executor& executor) { attend_sentences(a, executor); }

void attention16(const Attention<Half>& a, Executor& executor) { attend_sentences(a, executor); }

void to_half(const float* x, std::size_t count, Half* y) {
  const Floats most = broadcast(kMaxHalf), least = broadcast(-kMaxHalf);
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto lanes = first_lanes(count - i);
    store(y + i, max(min(load(x + i, lanes), most), least), lanes);
  }
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
