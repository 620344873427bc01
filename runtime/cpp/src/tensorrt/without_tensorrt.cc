// load_engines of a library that was built without TensorRT (-D TRANSLATE_TRT_TENSORRT=OFF).

#include "base/errors.h"
#include "base/utf8.h"
#include "engines/engine_loader.h"

namespace translate_trt::runtime {

std::unique_ptr<Backend> load_engines(const std::filesystem::path&, const TargetEntry& target,
                                      const Settings&) {
  throw bundle_error(
      "the target runs on the backend " + in_quotes(target.backend) +
      ", which this library does not have by itself (it has onnxruntime and cuda). Choose another "
      "target, "
      "translate with Python, which runs engines, give their functions in tt_load_options.engines, "
      "or build the library where TensorRT is installed, with -D TRANSLATE_TRT_TENSORRT=ON.");
}

}  // namespace translate_trt::runtime
