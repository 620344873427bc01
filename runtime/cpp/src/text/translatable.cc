#include "text/translatable.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"

namespace translate_trt::runtime {

namespace {

// A character of the names in an e-mail address; others: of the name before "@".
bool is_of_name(char character, std::string_view others) {
  return ('a' <= character && character <= 'z') || ('0' <= character && character <= '9') ||
         others.find(character) != std::string_view::npos;
}

// Names with a full stop between them, at least two.
bool is_domain(std::string_view text) {
  std::size_t names = 0;
  for (std::size_t begin = 0; begin <= text.size(); ++names) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    if (name.empty() ||
        !std::all_of(name.begin(), name.end(), [](char one) { return is_of_name(one, "_-"); })) {
      return false;
    }
    begin = end + 1;
  }
  return names > 1;
}

// Whether a text is a URL or an e-mail address and nothing else. ASCII only: text of a language
// without spaces may follow a URL.
bool is_address(std::u32string_view text) {
  std::string lower;
  for (const char32_t character : text) {
    if (character < U'!' || character > U'~') return false;
    const auto one = static_cast<char>(character);
    lower += 'A' <= one && one <= 'Z' ? static_cast<char>(one - 'A' + 'a') : one;
  }
  std::string_view rest = lower;
  for (const std::string_view begin : {"http://", "https://", "ftp://", "www."}) {
    if (rest.size() > begin.size() && rest.substr(0, begin.size()) == begin) return true;
  }
  constexpr std::string_view kMailTo = "mailto:";
  if (rest.substr(0, kMailTo.size()) == kMailTo) rest.remove_prefix(kMailTo.size());
  const std::size_t at = rest.find('@');
  if (at == std::string_view::npos || at == 0) return false;
  return std::all_of(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(at),
                     [](char one) { return is_of_name(one, "_.+-"); }) &&
         is_domain(rest.substr(at + 1));
}

}  // namespace

bool is_translatable(std::u32string_view text) {
  return std::any_of(text.begin(), text.end(), is_letter) && !is_address(stripped(text));
}

std::u32string untranslated(std::u32string_view line) {
  if (stripped(line).empty()) return {};
  constexpr std::u32string_view kLineEnds = U"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029";
  std::u32string found(line);
  std::replace_if(
      found.begin(), found.end(),
      [&](char32_t one) { return kLineEnds.find(one) != std::u32string_view::npos; }, U' ');
  return found;
}

}  // namespace translate_trt::runtime
