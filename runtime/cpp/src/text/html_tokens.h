// Tokens of HTML, as the tokenizer of the HTML standard recognizes them (section 13.2.5).
#pragma once

#include <string_view>
#include <vector>

#include "text/markup_tokens.h"

namespace translate_trt::runtime {

// Cuts HTML into tokens, whose raw characters together are the text. Whatever has no meaning as
// markup is text. A tag, comment or declaration that the text ends in is one token of the kind
// kOther. A tag that ends with "/>" is of an empty element, whatever its name. Elements of SVG and
// MathML are read like those of HTML.
std::vector<MarkupToken> html_tokens(std::u32string_view text);

// Whether a text is white space with a blank line.
bool is_paragraph_break(std::u32string_view text);

}  // namespace translate_trt::runtime
