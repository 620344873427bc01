// What ONNX Runtime and Python call. No kernel is here yet, so nothing is registered.
#include <onnxruntime_c_api.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*) {
  return nullptr;
}

EXPORTED const char* translate_trt_kernels() { return ""; }
