// Kernel table for AVX2 with AVX-VNNI.

#include "kernels_simd.h"

namespace translate_trt {

const Kernels avx2_vnni = avx_vnni::kernels_with<avx_vnni::kGemm8>("avx_vnni");

}  // namespace translate_trt
