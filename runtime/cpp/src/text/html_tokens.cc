#include "text/html_tokens.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

namespace translate_trt::runtime {

namespace {

struct NamedReference {
  std::string_view name;
  char32_t first, second;  // second: 0 if there is one character
};

struct NumberedReference {
  char32_t number, character;  // character: 0 if there is none
};

#include "text/html_entities.inc"

// Longest name that is looked up, without its semicolon, as in html.unescape.
constexpr std::size_t kLongestName = 32;
constexpr char32_t kUnknownCharacter = 0xFFFD, kEndOfUnicode = 0x110000;

// Elements whose content has references but no tags, and elements whose content has neither.
constexpr std::u32string_view kWithReferences[] = {U"title", U"textarea"};
constexpr std::u32string_view kWithoutReferences[] = {U"script", U"style",   U"xmp",
                                                      U"iframe", U"noembed", U"noframes"};
constexpr std::u32string_view kScript = U"script";
constexpr std::u32string_view kPlaintext = U"plaintext";  // all that follows is its content

bool is_html_letter(char32_t c) { return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z'); }
bool is_html_digit(char32_t c) { return c >= U'0' && c <= U'9'; }
bool is_html_space(char32_t c) {
  return c == U' ' || c == U'\t' || c == U'\n' || c == U'\r' || c == U'\f';
}

char32_t lower_case(char32_t c) { return c >= U'A' && c <= U'Z' ? c + (U'a' - U'A') : c; }

std::u32string lower_case(std::u32string_view text) {
  std::u32string lower(text);
  for (char32_t& character : lower) character = lower_case(character);
  return lower;
}

template <std::size_t size>
bool is_element_of(std::u32string_view name, const std::u32string_view (&names)[size]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The value of a digit in a base; the base if it is none.
char32_t digit_value(char32_t c, char32_t base) {
  if (is_html_digit(c)) return c - U'0';
  const char32_t lower = lower_case(c);
  return base == 16 && lower >= U'a' && lower <= U'f' ? lower - U'a' + 10 : base;
}

// ---- references ----

const NamedReference* named_reference(std::string_view name) {
  const NamedReference* found = std::lower_bound(
      std::begin(kNamedReferences), std::end(kNamedReferences), name,
      [](const NamedReference& entry, std::string_view value) { return entry.name < value; });
  return found != std::end(kNamedReferences) && found->name == name ? found : nullptr;
}

void append_numbered(std::u32string& text, char32_t number) {
  const NumberedReference* found = std::lower_bound(
      std::begin(kReplacedNumbers), std::end(kReplacedNumbers), number,
      [](const NumberedReference& entry, char32_t value) { return entry.number < value; });
  if (found != std::end(kReplacedNumbers) && found->number == number) {
    if (found->character != 0) text += found->character;
  } else if (number >= kEndOfUnicode || (number >= 0xD800 && number <= 0xDFFF)) {
    text += kUnknownCharacter;
  } else {
    text += number;
  }
}

// Decodes the numeric reference at a position, which has "&#"; returns its end, or the position if
// it is none.
std::size_t decode_number(std::u32string_view text, std::size_t begin, std::u32string& decoded) {
  std::size_t at = begin + 2;
  const bool hexadecimal = at < text.size() && lower_case(text[at]) == U'x';
  const char32_t base = hexadecimal ? 16 : 10;
  if (hexadecimal) ++at;
  const std::size_t first = at;
  char32_t number = 0;
  for (; at < text.size() && digit_value(text[at], base) < base; ++at) {
    number = std::min<char32_t>(number * base + digit_value(text[at], base), kEndOfUnicode);
  }
  if (at == first) return begin;
  append_numbered(decoded, number);
  return at < text.size() && text[at] == U';' ? at + 1 : at;
}

// Decodes the named reference at a position, which has "&", likewise. Some names have no semicolon;
// then the longest counts. In an attribute, it may not go on as a name or parameter of an address.
std::size_t decode_name(std::u32string_view text, std::size_t begin, bool in_attribute,
                        std::u32string& decoded) {
  std::string name;  // the characters of ASCII that may be one
  std::size_t at = begin + 1;
  while (at < text.size() && name.size() < kLongestName &&
         (is_html_letter(text[at]) || is_html_digit(text[at]))) {
    name += static_cast<char>(text[at++]);
  }
  const NamedReference* found = nullptr;
  if (at < text.size() && text[at] == U';') found = named_reference(name + ";");
  for (std::size_t size = std::min(name.size(), kLongestWithoutSemicolon);
       found == nullptr && size > 0; --size) {
    found = named_reference(std::string_view(name).substr(0, size));
  }
  if (found == nullptr) return begin;
  const std::size_t end = begin + 1 + found->name.size();
  if (in_attribute && found->name.back() != ';' && end < text.size() &&
      (text[end] == U'=' || is_html_letter(text[end]) || is_html_digit(text[end]))) {
    return begin;
  }
  decoded += found->first;
  if (found->second != 0) decoded += found->second;
  return end;
}

std::u32string decode_references(std::u32string_view text, bool in_attribute) {
  std::u32string decoded;
  decoded.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    if (text[at] == U'&') {
      const bool is_number = at + 1 < text.size() && text[at + 1] == U'#';
      end = is_number ? decode_number(text, at, decoded)
                      : decode_name(text, at, in_attribute, decoded);
    }
    if (end == at) decoded += text[end++];
    at = end;
  }
  return decoded;
}

// ---- tags ----

class HtmlTokenizer {
 public:
  explicit HtmlTokenizer(std::u32string_view text) : text_(text) {}

  std::vector<MarkupToken> read() {
    while (at_ < text_.size()) {
      std::size_t end = at_;
      while (end < text_.size() && !is_markup(end)) ++end;
      add_paragraphs(end);
      if (at_ < text_.size()) read_markup();
    }
    return std::move(tokens_);
  }

 private:
  using Attributes = decltype(MarkupToken::attributes);

  bool has(std::size_t at, std::u32string_view expected) const {
    return text_.substr(std::min(at, text_.size()), expected.size()) == expected;
  }

  bool has_in_any_case(std::size_t at, std::u32string_view expected) const {
    return lower_case(text_.substr(std::min(at, text_.size()), expected.size())) == expected;
  }

  // Whether a tag, comment or declaration begins at a position.
  bool is_markup(std::size_t at) const {
    if (text_[at] != U'<' || at + 1 == text_.size()) return false;
    const char32_t next = text_[at + 1];
    return is_html_letter(next) || next == U'!' || next == U'?' ||
           (next == U'/' && at + 2 < text_.size());
  }

  // Whether a position has "<", or "</", and the name of a tag.
  bool is_tag(std::size_t at, std::u32string_view opening, std::u32string_view name) const {
    if (!has(at, opening) || !has_in_any_case(at + opening.size(), name)) return false;
    const std::size_t end = at + opening.size() + name.size();
    return end < text_.size() &&
           (is_html_space(text_[end]) || text_[end] == U'/' || text_[end] == U'>');
  }

  MarkupToken& add(TokenKind kind, std::size_t end, std::u32string name = {}) {
    tokens_.push_back({kind, text_.substr(at_, end - at_), std::move(name)});
    at_ = end;
    return tokens_.back();
  }

  // Appends text, in which white space with a blank line is a token of its own.
  void add_paragraphs(std::size_t end) {
    for (std::size_t at = at_; at < end;) {
      std::size_t after = at;
      while (after < end && is_html_space(text_[after])) ++after;
      if (is_paragraph_break(text_.substr(at, after - at))) {
        add_text(at, true);
        add_text(after, true);
      }
      at = std::max(after, at + 1);
    }
    add_text(end, true);
  }

  void add_text(std::size_t end, bool with_references) {
    if (end == at_) return;
    MarkupToken& token = add(TokenKind::kText, end);
    token.text = with_references ? decode_references(token.raw, false) : std::u32string(token.raw);
  }

  // The position after the next occurrence of a string; the end of the text if there is none.
  std::size_t after(std::u32string_view wanted, std::size_t at) const {
    const std::size_t found = text_.find(wanted, at);
    return found == text_.npos ? text_.size() : found + wanted.size();
  }

  void read_markup() {
    const char32_t next = text_[at_ + 1];
    if (is_html_letter(next)) {
      read_tag(TokenKind::kStart, at_ + 1);
    } else if (next == U'/' && is_html_letter(text_[at_ + 2])) {
      read_tag(TokenKind::kEnd, at_ + 2);
    } else if (has(at_, U"<!--")) {
      add(TokenKind::kOther, comment_end(at_ + 4));
    } else if (has_in_any_case(at_, U"<!doctype")) {
      const std::size_t end = after(U">", at_);
      const bool complete = text_[end - 1] == U'>';
      add(TokenKind::kOther, end, complete ? std::u32string(kDeclaration) : std::u32string());
    } else {
      add(TokenKind::kOther, after(U">", at_));
    }
  }

  std::size_t comment_end(std::size_t at) const {
    if (has(at, U">")) return at + 1;
    if (has(at, U"->")) return at + 2;
    for (at = text_.find(U"--", at); at != text_.npos; at = text_.find(U"--", at + 1)) {
      if (has(at + 2, U">")) return at + 3;
      if (has(at + 2, U"!>")) return at + 4;
    }
    return text_.size();
  }

  std::size_t skip_spaces(std::size_t at) const {
    while (at < text_.size() && is_html_space(text_[at])) ++at;
    return at;
  }

  // The end of a name that goes on until white space or one of other characters.
  std::size_t name_end(std::size_t at, std::u32string_view others) const {
    while (at < text_.size() && !is_html_space(text_[at]) &&
           others.find(text_[at]) == others.npos) {
      ++at;
    }
    return at;
  }

  void read_tag(TokenKind kind, std::size_t at) {
    const std::size_t begin = at;
    at = name_end(at, U"/>");
    const std::u32string name = lower_case(text_.substr(begin, at - begin));
    Attributes attributes;
    bool is_empty = false;
    while (true) {
      is_empty = is_empty && has(at, U">");
      at = skip_spaces(at);
      if (has(at, U"/")) {
        ++at;
        is_empty = kind == TokenKind::kStart;
      } else if (at < text_.size() && text_[at] != U'>') {
        at = read_attribute(at, attributes);
      } else {
        break;
      }
    }
    if (at == text_.size()) {
      add(TokenKind::kOther, at);
      return;
    }
    if (is_empty) kind = TokenKind::kEmpty;
    MarkupToken& token = add(kind, at + 1, name);
    if (kind != TokenKind::kEnd) token.attributes = std::move(attributes);
    if (kind == TokenKind::kStart) read_raw_text(name);
  }

  // Reads the attribute at a position; returns its end. Its name may begin with "=".
  std::size_t read_attribute(std::size_t at, Attributes& attributes) {
    std::size_t end = name_end(at + 1, U"/>=");
    std::u32string name = lower_case(text_.substr(at, end - at));
    std::u32string_view value;
    at = skip_spaces(end);
    if (has(at, U"=")) {
      at = skip_spaces(at + 1);
      if (has(at, U"\"") || has(at, U"'")) {
        end = std::min(text_.find(text_[at], at + 1), text_.size());
        value = text_.substr(at + 1, end - at - 1);
        end = std::min(end + 1, text_.size());
      } else {
        end = name_end(at, U">");
        value = text_.substr(at, end - at);
      }
    }
    attributes.emplace_back(std::move(name), decode_references(value, true));
    return end;
  }

  // Reads the content of an element that has no tags.
  void read_raw_text(std::u32string_view name) {
    const bool with_references = is_element_of(name, kWithReferences);
    if (name == kScript) {
      add_text(script_end(), false);
    } else if (with_references || is_element_of(name, kWithoutReferences)) {
      std::size_t end = text_.find(U'<', at_);
      while (end != text_.npos && !is_tag(end, U"</", name)) end = text_.find(U'<', end + 1);
      add_text(std::min(end, text_.size()), with_references);
    } else if (name == kPlaintext) {
      add_text(text_.size(), false);
    }
  }

  // The end of a script. After "<!--" and until "-->", the end tag of a script in it is not that of
  // the script (states "script data escaped" and "script data double escaped" of the standard).
  std::size_t script_end() const {
    bool escaped = false, inside = false;
    for (std::size_t at = at_; at < text_.size();) {
      if (escaped && has(at, U"-->")) {
        escaped = inside = false;
        at += 3;
      } else if (!escaped && has(at, U"<!--")) {
        escaped = true;
        at += 2;  // these dashes may be those of "-->"
      } else if (is_tag(at, U"</", kScript)) {
        if (!inside) return at;
        inside = false;
        ++at;
      } else {
        inside = inside || (escaped && is_tag(at, U"<", kScript));
        ++at;
      }
    }
    return text_.size();
  }

  std::u32string_view text_;
  std::size_t at_ = 0;
  std::vector<MarkupToken> tokens_;
};

}  // namespace

bool is_paragraph_break(std::u32string_view text) {
  return std::count(text.begin(), text.end(), U'\n') > 1 &&
         std::all_of(text.begin(), text.end(), is_html_space);
}

std::vector<MarkupToken> html_tokens(std::u32string_view text) {
  return HtmlTokenizer(text).read();
}

}  // namespace translate_trt::runtime
