// Candidates from shortlists: matmuls of a sentence's beams with scattered rows of the vocabulary
// matrix.

#include <algorithm>
#include <limits>

#include "gemm8.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

void top_logits(const float* logits, std::size_t rows, std::size_t columns, const Candidates& out,
                Executor& executor);

namespace {

constexpr std::size_t kTokens = 4, kBeams = 4;  // per tile
constexpr std::size_t kGreedyTokens = 16;       // per tile of a single beam
constexpr float kMasked = -1e9F;                // runtime/bundle/contract.py

// Arithmetic of a tile, as in `ByteProducts`, with FP32 operands.
struct FloatProducts {
  using Weight = float;
  using Input = float;
  using Sums = Floats;
  static constexpr std::size_t kStep = kLanes;

  static Floats zero() { return zeros(); }
  static Floats weights(const float* at, std::size_t rest) { return load(at, first_lanes(rest)); }
  static Floats inputs(const float* at, std::size_t rest) { return weights(at, rest); }
  static Floats add(Floats sum, Floats input, Floats weight) {
    return multiply_add(input, weight, sum);
  }
};

// Sums [token][beam] of four rows and four beams.
template <class Numbers>
__attribute__((noinline)) auto tile(const typename Numbers::Weight* const (&rows)[kTokens],
                                    const typename Numbers::Input* const (&beams)[kBeams],
                                    std::size_t inputs) {
  constexpr auto kAtOnce = kSums / kBeams;  // tokens with a sum for every beam
  typename Numbers::Sums sums[kTokens * kBeams];
  std::fill_n(sums, kTokens * kBeams, Numbers::zero());
  for (std::size_t first = 0; first < kTokens; first += kAtOnce) {
    for (std::size_t i = 0; i < inputs; i += Numbers::kStep) {
      const auto rest = inputs - i;
      decltype(Numbers::weights(rows[0], rest)) weights[kAtOnce];
#pragma GCC unroll 4
      for (std::size_t t = 0; t < kAtOnce; ++t) {
        weights[t] = Numbers::weights(rows[first + t] + i, rest);
      }
#pragma GCC unroll 4
      for (std::size_t b = 0; b < kBeams; ++b) {
        const auto input = Numbers::inputs(beams[b] + i, rest);
#pragma GCC unroll 4
        for (std::size_t t = 0; t < kAtOnce; ++t) {
          auto& sum = sums[(first + t) * kBeams + b];
          sum = Numbers::add(sum, input, weights[t]);
        }
      }
    }
  }
  return sums_of_rows(sums);
}

// Sums of sixteen rows and one beam. A beam sums in the same order as in `tile`, which would
// compute a single beam four times.
template <class Numbers>
__attribute__((noinline)) auto greedy_tile(
    const typename Numbers::Weight* const (&rows)[kGreedyTokens],
    const typename Numbers::Input* beam, std::size_t inputs) {
  typename Numbers::Sums sums[kGreedyTokens];
  std::fill_n(sums, kGreedyTokens, Numbers::zero());
  for (std::size_t first = 0; first < kGreedyTokens; first += kSums) {
    for (std::size_t i = 0; i < inputs; i += Numbers::kStep) {
      const auto rest = inputs - i;
      const auto input = Numbers::inputs(beam + i, rest);
      if (rest >= Numbers::kStep) {
#pragma GCC unroll 16
        for (std::size_t t = first; t < first + kSums; ++t) {
          sums[t] = Numbers::add(sums[t], input, Numbers::weights(rows[t] + i, Numbers::kStep));
        }
      } else {
#pragma GCC unroll 16
        for (std::size_t t = first; t < first + kSums; ++t) {
          sums[t] = Numbers::add(sums[t], input, Numbers::weights(rows[t] + i, rest));
        }
      }
    }
  }
  return sums_of_rows(sums);
}

// Calls emit(i, sums) for all tokens of a sentence with one beam: lane t is the sum of
// tokens[i + t]. Lanes beyond the last token repeat it.
template <class Numbers, class Emit>
void multiply_greedy(const typename Numbers::Weight* rows, const std::int64_t* tokens,
                     std::size_t count, const typename Numbers::Input* input, std::size_t size,
                     const Emit& emit) {
  const auto row = [&](std::size_t i) {
    return rows + static_cast<std::size_t>(tokens[std::min(i, count - 1)]) * size;
  };
  const typename Numbers::Weight* next[kGreedyTokens];
  for (std::size_t t = 0; t < kGreedyTokens; ++t) next[t] = row(t);
  for (std::size_t i = 0; i < count; i += kGreedyTokens) {
    const typename Numbers::Weight* here[kGreedyTokens];
    for (std::size_t t = 0; t < kGreedyTokens; ++t) {
      here[t] = next[t];
      next[t] = row(i + kGreedyTokens + t);
      prefetch(next[t], size * sizeof(typename Numbers::Weight));
    }
    emit(i, greedy_tile<Numbers>(here, input, size));
  }
}

// Calls emit(i, beam, lanes) for all tokens and beams: lane t * 4 + b is the sum of tokens[i + t]
// and beam + b. Indices beyond the last token or beam repeat it.
template <class Numbers, class Emit>
void multiply(const typename Numbers::Weight* rows, const std::int64_t* tokens, std::size_t count,
              const typename Numbers::Input* const* inputs, std::size_t beams, std::size_t size,
              const Emit& emit) {
  const auto row = [&](std::size_t i) {
    return rows + static_cast<std::size_t>(tokens[std::min(i, count - 1)]) * size;
  };
  for (std::size_t i = 0; i < count; i += kTokens) {
    for (std::size_t t = 0; t < kTokens; ++t) {
      prefetch(row(i + kTokens + t), size * sizeof(typename Numbers::Weight));
    }
    for (std::size_t beam = 0; beam < beams; beam += kBeams) {
      const typename Numbers::Weight* const weights[] = {row(i), row(i + 1), row(i + 2),
                                                         row(i + 3)};
      const typename Numbers::Input* here[kBeams];
      for (std::size_t b = 0; b < kBeams; ++b) here[b] = inputs[std::min(beam + b, beams - 1)];
      emit(i, beam, tile<Numbers>(weights, here, size));
    }
  }
}

// Computes candidates from logits of shortlisted tokens.
//
// fill(sentence, tokens, count, emit) must call emit(i, beam, logit) for all `count` tokens; the
// last ones are those of Candidates::columns.
template <class Fill>
void topk_of_shortlists(const Shortlists& shortlists, const Candidates& out, Executor& executor,
                        Arena& arena, const Fill& fill) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const auto rows = shortlists.sentences * shortlists.beams;
  const auto stride = shortlists.entries + out.lookups;
  auto* tokens = allocate<std::int64_t>(arena, shortlists.sentences * stride);
  auto* counts = allocate<std::size_t>(arena, shortlists.sentences);
  parallel_for(executor, shortlists.sentences, [&](std::size_t n) {
    auto* here = tokens + n * stride;
    const auto* list = shortlists.tokens + n * shortlists.entries;
    const auto* end =
        std::copy_if(list, list + shortlists.entries, here, [](auto t) { return t != 0; });
    counts[n] = static_cast<std::size_t>(end - here);
    std::copy_n(out.columns + n * shortlists.beams * out.lookups, out.lookups, here + counts[n]);
  });
  const auto width = std::max(*std::max_element(counts, counts + shortlists.sentences), out.count);
  auto* logits = allocate<float>(arena, rows * width);
  parallel_for(executor, shortlists.sentences, [&](std::size_t n) {
    auto* mine = logits + n * shortlists.beams * width;
    std::fill_n(mine, shortlists.beams * width, kNothing);
    auto* looked_up = out.at_columns + n * shortlists.beams * out.lookups;
    const auto count = counts[n] + out.lookups;
    fill(n, tokens + n * stride, count, [&](std::size_t i, std::size_t beam, float logit) {
      if (i >= count) return;
      const auto token = static_cast<std::size_t>(tokens[n * stride + i]);
      logit += shortlists.bias == nullptr ? 0 : shortlists.bias[token];
      (i < counts[n] ? mine[beam * width + i] : looked_up[beam * out.lookups + i - counts[n]]) =
          logit;
    });
  });
  top_logits(logits, rows, width, {out.count, 0, nullptr, out.values, out.indices, nullptr},
             executor);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto n = row / shortlists.beams;
    auto* values = out.values + row * out.count;
    auto* indices = out.indices + row * out.count;
    if (counts[n] == 0) {  // a finished sentence
      std::fill_n(values, out.count, kMasked);
      std::fill_n(indices, out.count, 0);
      std::fill_n(out.at_columns + row * out.lookups, out.lookups, 0.0F);
      continue;
    }
    // Of the best token: the difference of two large numbers, as of a banned one, would be rounded.
    const float log_total = logits[row * width + static_cast<std::size_t>(indices[0])] - values[0];
    for (auto i = row * out.lookups; i < (row + 1) * out.lookups; ++i) {
      out.at_columns[i] -= log_total;
    }
    for (std::size_t i = 0; i < out.count; ++i) {
      indices[i] = tokens[n * stride + static_cast<std::size_t>(indices[i])];
    }
  }
}

}  // namespace

