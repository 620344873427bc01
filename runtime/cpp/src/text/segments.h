// Splitting of over-long lines at sentence or word boundaries (runtime/text/segments.py).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Splits a text into segments of at most `limit` tokens. Segments are not empty; a blank text has
// none.
std::vector<Tokens> split_text(std::u32string_view text,
                               const std::function<Tokens(const std::string&)>& encode,
                               std::size_t limit);

}  // namespace translate_trt::runtime
