// Locating of the compiled kernels (runtime/kernels/__init__.py).
#pragma once

#include <string>

#include "../../kernels/node.h"

namespace translate_trt::runtime {

inline constexpr const char* kKernelsVariable = "TRANSLATE_TRT_KERNELS";

struct CompiledKernels {
  std::string path;  // of the library; "" if there is none, or its kernels are linked in
  std::string name;  // kernels for this CPU, such as "avx512_vnni"; "" if none
  const NodeFunctions* nodes = nullptr;  // for the executor; null if there is no library
  std::string status() const;  // the kernels in use, or the reason for using none, for logs
  bool has_attention() const;  // whether there is an attention kernel for this CPU
  bool switched_off = false;
};

// Finds the library of compiled kernels. chosen: a path, "none", or "" for $TRANSLATE_TRT_KERNELS
// with the file beside this library as default. Linked kernels have no path. Throws an option error
// if a given file does not exist, and a backend error if it is not a library of compiled kernels.
CompiledKernels find_kernels(const std::string& chosen);

// Loads the kernels. given: a path, or "" for the default; source: the option or variable that it
// comes from. The build links one of two definitions: that of kernel_library.cc or, with -D
// TRANSLATE_TRT_STATIC_KERNELS=ON, of linked_kernels.cc.
CompiledKernels load_kernels(const std::string& given, const std::string& source);

}  // namespace translate_trt::runtime
