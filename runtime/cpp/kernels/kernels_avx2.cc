// Kernel table for AVX2 with FMA and F16C.

#include "kernels_simd.h"

namespace translate_trt {

const Kernels avx2_fma = avx2::kernels_with<avx2::kGemm8>("avx2");

}  // namespace translate_trt
