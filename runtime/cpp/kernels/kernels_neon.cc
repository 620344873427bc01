// Kernel tables for NEON with dot products, and for NEON with SMMLA.

#include "kernels_simd.h"

namespace translate_trt {
namespace neon {

#ifdef TRANSLATE_TRT_I8MM
extern const GemmKernel kGemm8I8mm;
#endif

}  // namespace neon

const Kernels neon_dotprod = neon::kernels_with<neon::kGemm8>("neon_dotprod");

#ifdef TRANSLATE_TRT_I8MM
const Kernels neon_i8mm = neon::kernels_with<neon::kGemm8I8mm>("neon_i8mm");
#endif

}  // namespace translate_trt
