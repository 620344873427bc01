// Placeholders of message catalogues in a text (runtime/text/markup.py).
#pragma once

#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace translate_trt::runtime {

// The placeholders of a text, in order: {{name}}, ${name}, {0}, %(name)s, %1$s, %.2f, %%, and
// messages with cases, such as {n, plural, one {day} other {days}}.
std::vector<Span> find_placeholders(std::u32string_view text);

}  // namespace translate_trt::runtime
