#include "bundle/fields.h"

#include <cstddef>
#include <limits>

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

constexpr int kDeepest = 200;         // nested objects; a manifest has five levels
constexpr std::size_t kLongest = 60;  // characters of a value in a message

// Stops once the text is too long for a message, so deep values do not exhaust the stack.
void write(const Json& value, std::string& text) {
  if (text.size() > 4 * kLongest) return;
  const char* between = "";
  if (value.is_array()) {
    text += "[";
    for (const auto& item : value) text += between, write(item, text), between = ", ";
    text += "]";
  } else if (value.is_object()) {
    text += "{";
    for (const auto& [name, item] : value.items()) {
      text += between + Json(name).dump() + ": ";
      write(item, text);
      between = ", ";
    }
    text += "}";
  } else {
    text += value.dump();
  }
}

}  // namespace

Json parse_json(const std::string& text, const std::filesystem::path& file) {
  const auto not_too_deep = [&file](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) {
      throw bundle_error(file.u8string() + " is not valid JSON: it is nested too deeply. " +
                         kRemedy);
    }
    return true;
  };
  try {
    if (text.rfind("\xEF\xBB\xBF", 0) == 0 || !is_utf8(text)) {
      throw bundle_error(file.u8string() + " is not valid JSON: it must be UTF-8 without a byte " +
                         "order mark. " + kRemedy);
    }
    return Json::parse(text, not_too_deep);
  } catch (const Json::exception& error) {
    throw bundle_error(file.u8string() + " is not valid JSON: " + error.what() + ". " + kRemedy);
  }
}

std::string shown(const Json& value) {
  std::string text;
  write(value, text);
  const std::u32string characters = decode_utf8(text);
  if (characters.size() <= kLongest) return text;
  return encode_utf8(characters.substr(0, kLongest - 3)) + "...";
}

Fields::Fields(const Json& value, std::filesystem::path file, std::string path)
    : value_(value), file_(std::move(file)), path_(std::move(path)) {
  if (value.is_object()) return;
  const std::string what = path_.empty() ? "the outermost value" : "the field " + in_quotes(path_);
  throw bundle_error(file_.u8string() + ": " + what + " must be an object in braces, not " +
                     shown(value) + ". " + kRemedy);
}

void Fields::fail(const std::string& name, const std::string& expected, const Json& found) const {
  throw bundle_error(file_.u8string() + ": the field " + in_quotes(path(name)) + " must be " +
                     expected + ", not " + shown(found) + ". " + kRemedy);
}

std::int64_t Fields::integer(const std::string& name, std::int64_t smallest) const {
  return integer(name, get(name), smallest);
}

std::int64_t Fields::integer(const std::string& name, const Json& value,
                             std::int64_t smallest) const {
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() &&
        value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  if (!fits || value.get<std::int64_t>() < smallest) {
    fail(name, "a whole number of at least " + std::to_string(smallest), value);
  }
  return value.get<std::int64_t>();
}

bool Fields::boolean(const std::string& name) const {
  const Json& value = get(name);
  if (!value.is_boolean()) fail(name, "true or false", value);
  return value.get<bool>();
}

const std::string& Fields::text(const std::string& name) const {
  const Json& value = get(name);
  if (!value.is_string()) fail(name, "a string", value);
  return value.get_ref<const std::string&>();
}

std::optional<std::string> Fields::optional_text(const std::string& name) const {
  if (is_null(name)) return std::nullopt;
  return text(name);
}

std::vector<std::string> Fields::texts(const std::string& name) const {
  const Json& value = get(name);
  std::vector<std::string> found;
  if (!value.is_array()) fail(name, "a list of strings", value);
  for (const Json& item : value) {
    if (!item.is_string()) fail(name, "a list of strings", value);
    found.push_back(item.get<std::string>());
  }
  return found;
}

std::vector<std::int64_t> Fields::integers(const std::string& name, std::int64_t smallest) const {
  const Json& value = get(name);
  if (!value.is_array()) fail(name, "a list of whole numbers", value);
  std::vector<std::int64_t> found;
  for (const Json& item : value) found.push_back(integer(name, item, smallest));
  return found;
}

std::map<std::string, std::int64_t> Fields::all_integers(std::int64_t smallest) const {
  std::map<std::string, std::int64_t> found;
  for (const auto& item : value_.items()) found[item.key()] = integer(item.key(), smallest);
  return found;
}

void Fields::check_texts() const {
  for (const auto& item : value_.items()) text(item.key());
}

Fields Fields::object(const std::string& name) const { return {get(name), file_, path(name)}; }

void Fields::check_optional_object(const std::string& name) const {
  if (!is_null(name)) object(name);
}

std::vector<Fields> Fields::list(const std::string& name) const {
  const Json& value = get(name);
  if (!value.is_array()) fail(name, "a list of objects", value);
  std::vector<Fields> found;
  for (const Json& item : value) {
    found.emplace_back(item, file_, path(name) + "." + std::to_string(found.size()));
  }
  return found;
}

std::vector<std::pair<std::string, Fields>> Fields::objects(bool at_least_one) const {
  if (at_least_one && value_.empty()) {
    throw bundle_error(file_.u8string() + ": the field " + in_quotes(path_) + " is empty. " +
                       kRemedy);
  }
  std::vector<std::pair<std::string, Fields>> found;
  for (const auto& item : value_.items()) found.emplace_back(item.key(), object(item.key()));
  return found;
}

const Json& Fields::get(const std::string& name) const {
  const auto found = value_.find(name);
  if (found == value_.end()) {
    throw bundle_error(file_.u8string() + ": the field " + in_quotes(path(name)) + " is missing. " +
                       kRemedy);
  }
  return *found;
}

std::string Fields::path(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

}  // namespace translate_trt::runtime
