#include "api/calls.h"

#include <cstdint>
#include <string>

#include "base/utf8.h"
#include "translate_trt/device.h"

namespace translate_trt::runtime {

namespace {

// The last error message of a thread, which exists even when memory has run out.
struct LastError {
  std::string message;
  const char* text = "";

  // Makes the message valid UTF-8: ONNX Runtime may quote bytes of a damaged file.
  void set(const char* what) noexcept {
    try {
      message = encode_utf8(decode_utf8(what));
      text = message.c_str();
    } catch (...) {
      text = "memory ran out";
    }
  }
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

}  // namespace

tt_status failed(tt_status status, const char* message) noexcept {
  last_error().set(message);
  return status;
}

void require(bool given, const char* name) {
  if (!given) throw input_error(std::string(name) + " is NULL.");
}

std::vector<std::string_view> texts(const tt_text* given, std::size_t count, const char* name) {
  std::vector<std::string_view> found;
  for (std::size_t i = 0; i < count; ++i) {
    require(given[i].data != nullptr || given[i].size == 0, name);
    found.emplace_back(given[i].size == 0 ? "" : given[i].data, given[i].size);
  }
  return found;
}

tt_text as_text(const std::string& text) { return {text.c_str(), text.size()}; }

tt_term as_term(const Term& term) {
  const GlossaryEntry* entry = term.match.entry;
  if (entry == nullptr) return {{"", 0}, {"", 0}, {"", 0}, 0, 0};
  const bool found = term.translation.has_value();
  return {as_text(term.source), as_text(entry->targets.front()),
          found ? as_text(*term.translation) : tt_text{"", 0}, found ? 1 : 0,
          static_cast<std::uint32_t>(entry->index)};
}

}  // namespace translate_trt::runtime

const char* tt_last_error(void) { return translate_trt::runtime::last_error().text; }

tt_status tt_device_fail(tt_status status, const char* message) {
  return translate_trt::runtime::failed(status, message == nullptr ? "" : message);
}
