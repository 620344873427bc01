// Kernels that are linked into this library (-D TRANSLATE_TRT_STATIC_KERNELS=ON).

#include "backends/kernel_library.h"
#include "base/errors.h"
#include "base/utf8.h"

extern "C" const char* translate_trt_kernels();
extern "C" const translate_trt::NodeFunctions* translate_trt_kernels_nodes();

namespace translate_trt::runtime {

CompiledKernels load_kernels(const std::string& given, const std::string& source) {
  if (!given.empty()) {
    throw option_error(source + " is " + in_quotes(given) + ", and this library has kernels " +
                       "linked in; write none, or leave it out.");
  }
  CompiledKernels kernels;
  kernels.name = translate_trt_kernels();
  kernels.nodes = translate_trt_kernels_nodes();
  return kernels;
}

}  // namespace translate_trt::runtime
