#include "backends/settings.h"

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

SessionDevice read_device(const std::string& name) {
  const std::size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  const std::string number = colon == std::string::npos ? "0" : name.substr(colon + 1);
  const bool counted = !number.empty() && number.size() <= 3 &&
                       number.find_first_not_of("0123456789") == std::string::npos &&
                       (number.size() == 1 || number[0] != '0');
  if (name == "cpu") return {};
  if (counted && kind == "cuda") return {Provider::kCuda, std::stoi(number), name};
  if (counted && kind == "tensorrt-rtx") return {Provider::kTensorRtRtx, std::stoi(number), name};
  if (counted && kind == "tensorrt") {
    throw option_error(
        "device is " + in_quotes(name) + ", which is not supported: ONNX Runtime's " +
        "TensorRT provider builds an engine whenever a shape leaves the range of " +
        "the shapes before it, which takes minutes. Write cuda or tensorrt-rtx, or " +
        "translate with a target of engines, such as tensorrt-fp16.");
  }
  throw option_error("device is " + in_quotes(name) + "; write cpu, cuda, cuda:1 or tensorrt-rtx.");
}

}  // namespace translate_trt::runtime
