// Kernel table for WebAssembly.

#include "kernels_simd.h"

namespace translate_trt {

const Kernels wasm_simd128 = wasm::kernels_with<wasm::kGemm8>("wasm_simd128");

}  // namespace translate_trt
