#include "text/markup_tokens.h"

#include <algorithm>
#include <cstddef>

#include "text/html_tokens.h"
#include "text/xml_tokens.h"

namespace translate_trt::runtime {

namespace {

std::vector<MarkupToken> line_tokens(std::u32string_view text) {
  std::vector<MarkupToken> tokens;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(U"\r\n", at), text.size());
    if (end > at) {
      const std::u32string_view line = text.substr(at, end - at);
      tokens.push_back({TokenKind::kText, line, {}, std::u32string(line)});
    }
    at = end;
    if (at < text.size()) {
      const std::size_t size = text.substr(at, 2) == U"\r\n" ? 2 : 1;
      tokens.push_back({TokenKind::kOther, text.substr(at, size), std::u32string(kDeclaration)});
      at += size;
    }
  }
  return tokens;
}

bool is_character_of_xml(char32_t character) {
  return character != 0xFFFE && character != 0xFFFF && (character < 0xD800 || character > 0xDFFF);
}

}  // namespace

std::u32string_view MarkupToken::attribute(std::u32string_view wanted) const {
  for (const auto& [found, value] : attributes) {
    if (found == wanted) return value;
  }
  return {};
}

std::vector<MarkupToken> read_tokens(std::u32string_view text, Markup markup,
                                     const std::string& name) {
  switch (markup) {
    case Markup::kHtml:
      return html_tokens(text);
    case Markup::kXml:
      return xml_tokens(text, name);
    case Markup::kText:
      break;
  }
  return line_tokens(text);
}

std::u32string encode_text(std::u32string_view text, Markup markup) {
  if (markup == Markup::kText) return std::u32string(text);
  std::u32string encoded;
  encoded.reserve(text.size());
  for (const char32_t character : text) {
    if (character == U'&') {
      encoded += U"&amp;";
    } else if (character == U'<') {
      encoded += U"&lt;";
    } else if (character == U'>') {
      encoded += U"&gt;";
    } else {
      encoded += markup == Markup::kXml && !is_character_of_xml(character) ? U' ' : character;
    }
  }
  return encoded;
}

}  // namespace translate_trt::runtime
