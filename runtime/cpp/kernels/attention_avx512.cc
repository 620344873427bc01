// Attention of a sentence's beams or source tokens over the keys and values that they share.
//
// Reading the caches dominates the time of a decoding step: a key or value is read once for all
// beams, and not at all if no beam attends to it. FP16 halves the bytes to read. In the encoder,
// with many queries per sentence, keys and values stay in the CPU cache.

#include <algorithm>

#include "avx512.h"
#include "kernels.h"

namespace translate_trt::avx512 {
namespace {

constexpr float kHidden = -1e8F;
constexpr std::size_t kGroup = 4;  // queries, positions and registers processed together
constexpr std::size_t kMany = 16;  // number of queries that indicates an encoder

// The positions of a sentence that at least one query attends to.
struct Visible {
  const std::int32_t* positions;  // [count]
  const float* bias;              // [bias_rows, width]
  std::size_t count;
  std::size_t width;  // at least count, padded by a whole register
};

// Loads masked lanes of keys or values as floats; the other lanes are zero.
inline __m512 numbers(__mmask16 mask, const float* from) {
  return _mm512_maskz_loadu_ps(mask, from);
}
inline __m512 numbers(__mmask16 mask, const Half* from) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
}

template <class Number>
Visible visible_positions(const Attention<Number>& a, std::size_t sentence, Arena& arena) {
  const auto* bias = a.bias + sentence * a.bias_rows * a.positions;
  // Compressed positions are stored as whole registers, so one more is needed.
  const auto width = (a.positions / kLanes + 2) * kLanes;
  auto* positions = allocate<std::int32_t>(arena, width);
  auto* kept = allocate<float>(arena, a.bias_rows * width);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 hidden = _mm512_set1_ps(kHidden);
  std::size_t count = 0;
  for (std::size_t position = 0; position < a.positions; position += kLanes) {
    const auto mask = first_lanes(a.positions - position);
    __mmask16 seen = 0;
    for (std::size_t row = 0; row < a.bias_rows; ++row) {
      const __m512 here = _mm512_maskz_loadu_ps(mask, bias + row * a.positions + position);
      seen |= _mm512_mask_cmp_ps_mask(mask, here, hidden, _CMP_GT_OQ);
    }
    const __m512i here = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(position)));
    _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi32(seen, here));
    for (std::size_t row = 0; row < a.bias_rows; ++row) {
      const __m512 here = _mm512_maskz_loadu_ps(mask, bias + row * a.positions + position);
      _mm512_storeu_ps(kept + row * width + count, _mm512_maskz_compress_ps(seen, here));
    }
    count += static_cast<std::size_t>(__builtin_popcount(seen));
  }
  return {positions, kept, count, width};
}

// Scores of `Queries` queries at every visible position, to weights[row * width + i]. Prefetches
// the values, `next`.
template <int Queries, class Number>
void scores(const Attention<Number>& a, const Visible& visible, const float* query,
            const Number* keys, const Number* next, float* weights) {
  for (std::size_t i = 0; i < visible.count; i += kGroup) {
    const Number* key[kGroup];
    for (std::size_t j = 0; j < kGroup; ++j) {
      const auto position =
          visible.positions[std::min(i + j, visible.count - 1)] * a.position_stride;
      key[j] = keys + position;
      // The hardware prefetcher cannot predict these positions.
      prefetch(next + position, a.size * sizeof(Number));
    }
    __m512 sums[16];
    std::fill_n(sums, 16, _mm512_setzero_ps());
    for (std::size_t d = 0; d < a.size; d += kLanes) {
      const auto mask = first_lanes(a.size - d);
      __m512 k[kGroup];
      for (std::size_t j = 0; j < kGroup; ++j) k[j] = numbers(mask, key[j] + d);
      for (int row = 0; row < Queries; ++row) {
        const __m512 q = _mm512_maskz_loadu_ps(mask, query + row * a.query_stride + d);
        for (std::size_t j = 0; j < kGroup; ++j) {
          sums[row * kGroup + j] = _mm512_fmadd_ps(q, k[j], sums[row * kGroup + j]);
        }
      }
    }
    alignas(64) float found[16];
    _mm512_store_ps(found, sums_of_rows(sums));
    for (int row = 0; row < Queries; ++row) {
      std::copy_n(found + row * kGroup, kGroup, weights + row * visible.width + i);
    }
  }
}

