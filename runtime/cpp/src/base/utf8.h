// UTF-8 conversion and Unicode properties for the runtime.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace translate_trt::runtime {

// What `decode_utf8` makes of bytes that are not UTF-8.
inline constexpr char32_t kReplacement = 0xFFFD;

// Decodes UTF-8. Every maximal invalid subsequence becomes one kReplacement, as in section 3.9 of
// the Unicode Standard and in Python's decoder.
std::u32string decode_utf8(std::string_view text);

// Encodes code points, none of which is a surrogate, as UTF-8.
std::string encode_utf8(std::u32string_view text);

bool is_utf8(std::string_view text);

// Python's str.isspace for one character.
bool is_space(char32_t character);

// Python's str.strip.
std::u32string_view stripped(std::u32string_view text);

// Whether a character is a control character (C0, DEL, C1) or a line or paragraph separator, which
// runtime/text/tokenizer.py replaces.
bool is_control(char32_t character);

// Replaces every control character by a space.
std::string clean(std::string_view text);

std::string join(const std::vector<std::string>& parts, std::string_view between);

// Adds single quotes, for messages.
std::string in_quotes(std::string_view text);

// Formats a number with the fewest digits that round-trip, such as "0.6" or "1.0".
std::string shown(double number);

}  // namespace translate_trt::runtime
