// The operators of domain "translate_trt" as ONNX Runtime sees them.
#pragma once

// The library takes ONNX Runtime's API from its caller and links to nothing.
#define ORT_API_MANUAL_INIT
#include "onnxruntime_cxx_api.h"

#include "kernels.h"

namespace translate_trt {

// Add the operators that have kernels on this processor to a session's options. Returns their
// names, one per line.
const char* add_operators(const Kernels& kernels, OrtSessionOptions* options);

}  // namespace translate_trt