// Replaces scores by unnormalized softmax weights, with the bias added; returns the normalizing
// factor.
float softmax(float* weights, const float* bias, std::size_t count) {
  __m512 most = _mm512_set1_ps(-3e38F);
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto mask = first_lanes(count - i);
    const __m512 score = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, weights + i),
                                       _mm512_maskz_loadu_ps(mask, bias + i));
    most = _mm512_mask_max_ps(most, mask, most, score);
    _mm512_mask_storeu_ps(weights + i, mask, score);
  }
  const __m512 shift = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 sum = _mm512_setzero_ps();
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto mask = first_lanes(count - i);
    const __m512 score = _mm512_maskz_loadu_ps(mask, weights + i);
    const __m512 weight = _mm512_maskz_mov_ps(mask, exponential(_mm512_sub_ps(score, shift)));
    sum = _mm512_add_ps(sum, weight);
    _mm512_mask_storeu_ps(weights + i, mask, weight);
  }
  return 1.0F / _mm512_reduce_add_ps(sum);
}

// Weighted sums of values for `Queries` queries, to context[row * heads * size + d]. Prefetches the
// keys of the next head, `next`.
template <int Queries, class Number>
void contexts(const Attention<Number>& a, const Visible& visible, const float* weights,
              const float* factors, const Number* values, const Number* next, float* context) {
  for (std::size_t d = 0; d < a.size; d += kGroup * kLanes) {
    __mmask16 masks[kGroup];
    for (std::size_t j = 0; j < kGroup; ++j) {
      masks[j] = d + j * kLanes < a.size ? first_lanes(a.size - d - j * kLanes) : __mmask16(0);
    }
    __m512 sums[Queries][kGroup];
    for (auto& row : sums) std::fill_n(row, kGroup, _mm512_setzero_ps());
    for (std::size_t i = 0; i < visible.count; ++i) {
      const auto position = visible.positions[i] * a.position_stride;
      const Number* value = values + position + d;
      prefetch(next + position + d, std::min(a.size - d, kGroup * kLanes) * sizeof(Number));
      __m512 v[kGroup];
      for (std::size_t j = 0; j < kGroup; ++j) v[j] = numbers(masks[j], value + j * kLanes);
      for (int row = 0; row < Queries; ++row) {
        const __m512 weight = _mm512_set1_ps(weights[row * visible.width + i]);
        for (std::size_t j = 0; j < kGroup; ++j) {
          sums[row][j] = _mm512_fmadd_ps(weight, v[j], sums[row][j]);
        }
      }
    }
    for (int row = 0; row < Queries; ++row) {
      for (std::size_t j = 0; j < kGroup; ++j) {
        _mm512_mask_storeu_ps(context + row * a.heads * a.size + d + j * kLanes, masks[j],
                              _mm512_mul_ps(sums[row][j], _mm512_set1_ps(factors[row])));
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
  scores<Queries>(a, visible, a.query + query * a.query_stride + head * a.size, a.key + plane,
                  a.value + plane, weights);
  float factors[Queries];
  for (int row = 0; row < Queries; ++row) {
    const auto bias_row = a.bias_rows == 1 ? 0 : begin + row;
    factors[row] = softmax(weights + row * visible.width, visible.bias + bias_row * visible.width,
                           visible.count);
  }
  contexts<Queries>(a, visible, weights, factors, a.value + plane, a.key + next,
                    a.context + (query * a.heads + head) * a.size);
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
    return;
  }
  auto* weights = allocate<float>(arena, kGroup * visible.width);
  for (auto head = begin; head < end; ++head) {
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
  const __m512 most = _mm512_set1_ps(kMaxHalf), least = _mm512_set1_ps(-kMaxHalf);
  for (std::size_t i = 0; i < count; i += kLanes) {
    const auto mask = first_lanes(count - i);
    const __m512 values = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 limited = _mm512_max_ps(_mm512_min_ps(values, most), least);
    const __m256i halves = _mm512_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_mask_storeu_epi16(y + i, mask, halves);
  }
}

}  // namespace translate_trt::avx512
