#include "text/segments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace translate_trt::runtime {

namespace {

constexpr std::u32string_view kEnds = U".!?\u2026\u3002\uff01\uff1f";
constexpr std::u32string_view kClosing = U"\"'\u201c\u201d\u00bb)]";

bool is_one_of(std::u32string_view characters, char32_t character) {
  return characters.find(character) != std::u32string_view::npos;
}

// End of the white space that starts at a position, at most `end`.
std::size_t after_space(std::u32string_view text, std::size_t position, std::size_t end) {
  while (position < end && is_space(text[position])) ++position;
  return position;
}

// End of the closing punctuation and white space between two sentences that starts at a position;
// the position itself if no sentence ends there.
std::size_t after_sentence(std::u32string_view text, std::size_t position, std::size_t end) {
  if (position == 0 || !is_one_of(kEnds, text[position - 1])) return position;
  std::size_t space = position;
  while (space < end && is_one_of(kClosing, text[space])) ++space;
  const std::size_t next = after_space(text, space, end);
  return next > space ? next : position;
}

}  // namespace

std::size_t middle(std::u32string_view text) {
  // At least one character on each side, so that the recursion ends.
  const std::size_t quarter = std::max<std::size_t>(1, text.size() / 4), half = text.size() / 2;
  const std::size_t end = text.size() - quarter;
  const auto distance = [half](std::size_t position) {
    return position > half ? position - half : half - position;
  };
  for (const auto after : {after_sentence, after_space}) {
    std::size_t best = 0;  // 0: no boundary found
    for (std::size_t position = quarter; position < end;) {
      const std::size_t next = after(text, position, end);
      if (next > position && (best == 0 || distance(next) < distance(best))) best = next;
      position = std::max(next, position + 1);
    }
    if (best > 0) return best;
  }
  return half;
}

std::vector<Tokens> split_text(std::u32string_view text,
                               const std::function<Tokens(const std::string&)>& encode,
                               std::size_t limit) {
  std::vector<Tokens> segments;
  for (auto& [offset, tokens] : split_at_offsets<std::int64_t>(text, encode, limit)) {
    segments.push_back(std::move(tokens));
  }
  return segments;
}

}  // namespace translate_trt::runtime
