#include "bundle/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

namespace {

constexpr std::size_t kPrefix = 8;  // bytes of the size of the header

const std::map<std::string, std::uint64_t>& type_sizes() {
  static const std::map<std::string, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  return sizes;
}

// Bytes of the shape of a tensor. largest: that a tensor may have.
std::uint64_t size_of_shape(const Fields& tensor, std::uint64_t largest) {
  const auto type = type_sizes().find(tensor.text("dtype"));
  if (type == type_sizes().end()) {
    tensor.fail("dtype", "a type of safetensors, such as F16", tensor.get("dtype"));
  }
  std::uint64_t size = type->second;
  for (const std::int64_t axis : tensor.integers("shape", 0)) {
    const auto count = static_cast<std::uint64_t>(axis);
    if (count > 0 && size > largest / count) {
      tensor.fail("shape", "of a tensor that the file holds", tensor.get("shape"));
    }
    size *= count;
  }
  return size;
}

}  // namespace

std::unique_ptr<MappedFile> map_file(const std::filesystem::path& path) {
  try {
    return std::make_unique<MappedFile>(path);
  } catch (const std::runtime_error& error) {
    throw bundle_error("cannot read " + path.u8string() + ": " + error.what() + ". " + kRemedy);
  }
}

SafeTensors::SafeTensors(const std::filesystem::path& path) : path_(path), file_(map_file(path)) {
  const std::string_view content = file_->bytes();
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < std::min(kPrefix, content.size()); ++i) {
    size |= std::uint64_t{static_cast<unsigned char>(content[i])} << (8 * i);
  }
  if (content.size() < kPrefix || size > content.size() - kPrefix) {
    throw bundle_error(path_.u8string() + " is no safetensors file: it ends within its header. " +
                       kRemedy);
  }
  const Json header = parse_json(std::string(content.substr(kPrefix, size)), path_);
  const std::string_view data = content.substr(kPrefix + size);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, tensor] : Fields(header, path_).objects()) {
    if (name == "__metadata__") continue;
    const std::vector<std::int64_t> ends = tensor.integers("data_offsets", 0);
    const auto begin = static_cast<std::uint64_t>(ends.empty() ? 0 : ends[0]);
    const auto bytes = size_of_shape(tensor, data.size());
    if (ends.size() != 2 || begin > data.size() || bytes > data.size() - begin ||
        static_cast<std::uint64_t>(ends[1]) != begin + bytes) {
      tensor.fail("data_offsets",
                  "the first and the last of " + std::to_string(bytes) + " bytes of the " +
                      std::to_string(data.size()) + " after the header",
                  tensor.get("data_offsets"));
    }
    tensors_[name] = {tensor.text("dtype"), data.substr(begin, bytes)};
    if (bytes > 0) ranges.emplace_back(begin, begin + bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first >= ranges[i - 1].second) continue;
    throw bundle_error(path_.u8string() + " is damaged: two of its tensors overlap. " + kRemedy);
  }
}

const SafeTensors::Tensor& SafeTensors::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  throw bundle_error(path_.u8string() + " has no tensor " + in_quotes(name) + ". " + kRemedy);
}

}  // namespace translate_trt::runtime
