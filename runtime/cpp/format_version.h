// The version of the bundles that the kernels and the library are for (runtime/bundle/manifest.py).
#pragma once

#include <cstdint>

namespace translate_trt {

// A test compares the number with Python's FORMAT_VERSION.
inline constexpr std::int32_t kFormatVersion = 8;

}  // namespace translate_trt
