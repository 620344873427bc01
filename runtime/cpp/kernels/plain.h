// Arithmetic of the plain kernels.
#pragma once

namespace translate_trt {

// a * b + c, rounded once.
float fused_multiply_add(float a, float b, float c);

}  // namespace translate_trt
