// Text without anything to translate: numbers, dates, prices, time codes, addresses
// (runtime/text/translatable.py).
#pragma once

#include <string>
#include <string_view>

namespace translate_trt::runtime {

// Whether a text has a letter (Unicode category L), and is no URL or e-mail address.
bool is_translatable(std::u32string_view text);

// The translation of a line that is not translatable: itself, or nothing if blank.
std::u32string untranslated(std::u32string_view line);

}  // namespace translate_trt::runtime
