#include "text/xml_reader.h"

#include <algorithm>
#include <iterator>

#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

struct XmlRange {
  char32_t first, last;
};

// Characters of names that are not of ASCII: NameStartChar, and what NameChar has besides.
constexpr XmlRange kNameStarts[] = {{0xC0, 0xD6},     {0xD8, 0xF6},     {0xF8, 0x2FF},
                                    {0x370, 0x37D},   {0x37F, 0x1FFF},  {0x200C, 0x200D},
                                    {0x2070, 0x218F}, {0x2C00, 0x2FEF}, {0x3001, 0xD7FF},
                                    {0xF900, 0xFDCF}, {0xFDF0, 0xFFFD}, {0x10000, 0xEFFFF}};
constexpr XmlRange kNameContinuations[] = {{0xB7, 0xB7}, {0x300, 0x36F}, {0x203F, 0x2040}};

struct PredefinedEntity {
  std::u32string_view name;
  char32_t character;
};

constexpr PredefinedEntity kPredefinedEntities[] = {
    {U"amp", U'&'}, {U"apos", U'\''}, {U"gt", U'>'}, {U"lt", U'<'}, {U"quot", U'"'}};

template <std::size_t size>
bool is_within(const XmlRange (&ranges)[size], char32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const XmlRange& range) { return c >= range.first && c <= range.last; });
}

// Char of the standard.
bool is_xml_character(char32_t c) {
  if (c < 0x20) return c == U'\t' || c == U'\n' || c == U'\r';
  return c < 0xD800 || (c > 0xDFFF && c != 0xFFFE && c != 0xFFFF && c <= 0x10FFFF);
}

}  // namespace

bool is_xml_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool is_xml_letter(char32_t c) { return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z'); }
bool is_xml_space(char32_t c) { return c == U' ' || c == U'\t' || c == U'\n' || c == U'\r'; }

bool is_name_start(char32_t c) {
  return is_xml_letter(c) || c == U'_' || c == U':' || (c >= 0x80 && is_within(kNameStarts, c));
}

bool is_name_character(char32_t c) {
  return is_name_start(c) || is_xml_digit(c) || c == U'-' || c == U'.' ||
         (c >= 0x80 && is_within(kNameContinuations, c));
}

char32_t predefined_entity(std::u32string_view name) {
  for (const PredefinedEntity& entity : kPredefinedEntities) {
    if (entity.name == name) return entity.character;
  }
  return 0;
}

void XmlReader::fail(const char* reason, std::size_t at) const {
  std::size_t line = 1, begin = before_;
  for (std::size_t i = 0; i < at; ++i) {
    const bool is_pair = content_[i] == U'\r' && i + 1 < at && content_[i + 1] == U'\n';
    if ((content_[i] != U'\r' && content_[i] != U'\n') || is_pair) continue;
    ++line;
    begin = i + 1;
  }
  throw input_error(name_ + " is not well-formed XML: " + reason + " at line " +
                    std::to_string(line) + ", column " + std::to_string(at - begin + 1) +
                    ". Correct it, or choose html as markup.");
}

char32_t XmlReader::character() const {
  if (at_end()) fail(kUnclosedToken, begin_);
  return content_[at_];
}

void XmlReader::expect(char32_t expected) {
  if (character() != expected) fail_here();
  ++at_;
}

void XmlReader::skip_character() {
  if (!is_xml_character(character())) fail_here();
  ++at_;
}

void XmlReader::skip_spaces() {
  while (is_xml_space(character())) ++at_;
}

void XmlReader::skip_name_characters() {
  while (!at_end() && is_name_character(content_[at_])) ++at_;
}

void XmlReader::skip_name() {
  if (!is_name_start(character())) fail_here();
  skip_name_characters();
}

std::u32string_view XmlReader::between(std::size_t begin, std::size_t end) const {
  return std::u32string_view(content_).substr(begin, end - begin);
}

std::u32string_view XmlReader::skip_reference() {
  const std::size_t first = ++at_;
  if (character() == U'#') {
    ++at_;
    const bool hexadecimal = character() == U'x';
    if (hexadecimal) ++at_;
    const auto is_digit = [&](char32_t c) {
      return is_xml_digit(c) ||
             (hexadecimal && ((c >= U'a' && c <= U'f') || (c >= U'A' && c <= U'F')));
    };
    if (!is_digit(character())) fail_here();
    while (is_digit(character())) ++at_;
  } else {
    skip_name();
  }
  expect(U';');
  return between(first, at_ - 1);
}

char32_t XmlReader::numbered(std::u32string_view name) {
  const bool hexadecimal = name[1] == U'x';
  char32_t number = 0;
  for (const char32_t c : name.substr(hexadecimal ? 2 : 1)) {
    const char32_t digit = is_xml_digit(c) ? c - U'0' : (c | 0x20) - U'a' + 10;
    number = number * (hexadecimal ? 16 : 10) + digit;
    if (number > 0x10FFFF) return 0;
  }
  return is_xml_character(number) ? number : 0;
}

void XmlReader::skip_comment() {
  ++at_;
  expect(U'-');
  while (true) {
    while (character() != U'-') skip_character();
    ++at_;
    if (character() != U'-') continue;
    ++at_;
    expect(U'>');
    return;
  }
}

bool XmlReader::skip_instruction() {
  const std::size_t first = ++at_;
  skip_name();
  std::u32string target(between(first, at_));
  const bool is_declaration = target == U"xml";
  for (char32_t& c : target) c |= 0x20;
  if (!is_xml_space(character()) && !is_here(U'?')) fail_here();
  if (target == U"xml" && !is_declaration) fail_here();
  if (is_here(U'?')) {
    ++at_;
    expect(U'>');
  } else {
    while (true) {
      while (character() != U'?') skip_character();
      ++at_;
      if (character() == U'>') break;
    }
    ++at_;
  }
  return is_declaration;
}

}  // namespace translate_trt::runtime
