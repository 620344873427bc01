// The compiled kernels' library, as ONNX Runtime is to load it (runtime/kernels/__init__.py).
#pragma once

#include <string>

namespace translate_trt::runtime {

struct CompiledKernels {
  std::string path;            // of the library; "": there is none, or it is switched off
  std::string name;            // what it has for this processor, such as "avx512_vnni"; "": nothing
  std::string status() const;  // what is in use, or why nothing is, for people
  bool has_attention() const;  // for this processor
  bool switched_off = false;
};

// chosen: a path, "none", or "" for $TRANSLATE_TRT_KERNELS, else the file beside this library.
// An option error if a path that was given leads to no file; a backend error if the file is no such
// library.
CompiledKernels find_kernels(const std::string& chosen);

}  // namespace translate_trt::runtime
