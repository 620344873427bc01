// Unicode properties, normalization and case folding as in Python, of the version of
// unicode_tables.inc.
#pragma once

#include <string>
#include <string_view>

namespace translate_trt::runtime {

// The version, such as "14.0.0".
const char* unicode_version();

// Whether a character is a letter (categories Lu, Ll, Lt, Lm, Lo).
bool is_letter(char32_t character);

// Python's str.isalnum for one character.
bool is_alphanumeric(char32_t character);

// Whether a character is one of a word for Python's regular expressions (\w).
bool is_word(char32_t character);

// Whether NFC may compose a character with those before it: a mark (categories Mn, Mc, Me), or a
// vowel or final consonant of a Hangul syllable.
bool may_compose(char32_t character);

// Whether no word ends between this character and another such one: a letter, digit or mark of a
// script that is written with spaces, or "_".
bool joins(char32_t character);

// Whether a character is of a script that is written without spaces between words.
bool is_unspaced(char32_t character);

// Python's unicodedata.normalize("NFC", text).
std::u32string nfc(std::u32string_view text);

// Python's str.casefold.
std::u32string casefold(std::u32string_view text);

}  // namespace translate_trt::runtime
