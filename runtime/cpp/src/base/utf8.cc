#include "base/utf8.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace translate_trt::runtime {

namespace {

// Length in bytes of the sequence that a first byte starts; 0 if the byte is invalid.
std::size_t sequence_size(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

// Whether a byte is valid at that index of a sequence. The range of the second byte excludes
// overlong forms, surrogates and code points above U+10FFFF.
bool can_follow(unsigned char first, std::size_t index, unsigned char byte) {
  unsigned char lowest = 0x80, highest = 0xBF;
  if (index == 1) {
    if (first == 0xE0) lowest = 0xA0;
    if (first == 0xED) highest = 0x9F;
    if (first == 0xF0) lowest = 0x90;
    if (first == 0xF4) highest = 0x8F;
  }
  return byte >= lowest && byte <= highest;
}

struct Decoded {
  char32_t character;
  std::size_t size;  // bytes
  bool valid;
};

Decoded decode_first(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t size = sequence_size(first);
  if (size == 0) return {kReplacement, 1, false};
  if (size == 1) return {first, 1, true};
  char32_t character = first & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if (i >= text.size() || !can_follow(first, i, static_cast<unsigned char>(text[i]))) {
      return {kReplacement, i, false};
    }
    character = character << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  return {character, size, true};
}

void append_utf8(std::string& text, char32_t character) {
  const auto byte = [&text](char32_t value) { text.push_back(static_cast<char>(value)); };
  const auto following = [&](int shift) { byte(0x80 | (character >> shift & 0x3F)); };
  if (character < 0x80) {
    byte(character);
  } else if (character < 0x800) {
    byte(0xC0 | character >> 6);
    following(0);
  } else if (character < 0x10000) {
    byte(0xE0 | character >> 12);
    following(6);
    following(0);
  } else {
    byte(0xF0 | character >> 18);
    following(12);
    following(6);
    following(0);
  }
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  std::u32string decoded;
  decoded.reserve(text.size());
  while (!text.empty()) {
    const Decoded next = decode_first(text);
    decoded.push_back(next.character);
    text.remove_prefix(next.size);
  }
  return decoded;
}

std::string encode_utf8(std::u32string_view text) {
  std::string encoded;
  encoded.reserve(text.size());
  for (const char32_t character : text) append_utf8(encoded, character);
  return encoded;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Decoded next = decode_first(text);
    if (!next.valid) return false;
    text.remove_prefix(next.size);
  }
  return true;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::u32string_view stripped(std::u32string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x2028 || c == 0x2029;
}

std::string clean(std::string_view text) {
  std::string cleaned;
  cleaned.reserve(text.size());
  while (!text.empty()) {
    const Decoded next = decode_first(text);
    append_utf8(cleaned, is_control(next.character) ? U' ' : next.character);
    text.remove_prefix(next.size);
  }
  return cleaned;
}

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += between;
    joined += parts[i];
  }
  return joined;
}

std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string shown(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[32];
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 14000  // its to_chars takes integers alone
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(buffer, sizeof(buffer), "%.*g", digits, number);
    if (std::strtod(buffer, nullptr) == number) break;
  }
  std::string text(buffer);
#else
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  std::string text(buffer, end);
#endif
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace translate_trt::runtime
