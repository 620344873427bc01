// The two functions that the library exports.

#include "kernels.h"
#include "operators.h"

#include <exception>

namespace translate_trt {

const Kernels* kernels_here() {
#ifdef TRANSLATE_TRT_AVX512
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni")) {
    return &avx512_vnni;
  }
#endif
  return nullptr;
}

}  // namespace translate_trt

#define TRANSLATE_TRT_EXPORT extern "C" __attribute__((visibility("default")))

// Which kernels RegisterCustomOps registers on this processor; empty: none.
TRANSLATE_TRT_EXPORT const char* translate_trt_kernels() {
  const auto* here = translate_trt::kernels_here();
  return here == nullptr ? "" : here->name;
}

// What ONNX Runtime calls (SessionOptions.register_custom_ops_library).
TRANSLATE_TRT_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                  const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    return nullptr;  // an older ONNX Runtime: it inlines the functions instead
  }
  try {
    Ort::InitApi(api);
    const auto* here = translate_trt::kernels_here();
    if (here != nullptr) {
      translate_trt::add_operators(*here, options);
    }
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
  return nullptr;
}
