// Kernel table for NEON with dot products.

#include "kernels_simd.h"

namespace translate_trt {

const Kernels neon_dotprod = neon::kernels_with<neon::kGemm8>("neon_dotprod");

}  // namespace translate_trt
