// Checked access to what a bundle's manifest says (runtime/bundle/fields.py).
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

// What to do about a bundle that is not what it should be.
inline constexpr const char* kRemedy =
    "Copy the bundle again or make it again with translate-trt export.";

// Text as JSON; a bundle error if it is none.
Json parse_json(const std::string& text, const std::filesystem::path& file);

// A value as Python's json.dumps writes it, cut to what fits a message.
std::string shown(const Json& value);

// A JSON object with checked access; errors name a field by its path, as `model.heads`. The value
// must outlive it.
class Fields {
 public:
  Fields(const Json& value, std::filesystem::path file, std::string path = "");

  const Json& values() const { return value_; }
  const Json& get(const std::string& name) const;  // of any type

  // A bundle error: this field is not what was expected.
  [[noreturn]] void fail(const std::string& name, const std::string& expected,
                         const Json& found) const;

  std::int64_t integer(const std::string& name, std::int64_t smallest) const;
  // The item of a list.
  std::int64_t integer(const std::string& name, const Json& item, std::int64_t smallest) const;
  bool boolean(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  bool is_null(const std::string& name) const { return get(name).is_null(); }
  std::optional<std::string> optional_text(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  std::vector<std::int64_t> integers(const std::string& name, std::int64_t smallest) const;
  // All fields of this object.
  std::map<std::string, std::int64_t> all_integers(std::int64_t smallest) const;
  void check_texts() const;  // all fields are strings
  Fields object(const std::string& name) const;
  void check_optional_object(const std::string& name) const;  // or null
  // All fields of this object, each of them an object.
  std::vector<std::pair<std::string, Fields>> objects(bool at_least_one = false) const;

 private:
  std::string path(const std::string& name) const;

  const Json& value_;
  std::filesystem::path file_;
  std::string path_;
};

}  // namespace translate_trt::runtime
