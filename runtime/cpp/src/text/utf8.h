// UTF-8 and Unicode, as far as a runtime needs them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace translate_trt::runtime {

// The code points of a text. What is not UTF-8 becomes U+FFFD, one for each longest part of a
// sequence that could have gone on (the Unicode Standard's section 3.9, and what Python's decoder
// does).
std::u32string decode_utf8(std::string_view text);

// Code points that are no surrogates, as UTF-8.
std::string encode_utf8(std::u32string_view text);

bool is_utf8(std::string_view text);

// As Python's str.isspace, of one character.
bool is_space(char32_t character);

// Control characters (C0, DEL, C1) and the line and paragraph separators: runtime/text/tokenizer.py
// says what becomes of them and why.
bool is_control(char32_t character);

// The text with a space for each of these.
std::string clean(std::string_view text);

std::string join(const std::vector<std::string>& parts, std::string_view between);

// In single quotes, for messages.
std::string in_quotes(std::string_view text);

// The shortest decimal number that is read back as this one, such as "0.6" or "1.0".
std::string shown(double number);

}  // namespace translate_trt::runtime