void shortlist_candidates(const Shortlists& shortlists, const float* matrix, const float* x,
                          const Candidates& out, Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto rows = shortlists.sentences * shortlists.beams;
  auto* inputs = allocate<const float*>(workspace.arena, rows);
  for (std::size_t row = 0; row < rows; ++row) inputs[row] = x + row * shortlists.inputs;
  topk_of_shortlists(
      shortlists, out, executor, workspace.arena,
      [&](std::size_t n, const std::int64_t* tokens, std::size_t count, const auto& emit) {
        if (shortlists.beams == 1) {
          multiply_greedy<FloatProducts>(
              matrix, tokens, count, inputs[n], shortlists.inputs, [&](std::size_t i, Floats sums) {
                alignas(64) float lanes[kLanes];
                store(lanes, sums);
                for (std::size_t t = 0; t < std::min(kGreedyTokens, count - i); ++t) {
                  emit(i + t, 0, lanes[t]);
                }
              });
          return;
        }
        multiply<FloatProducts>(
            matrix, tokens, count, inputs + n * shortlists.beams, shortlists.beams,
            shortlists.inputs, [&](std::size_t i, std::size_t beam, Floats sums) {
              alignas(64) float lanes[kLanes];
              store(lanes, sums);
              for (std::size_t t = 0; t < kTokens; ++t) {
                for (std::size_t b = 0; b < std::min(kBeams, shortlists.beams - beam); ++b) {
                  emit(i + t, beam + b, lanes[t * kBeams + b]);
                }
              }
            });
      });
}

