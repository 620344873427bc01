// A position in XML, and what its grammar has everywhere: characters, names, references, comments
// and processing instructions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace translate_trt::runtime {

bool is_xml_digit(char32_t character);
bool is_xml_letter(char32_t character);  // of ASCII
bool is_xml_space(char32_t character);

// NameStartChar and NameChar of the standard.
bool is_name_start(char32_t character);
bool is_name_character(char32_t character);

// The character of a predefined entity; 0 if there is none of the name.
char32_t predefined_entity(std::u32string_view name);

// Reader of a text, or of one with an element around it.
class XmlReader {
 protected:
  // Reasons of errors, in the words of expat.
  static constexpr const char* kInvalidToken = "not well-formed (invalid token)";
  static constexpr const char* kUnclosedToken = "unclosed token";
  static constexpr const char* kUnclosedCdata = "unclosed CDATA section";
  static constexpr const char* kNoElement = "no element found";
  static constexpr const char* kMismatchedTag = "mismatched tag";
  static constexpr const char* kJunk = "junk after document element";
  static constexpr const char* kSyntaxError = "syntax error";
  static constexpr const char* kDuplicateAttribute = "duplicate attribute";
  static constexpr const char* kInvalidNumber = "reference to invalid character number";
  static constexpr const char* kMisplacedDeclaration =
      "XML or text declaration not at start of entity";

  // before: characters of the content before the text; messages have positions in the text.
  // name: of the text in error messages; it must outlive the reader.
  XmlReader(std::u32string content, std::size_t before, const std::string& name)
      : content_(std::move(content)), before_(before), name_(name) {}

  [[noreturn]] void fail(const char* reason, std::size_t at) const;
  [[noreturn]] void fail_here() const { fail(kInvalidToken, at_); }

  bool at_end() const { return at_ == content_.size(); }

  // The character at the position, which is in a token.
  char32_t character() const;
  bool is_here(char32_t expected) const { return !at_end() && content_[at_] == expected; }

  // These refuse what is not expected, and the end of the text in a token.
  void expect(char32_t expected);
  void skip_character();
  void skip_spaces();
  void skip_name();
  void skip_name_characters();  // of which there may be none

  std::u32string_view between(std::size_t begin, std::size_t end) const;

  // Skips a reference; returns what is between "&" and ";".
  std::u32string_view skip_reference();

  // The character of a numeric reference; 0 if XML has no such character.
  static char32_t numbered(std::u32string_view name);

  // Skips a comment, from the first dash on.
  void skip_comment();

  // Skips an instruction, from the question mark on; returns whether it is an XML declaration.
  bool skip_instruction();

  const std::u32string content_;
  std::size_t begin_ = 0;  // position of the token
  std::size_t at_ = 0;

 private:
  std::size_t before_;
  const std::string& name_;
};

}  // namespace translate_trt::runtime
