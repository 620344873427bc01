// The operators of domain "translate_trt" for ONNX Runtime.
#pragma once

// The library takes ONNX Runtime's API from its caller and links to nothing.
#define ORT_API_MANUAL_INIT
#include "onnxruntime_cxx_api.h"

namespace translate_trt {

// Adds the operators that have kernels on this processor to a session's options.
void add_operators(OrtSessionOptions* options);

}  // namespace translate_trt