void shortlist_candidates8(const Shortlists& shortlists, const std::int8_t* matrix,
                           const float* scales, const std::int32_t* row_sums, const float* input,
                           const Candidates& out, Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto rows = shortlists.sentences * shortlists.beams;
  const auto x = quantize(input, rows, shortlists.inputs, false, kGemm8, executor, workspace.arena);
  auto* inputs = allocate<const Activation8*>(workspace.arena, rows);
  auto* input_scales = allocate<float>(workspace.arena, rows);
  for (std::size_t i = 0; i < x.count; ++i) {
    const auto* row = x.values + kGemm8.offset(i, 0, shortlists.inputs);
    std::fill(inputs + x.begins[i], inputs + x.begins[i + 1],
              reinterpret_cast<const Activation8*>(row));
    std::fill(input_scales + x.begins[i], input_scales + x.begins[i + 1], x.scales[i]);
  }
  topk_of_shortlists(
      shortlists, out, executor, workspace.arena,
      [&](std::size_t n, const std::int64_t* tokens, std::size_t count, const auto& emit) {
        const auto* row_scales = input_scales + n * shortlists.beams;
        if (shortlists.beams == 1) {
          multiply_greedy<ByteProducts>(
              matrix, tokens, count, inputs[n], shortlists.inputs, [&](std::size_t i, Ints sums) {
                alignas(64) std::int32_t lanes[kLanes];
                store(lanes, sums);
                for (std::size_t t = 0; t < std::min(kGreedyTokens, count - i); ++t) {
                  const auto token = static_cast<std::size_t>(tokens[i + t]);
                  const auto sum = lanes[t] - x.zero * row_sums[token];
                  emit(i + t, 0, static_cast<float>(sum) * row_scales[0] * scales[token]);
                }
              });
          return;
        }
        multiply<ByteProducts>(
            matrix, tokens, count, inputs + n * shortlists.beams, shortlists.beams,
            shortlists.inputs, [&](std::size_t i, std::size_t beam, Ints sums) {
              alignas(64) std::int32_t lanes[kLanes];
              store(lanes, sums);
              for (std::size_t t = 0; t < std::min(kTokens, count - i); ++t) {
                const auto token = static_cast<std::size_t>(tokens[i + t]);
                for (std::size_t b = 0; b < std::min(kBeams, shortlists.beams - beam); ++b) {
                  const auto sum = lanes[t * kBeams + b] - x.zero * row_sums[token];
                  emit(i + t, beam + b,
                       static_cast<float>(sum) * row_scales[beam + b] * scales[token]);
                }
              }
            });
      });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
