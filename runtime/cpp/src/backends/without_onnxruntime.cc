// load_onnxruntime of a library that was built with -D TRANSLATE_TRT_ONNXRUNTIME=OFF.

#include "backends/onnxruntime_loader.h"
#include "base/errors.h"

namespace translate_trt::runtime {

std::unique_ptr<Backend> load_onnxruntime(const std::filesystem::path&,
                                          const std::filesystem::path&, const Contract&,
                                          const CompiledKernels&, const Settings&,
                                          const std::string& reason, std::string&) {
  throw backend_error("the graphs need ONNX Runtime, since " + reason +
                      ", and this library was built without it. Choose a target of fused operators "
                      "alone, such as onnx-int8.");
}

}  // namespace translate_trt::runtime
