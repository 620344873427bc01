// Bundle format version that the kernels and the library support (runtime/bundle/manifest.py).
#pragma once

#include <cstdint>

namespace translate_trt {

// Must equal FORMAT_VERSION in Python; a test compares them.
inline constexpr std::int32_t kFormatVersion = 12;

}  // namespace translate_trt
