#include "text/placeholders.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <unordered_map>

#include "base/utf8.h"
#include "text/unicode.h"

namespace translate_trt::runtime {

namespace {

bool is_ascii_digit(char32_t character) { return character >= U'0' && character <= U'9'; }

// The position after the characters from one on that a condition holds for.
template <class Condition>
std::size_t after_all(std::u32string_view text, std::size_t begin, Condition holds) {
  while (begin < text.size() && holds(text[begin])) ++begin;
  return begin;
}

// The end of a conversion of printf, which begins after the percent sign and the position or name;
// 0 if there is none.
std::size_t conversion_end(std::u32string_view text, std::size_t at) {
  const auto is_one_of = [](std::u32string_view characters) {
    return [characters](char32_t one) { return characters.find(one) != characters.npos; };
  };
  at = after_all(text, at, is_one_of(U"-+0#"));
  at = after_all(text, at, is_ascii_digit);
  if (at + 1 < text.size() && text[at] == U'.' && is_ascii_digit(text[at + 1])) {
    at = after_all(text, at + 1, is_ascii_digit);
  }
  for (const char32_t modifier : {U'h', U'l'}) {
    if (at >= text.size() || text[at] != modifier) continue;
    ++at;
    if (at < text.size() && text[at] == modifier) ++at;
    break;
  }
  return at < text.size() && is_one_of(U"sdiufFeEgGxXoc@")(text[at]) ? at + 1 : 0;
}

// Whether the start of a message with cases is at a position, such as {n, plural, one {day} other
// {days}}, which is a placeholder to its end.
bool is_message_with_cases(std::u32string_view text, std::size_t at) {
  constexpr std::u32string_view kKinds[] = {U"plural", U"select", U"selectordinal"};
  const auto skip_comma = [&] {
    at = after_all(text, at, is_space);
    const bool is_comma = at < text.size() && text[at] == U',';
    if (is_comma) ++at;
    return is_comma;
  };
  if (at == text.size() || text[at] != U'{') return false;
  const std::size_t name = after_all(text, at + 1, is_space);
  at = after_all(text, name, is_word);
  if (at == name || !skip_comma()) return false;
  const std::size_t kind = after_all(text, at, is_space);
  at = after_all(text, kind, is_word);
  const std::u32string_view found = text.substr(kind, at - kind);
  const bool is_known = std::find(std::begin(kKinds), std::end(kKinds), found) != std::end(kKinds);
  return is_known && skip_comma();
}

// The position after the closing brace by that of the opening one.
std::unordered_map<std::size_t, std::size_t> ends_of_braces(std::u32string_view text) {
  std::unordered_map<std::size_t, std::size_t> ends;
  std::vector<std::size_t> stack;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == U'{') {
      stack.push_back(at);
    } else if (text[at] == U'}' && !stack.empty()) {
      ends[stack.back()] = at + 1;
      stack.pop_back();
    }
  }
  return ends;
}

// The end of another placeholder that begins at a position; 0 if none does. Placeholders of message
// catalogues: {{name}}, ${name}, {0}, %(name)s, %1$s, %.2f, %%. A percent sign without a name may
// be one of text, as in "100%", and so may have no letter or digit beside it.
std::size_t placeholder_end(std::u32string_view text, std::size_t begin) {
  const auto is_at = [&](std::size_t at, char32_t character) {
    return at < text.size() && text[at] == character;
  };
  const auto is_inside = [](char32_t one) { return one != U'{' && one != U'}' && one != U'\n'; };
  if (is_at(begin, U'{') && is_at(begin + 1, U'{')) {
    const std::size_t end = after_all(text, begin + 2, is_inside);
    return is_at(end, U'}') && is_at(end + 1, U'}') ? end + 2 : 0;
  }
  if (is_at(begin, U'$') && is_at(begin + 1, U'{')) {
    const std::size_t end = after_all(text, begin + 2, is_inside);
    return is_at(end, U'}') ? end + 1 : 0;
  }
  if (is_at(begin, U'{')) {
    const std::size_t end = after_all(text, begin + 1, [](char32_t one) {
      return is_word(one) || std::u32string_view(U".:!+,#-").find(one) != std::u32string_view::npos;
    });
    return is_at(end, U'}') ? end + 1 : 0;
  }
  if (!is_at(begin, U'%')) return 0;
  if (is_at(begin + 1, U'%')) return begin + 2;
  if (is_at(begin + 1, U'(')) {
    const std::size_t end = after_all(text, begin + 2, is_word);
    return end > begin + 2 && is_at(end, U')') ? conversion_end(text, end + 1) : 0;
  }
  const std::size_t digits = after_all(text, begin + 1, is_ascii_digit);
  if (digits > begin + 1 && is_at(digits, U'$')) return conversion_end(text, digits + 1);
  if (begin > 0 && (is_word(text[begin - 1]) || text[begin - 1] == U'%')) return 0;
  const std::size_t end = conversion_end(text, begin + 1);
  return end == 0 || (end < text.size() && is_word(text[end])) ? 0 : end;
}

}  // namespace

std::vector<Span> find_placeholders(std::u32string_view text) {
  std::vector<Span> found;
  std::optional<std::unordered_map<std::size_t, std::size_t>> ends;  // of braces
  for (std::size_t at = 0; at < text.size();) {
    std::size_t after = 0;
    if (is_message_with_cases(text, at)) {
      if (!ends) ends = ends_of_braces(text);
      const auto end = ends->find(at);
      if (end != ends->end()) after = end->second;
    } else {
      after = placeholder_end(text, at);
    }
    if (after != 0) found.push_back({at, after});
    at = std::max(after, at + 1);
  }
  return found;
}

}  // namespace translate_trt::runtime
