// Tokens of HTML and XML, each with the characters that it consists of
// (runtime/text/markup_tokens.py).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace translate_trt::runtime {

// Kinds of markup; kText has placeholders alone.
enum class Markup { kHtml, kXml, kText };

enum class TokenKind {
  kText,
  kStart,
  kEnd,
  kEmpty,      // tag of an empty element
  kReference,  // to an entity that is not decoded
  kOther,      // comments, declarations, instructions, CDATA sections
};

// Names of tokens of the kind kOther: CDATA sections; and declarations, the white space around
// them, and line ends of text. Comments and instructions have no name.
inline constexpr std::u32string_view kCdata = U"![CDATA[", kDeclaration = U"!DOCTYPE";

struct MarkupToken {
  TokenKind kind;
  std::u32string_view raw;  // the characters of the token, a part of the text
  std::u32string name = {};
  std::u32string text = {};  // of a text, with its references decoded
  // Of a start tag or of an empty element, in order.
  std::vector<std::pair<std::u32string, std::u32string>> attributes = {};

  // The value of the first attribute of a name; empty if there is none.
  std::u32string_view attribute(std::u32string_view wanted) const;
};

// Cuts a text into tokens, whose raw characters together are the text. They refer to the text,
// which must outlive them. Consecutive texts are one token, and so are consecutive CDATA sections.
// name: of the text in error messages. Throws an input error if XML is not well-formed.
std::vector<MarkupToken> read_tokens(std::u32string_view text, Markup markup,
                                     const std::string& name);

// Encodes characters of a text that are markup otherwise.
std::u32string encode_text(std::u32string_view text, Markup markup);

}  // namespace translate_trt::runtime
