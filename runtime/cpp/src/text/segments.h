// Lines longer than the model takes, cut where it hurts least (runtime/text/segments.py).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Tokens of a text, in as many pieces of at most `limit` tokens as it needs; no piece is empty, so
// a blank text has none.
std::vector<Tokens> split_text(std::u32string_view text,
                               const std::function<Tokens(const std::string&)>& encode,
                               std::size_t limit);

}  // namespace translate_trt::runtime
