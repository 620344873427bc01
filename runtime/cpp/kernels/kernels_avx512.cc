// What processors with AVX-512 and its 8-bit products (VNNI) compute with.

#include "kernels.h"

namespace translate_trt {
namespace avx512 {

void column_sums(const Matrix8&, std::int32_t*);
void linear8(const Linear8&, const float*, std::size_t, float*, const ParallelFor&);
void candidates8(const Matrix8&, const float*, std::size_t, const Candidates&, const ParallelFor&);
void top_logits(const float*, std::size_t, std::size_t, const Candidates&, const ParallelFor&);
void attention(const Attention&, const ParallelFor&);
void add_norm(const float*, const float*, std::size_t, std::size_t, const Norm&, float*,
              const ParallelFor&);

}  // namespace avx512

const Kernels avx512_vnni = {
    "avx512_vnni",      avx512::column_sums, avx512::linear8,  avx512::candidates8,
    avx512::top_logits, avx512::attention,   avx512::add_norm,
};

}  // namespace translate_trt
