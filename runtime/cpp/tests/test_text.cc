// UTF-8, SHA-256, and splitting of text.

#include <algorithm>
#include <string>

#include "base/utf8.h"
#include "bundle/sha256.h"
#include "check.h"
#include "text/segments.h"

namespace translate_trt::runtime {

namespace {

void test_utf8() {
  CHECK(decode_utf8("a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80") == U"a\u00e9\u6f22\U0001f600");
  CHECK(encode_utf8(U"a\u00e9\u6f22\U0001f600") == "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80");
  CHECK(decode_utf8("\xFF"
                    "a\xC0\x80") == U"\uFFFDa\uFFFD\uFFFD");
  CHECK(decode_utf8("\xE6\xBC") == U"\uFFFD");                  // one for an incomplete sequence
  CHECK(decode_utf8("\xED\xA0\x80") == U"\uFFFD\uFFFD\uFFFD");  // a surrogate
  CHECK(decode_utf8("\xF4\x90\x80\x80").size() == 4);           // above U+10FFFF
  CHECK(is_utf8("\xC3\xA9") && !is_utf8("\xC3"));
  CHECK(clean(std::string_view("a\0b\tc\xC2\x85"
                               "d\xE2\x80\xA8"
                               "e\x7F",
                               13)) == "a b c d e ");
  CHECK(shown(0.6) == "0.6" && shown(1.0) == "1.0" && shown(-0.5) == "-0.5");
}

void test_sha256() {
  for (const bool instructions : {false, true}) {
    const auto hash = [instructions](const std::string& text, std::size_t block) {
      Sha256 sha256(instructions);
      for (std::size_t i = 0; i < text.size(); i += block) {
        const std::size_t size = std::min(block, text.size() - i);
        sha256.update(reinterpret_cast<const unsigned char*>(text.data()) + i, size);
      }
      return sha256.digest();
    };
    CHECK(hash("", 1) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const std::string million(1'000'000, 'a');
    for (const std::size_t block : {1, 63, 64, 65, 1000, 1'000'000}) {
      CHECK(hash(million, block) ==
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    for (std::size_t size = 0; size < 130; ++size) {  // any position in a block
      CHECK(hash(million.substr(0, size), 7) == hash(million.substr(0, size), 200));
    }
  }
}

Tokens characters(const std::string& text) {
  Tokens tokens;
  for (const char32_t character : decode_utf8(text)) {
    if (!is_space(character)) tokens.push_back(character);
  }
  return tokens;
}

void test_split_text() {
  const auto split = [](std::u32string_view text, std::size_t limit) {
    return split_text(text, characters, limit);
  };
  CHECK(split(U"  ", 5).empty());
  CHECK(split(U"a b c", 3).size() == 1);
  CHECK(split(std::u32string(1000, U'x'), 64).size() == 16);
  // The nearest space to the middle is after the first bbb.
  for (const std::u32string end : {U"! ", U".\" ", U"\u2026 ", U"\u3002 "}) {
    const auto pieces = split(U"aaa aaa aaa" + end + U"bbb bbb bbb bbb bbb", 16);
    CHECK(pieces.size() == 2 && pieces[1] == Tokens(15, U'b'));
  }
  CHECK(split(U"x", 0).size() == 1);  // terminates for any limit
}

}  // namespace

void test_text() {
  test_utf8();
  test_sha256();
  test_split_text();
}

}  // namespace translate_trt::runtime
