// Kernel tables for AVX-512 with VNNI, and for AVX-512 with VNNI and AMX.

#include "kernels_simd.h"

namespace translate_trt {
namespace avx512 {

#ifdef TRANSLATE_TRT_AMX
extern const GemmKernel kGemm8Amx;
bool same_sums(const GemmKernel&, const GemmKernel&);
#endif

}  // namespace avx512

using avx512::kernels_with;

const Kernels avx512_vnni = kernels_with<avx512::kGemm8>("avx512_vnni");

#ifdef TRANSLATE_TRT_AMX

#ifdef TRANSLATE_TRT_EMULATED_TILES
const Kernels amx_int8 = kernels_with<avx512::kGemm8Amx>("amx_int8 (emulated)");
#else
const Kernels amx_int8 = kernels_with<avx512::kGemm8Amx>("amx_int8");
#endif
const Kernels amx_not_permitted =
    kernels_with<avx512::kGemm8>("avx512_vnni (the system does not permit amx_int8)");
const Kernels amx_not_correct =
    kernels_with<avx512::kGemm8>("avx512_vnni (amx_int8 computes something else)");

bool amx_is_correct() { return avx512::same_sums(avx512::kGemm8, avx512::kGemm8Amx); }

#endif

}  // namespace translate_trt
