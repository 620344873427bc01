// Splitting of over-long lines at sentence or word boundaries (runtime/text/segments.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Where to split a text of at least two characters: near its middle.
std::size_t middle(std::u32string_view text);

// Splits a text into segments of at most `limit` tokens, none of which is empty; a blank text has
// none. Returns the tokens of each segment with the offset of the text that they were made of.
// encode: the tokens of a text, or any other values of them.
template <class Token>
std::vector<std::pair<std::size_t, std::vector<Token>>> split_at_offsets(
    std::u32string_view text, const std::function<std::vector<Token>(const std::string&)>& encode,
    std::size_t limit, std::size_t offset = 0) {
  const std::vector<Token> tokens = encode(encode_utf8(text));
  std::vector<std::pair<std::size_t, std::vector<Token>>> segments;
  if (tokens.size() <= limit || text.size() < 2) {
    // A single character can exceed the limit; split its tokens rather than reject it.
    const std::size_t most = std::max<std::size_t>(limit, 1);
    for (std::size_t begin = 0; begin < tokens.size(); begin += most) {
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
      const std::size_t size = std::min(most, tokens.size() - begin);
      segments.push_back({offset, {first, first + static_cast<std::ptrdiff_t>(size)}});
    }
    return segments;
  }
  const std::size_t cut = middle(text);
  for (const std::size_t begin : {std::size_t{0}, cut}) {
    const auto part = text.substr(begin, begin == 0 ? cut : text.npos);
    auto found = split_at_offsets(part, encode, limit, offset + begin);
    std::move(found.begin(), found.end(), std::back_inserter(segments));
  }
  return segments;
}

// The tokens of the segments of a text, without their offsets.
std::vector<Tokens> split_text(std::u32string_view text,
                               const std::function<Tokens(const std::string&)>& encode,
                               std::size_t limit);

}  // namespace translate_trt::runtime
