// Checked access to the fields of a manifest (runtime/bundle/fields.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace translate_trt::runtime {

using Json = nlohmann::ordered_json;

// Remedy in messages about a damaged bundle.
inline constexpr const char* kRemedy =
    "Copy the bundle again or make it again with translate-trt export.";

// Parses JSON; throws a bundle error if it is invalid.
Json parse_json(const std::string& text, const std::filesystem::path& file);

// Formats a value like Python's json.dumps, truncated for use in a message.
std::string shown(const Json& value);

// Checked access to a JSON object, which must outlive this one. Errors are bundle errors that name
// a field by its path, such as `model.heads`.
class Fields {
 public:
  Fields(const Json& value, std::filesystem::path file, std::string path = "");

  const Json& values() const { return value_; }
  const Json& get(const std::string& name) const;  // of any type

  // Throws a bundle error: the field is not what was expected.
  [[noreturn]] void fail(const std::string& name, const std::string& expected,
                         const Json& found) const;

  std::int64_t integer(const std::string& name, std::int64_t smallest) const;
  // Reads an item of the list `name`.
  std::int64_t integer(const std::string& name, const Json& item, std::int64_t smallest) const;
  bool boolean(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  bool is_null(const std::string& name) const { return get(name).is_null(); }
  std::optional<std::string> optional_text(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  std::vector<std::int64_t> integers(const std::string& name, std::int64_t smallest) const;
  // Reads all fields of this object.
  std::map<std::string, std::int64_t> all_integers(std::int64_t smallest) const;
  void check_texts() const;  // checks that all fields are strings
  Fields object(const std::string& name) const;
  void check_optional_object(const std::string& name) const;  // checks for an object or null
  // Reads the list `name`, whose items are objects.
  std::vector<Fields> list(const std::string& name) const;
  // Reads all fields of this object, each of them an object.
  std::vector<std::pair<std::string, Fields>> objects(bool at_least_one = false) const;

 private:
  std::string path(const std::string& name) const;

  const Json& value_;
  std::filesystem::path file_;
  std::string path_;
};

}  // namespace translate_trt::runtime
