// Tokens of XML 1.0, of which only well-formed texts have any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/markup_tokens.h"

namespace translate_trt::runtime {

// Cuts XML into tokens, whose raw characters together are the text. A text that begins with an XML
// declaration or a document type is a document, another is the content of an element. No entity is
// expanded: those of the content are tokens of their own, and attribute values omit them. A
// document type is one token; it is checked, but adds no attributes. name: of the text in error
// messages. Throws an input error, in the words of expat, if the text is not well-formed.
std::vector<MarkupToken> xml_tokens(std::u32string_view text, const std::string& name);

}  // namespace translate_trt::runtime
