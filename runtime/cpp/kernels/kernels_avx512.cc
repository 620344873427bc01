// Kernel tables for AVX-512 with VNNI, and for AVX-512 with VNNI and AMX.

#include "kernels.h"

namespace translate_trt {
namespace avx512 {

struct GemmKernel;
extern const GemmKernel kU8S8Vnni;
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
void add_norm(const float*, const float*, std::size_t, std::size_t, const Norm&, float*, Executor&);
void recurrent_unit(const float*, const float*, std::size_t, std::size_t, float*, float*,
                    Executor&);
#ifdef TRANSLATE_TRT_AMX
extern const GemmKernel kU8S8Amx;
bool same_sums(const GemmKernel&, const GemmKernel&);
#endif

}  // namespace avx512

namespace {

template <const avx512::GemmKernel& kGemm>
void linear8(const Linear8& linear, const float* x, std::size_t rows, float* y,
             Executor& executor) {
  avx512::linear8(kGemm, linear, x, rows, y, executor);
}

template <const avx512::GemmKernel& kGemm>
void candidates8(const Matrix8& matrix, const float* bias, const float* x, std::size_t rows,
                 const Candidates& out, Executor& executor) {
  avx512::candidates8(kGemm, matrix, bias, x, rows, out, executor);
}

template <const avx512::GemmKernel& kGemm>
constexpr Kernels with(const char* name) {
  return {
      name,
      avx512::column_sums,
      linear8<kGemm>,
      candidates8<kGemm>,
      avx512::linear,
      avx512::vocabulary,
      avx512::candidates,
      avx512::top_logits,
      avx512::shortlist_candidates,
      avx512::shortlist_candidates8,
      avx512::attention,
      avx512::attention16,
      avx512::to_half,
      avx512::add_norm,
      avx512::recurrent_unit,
  };
}

}  // namespace

const Kernels avx512_vnni = with<avx512::kU8S8Vnni>("avx512_vnni");

#ifdef TRANSLATE_TRT_AMX

#ifdef TRANSLATE_TRT_EMULATED_TILES
const Kernels amx_int8 = with<avx512::kU8S8Amx>("amx_int8 (emulated)");
#else
const Kernels amx_int8 = with<avx512::kU8S8Amx>("amx_int8");
#endif
const Kernels amx_not_permitted =
    with<avx512::kU8S8Vnni>("avx512_vnni (the system does not permit amx_int8)");
const Kernels amx_not_correct =
    with<avx512::kU8S8Vnni>("avx512_vnni (amx_int8 computes something else)");

bool amx_is_correct() { return avx512::same_sums(avx512::kU8S8Vnni, avx512::kU8S8Amx); }

#endif

}  // namespace translate_trt
