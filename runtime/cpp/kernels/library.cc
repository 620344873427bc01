// The functions that the library exports.

#include <atomic>

#include "../format_version.h"
#include "kernels.h"
#include "operators.h"
#include "processor.h"

#include <exception>

namespace translate_trt {

namespace {

const Kernels* choose() {
#ifdef TRANSLATE_TRT_PLAIN
  return &plain;
#else
#ifdef TRANSLATE_TRT_I8MM
  if (has_i8mm()) return &neon_i8mm;
#endif
#ifdef TRANSLATE_TRT_NEON
  if (has_dot_products()) return &neon_dotprod;
#endif
#ifdef TRANSLATE_TRT_AVX512
  if (has_avx512_vnni()) {
#ifdef TRANSLATE_TRT_AMX
    if (has_amx_int8()) {
      return !request_tiles()    ? &amx_not_permitted
             : !amx_is_correct() ? &amx_not_correct
                                 : &amx_int8;
    }
#endif
    return &avx512_vnni;
  }
#endif
#ifdef TRANSLATE_TRT_AVX_VNNI
  if (has_avx_vnni()) return &avx2_vnni;
#endif
#ifdef TRANSLATE_TRT_AVX2
  if (has_avx2()) return &avx2_fma;
#endif
  return &portable;
#endif
}

}  // namespace

const Kernels portable = {"portable"};

const Kernels& host_kernels() {
  static const auto* const here = choose();
  return *here;
}

}  // namespace translate_trt

#define TRANSLATE_TRT_EXPORT extern "C" __attribute__((visibility("default")))

// Name of the kernels that RegisterCustomOps registers on this processor.
TRANSLATE_TRT_EXPORT const char* translate_trt_kernels() {
  return translate_trt::host_kernels().name;
}

// The bundles' format version whose graphs the operators are for: their inputs and attributes
// change with it.
TRANSLATE_TRT_EXPORT std::int32_t translate_trt_kernels_format() {
  return translate_trt::kFormatVersion;
}

namespace {
std::atomic<const char*> registered = "";  // sessions may be created by several threads
}

// Names of the operators that RegisterCustomOps has registered, one per line; empty before its
// first call. tests/export/fused_ops/test_declarations.py compares them with the declarations.
TRANSLATE_TRT_EXPORT const char* translate_trt_kernels_operators() { return registered; }

// Called by ONNX Runtime (SessionOptions.register_custom_ops_library).
TRANSLATE_TRT_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                  const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    return nullptr;  // an older ONNX Runtime: it inlines the functions instead
  }
  try {
    Ort::InitApi(api);
    registered = translate_trt::add_operators(translate_trt::host_kernels(), options);
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
  return nullptr;
}
