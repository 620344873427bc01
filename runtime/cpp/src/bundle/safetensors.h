// Reading of safetensors files: named tensors after a header in JSON.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/platform.h"

namespace translate_trt::runtime {

// Maps a file of a bundle. Throws a bundle error if it cannot be read.
std::unique_ptr<MappedFile> map_file(const std::filesystem::path& path);

// The tensors of a file, which is mapped as long as this lives.
class SafeTensors {
 public:
  struct Tensor {
    std::string type;  // such as "F16"
    std::string_view bytes;
  };

  // Throws a bundle error if the file cannot be read or is damaged: the bytes of a tensor are those
  // of its shape, within the file, and of no other tensor.
  explicit SafeTensors(const std::filesystem::path& path);

  // Throws a bundle error if there is no such tensor.
  const Tensor& at(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::unique_ptr<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace translate_trt::runtime
