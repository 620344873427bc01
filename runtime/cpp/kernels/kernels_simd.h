// The kernels of one instruction set, and their table.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {

struct GemmKernel;
extern const GemmKernel kGemm8;
void column_sums(const Matrix8&, std::int32_t*);
void linear8(const GemmKernel&, const Linear8&, const float*, std::size_t, float*, Executor&);
void candidates8(const GemmKernel&, const Matrix8&, const float*, const float*, std::size_t,
                 const Candidates&, Executor&);
void linear(const Linear&, const float*, std::size_t, float*, Executor&);
Vocabulary vocabulary(const float*, const float*, std::size_t, std::size_t, Arena&);
void candidates(const Vocabulary&, const float*, const float*, std::size_t, const Candidates&,
                Executor&);
void top_logits(const float*, std::size_t, std::size_t, const Candidates&, Executor&);
void shortlist_candidates(const Shortlists&, const float*, const float*, const Candidates&,
                          Executor&);
void shortlist_candidates8(const Shortlists&, const std::int8_t*, const float*, const std::int32_t*,
                           const float*, const Candidates&, Executor&);
void attention(const Attention<float>&, Executor&);
void attention16(const Attention<Half>&, Executor&);
void to_half(const float*, std::size_t, Half*);
void add_norm(const float*, const float*, std::size_t, std::size_t, const Norm&, float*, float*,
              Executor&);
void recurrent_unit(const float*, const float*, std::size_t, std::size_t, float*, float*,
                    Executor&);
void gated_gelu(const float*, std::size_t, std::size_t, float*, Executor&);

template <const GemmKernel& kGemm>
void linear8_with(const Linear8& linear, const float* x, std::size_t rows, float* y,
                  Executor& executor) {
  linear8(kGemm, linear, x, rows, y, executor);
}

template <const GemmKernel& kGemm>
void candidates8_with(const Matrix8& matrix, const float* bias, const float* x, std::size_t rows,
                      const Candidates& out, Executor& executor) {
  candidates8(kGemm, matrix, bias, x, rows, out, executor);
}

// All kernels, with the 8-bit matmuls of one GEMM kernel.
template <const GemmKernel& kGemm>
constexpr Kernels kernels_with(const char* name, bool (*pairs_fit)(const Matrix8&) = nullptr) {
  return {
      name,
      column_sums,
      pairs_fit,
      linear8_with<kGemm>,
      candidates8_with<kGemm>,
      linear,
      vocabulary,
      candidates,
      top_logits,
      shortlist_candidates,
      shortlist_candidates8,
      attention,
      attention16,
      to_half,
      add_norm,
      recurrent_unit,
      gated_gelu,
  };
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
