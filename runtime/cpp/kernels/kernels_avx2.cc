// Kernel table for AVX2 with FMA and F16C.

#include "kernels_simd.h"

namespace translate_trt {
namespace avx2 {

bool pairs_fit(const Matrix8&);

}  // namespace avx2

const Kernels avx2_fma = avx2::kernels_with<avx2::kGemm8>("avx2", avx2::pairs_fit);

}  // namespace translate_trt
