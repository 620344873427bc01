#include "text/xml_tokens.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/utf8.h"
#include "text/xml_reader.h"

namespace translate_trt::runtime {

namespace {

// The element around a text that is no document, of a name that no text closes by mistake.
constexpr std::u32string_view kRootTag = U"<translate-trt-fragment>";
constexpr std::u32string_view kRootEnd = U"</translate-trt-fragment>";

constexpr char32_t kByteOrderMark = U'\ufeff';

// Whether an XML declaration or a document type begins a text.
bool is_document(std::u32string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  for (const std::u32string_view start : {U"<?xml", U"<!DOCTYPE"}) {
    if (text.size() > start.size() && text.substr(0, start.size()) == start) {
      return is_space(text[start.size()]);
    }
  }
  return false;
}

class XmlTokenizer : private XmlReader {
 public:
  XmlTokenizer(std::u32string_view text, bool is_document, const std::string& name)
      : XmlReader(with_root(text, is_document), is_document ? 0 : kRootTag.size(), name),
        text_(text),
        is_document_(is_document) {}

  std::vector<MarkupToken> read() {
    if (is_document_) read_prolog();
    read_content();
    read_end();
    return std::move(tokens_);
  }

 private:
  using Attributes = decltype(MarkupToken::attributes);

  // An attribute of a tag: positions of its name, its value, and their ends.
  struct AttributeSpan {
    std::size_t name, name_end, value, value_end;
  };

  static std::u32string with_root(std::u32string_view text, bool is_document) {
    std::u32string content;
    if (!is_document) content += kRootTag;
    content += text;
    if (!is_document) content += kRootEnd;
    return content;
  }

  // ---- document ----

  // Reads what is before the root element.
  void read_prolog() {
    constexpr std::u32string_view kType = U"<!DOCTYPE";
    bool has_type = false;
    while (true) {
      if (read_between()) continue;
      if (at_end()) fail(kNoElement, at_);
      if (!is_here(U'<')) fail(kSyntaxError, at_);
      if (has_type || between(at_, at_ + kType.size()) != kType) break;
      has_type = true;
      at_ += kType.size();
      skip_type();
      add(TokenKind::kOther, kDeclaration);
    }
    if (at_ + 1 < content_.size() && !is_name_start(content_[at_ + 1])) {
      fail(kInvalidToken, at_ + 1);
    }
  }

  // Reads what is after the root element.
  void read_end() {
    while (read_between()) continue;
    if (!at_end()) fail(kJunk, at_);
  }

  // Reads white space, an instruction or a comment, which may be outside the root element, or the
  // XML declaration; returns whether there was one.
  bool read_between() {
    begin_ = at_;
    if (at_end()) return false;
    if (is_xml_space(content_[at_])) {
      while (!at_end() && is_xml_space(content_[at_])) ++at_;
      add(TokenKind::kOther, kDeclaration);
      return true;
    }
    if (between(at_, at_ + 2) == U"<?") {
      ++at_;
      if (skip_instruction() && begin_ > 0) fail(kMisplacedDeclaration, begin_);
    } else if (between(at_, at_ + 4) == U"<!--") {
      at_ += 2;
      skip_comment();
    } else {
      return false;
    }
    add(TokenKind::kOther);
    return true;
  }

  // Skips the rest of a document type, whose declarations are not checked: no entity is expanded.
  void skip_type() {
    bool in_subset = false, in_declaration = false;
    while (true) {
      const char32_t c = character();
      if (c == U'"' || c == U'\'') {
        ++at_;
        while (character() != c) skip_character();
        ++at_;
      } else if (in_declaration) {
        skip_character();
        in_declaration = c != U'>';
      } else if (in_subset && c == U'<') {
        ++at_;
        if (character() == U'?') {
          skip_instruction();
        } else {
          expect(U'!');
          in_declaration = character() != U'-';
          if (!in_declaration) skip_comment();
        }
      } else if (c == U'<' || (in_subset && c == U'>')) {
        fail_here();
      } else {
        skip_character();
        if (c == U'>') return;
        if (c == U'[' || c == U']') in_subset = c == U'[';
      }
    }
  }

  // ---- content ----

  // Reads an element with all that it contains; the root of a text that is no document has no
  // tokens.
  void read_content() {
    do {
      begin_ = at_;
      if (at_end()) fail(kNoElement, at_);
      if (is_here(U'<')) {
        read_markup();
      } else if (is_here(U'&')) {
        read_reference();
      } else {
        read_text();
      }
    } while (!open_.empty());
  }

  void read_markup() {
    ++at_;
    if (character() == U'?') {
      if (skip_instruction()) fail(kMisplacedDeclaration, begin_);
      add(TokenKind::kOther);
    } else if (character() == U'/') {
      ++at_;
      read_end_tag();
    } else if (character() != U'!') {
      read_start_tag();
    } else {
      ++at_;
      if (character() == U'-') {
        skip_comment();
        add(TokenKind::kOther);
      } else if (character() == U'[') {
        read_section();
      } else {
        fail_here();
      }
    }
  }

  void read_text() {
    std::u32string text;
    while (!at_end() && !is_here(U'<') && !is_here(U'&')) {
      if (is_here(U']') && between(at_, at_ + 3) == U"]]>") fail(kInvalidToken, at_ + 2);
      const char32_t c = content_[at_];
      skip_character();
      if (c == U'\r') {
        // A document does not end with text.
        if (at_end()) fail(kNoElement, at_ - 1);
        if (is_here(U'\n')) continue;
      }
      text += c == U'\r' ? U'\n' : c;
    }
    add(TokenKind::kText).text += text;
  }

  void read_reference() {
    const std::u32string_view name = skip_reference();
    char32_t character = 0;
    if (name.front() == U'#') {
      character = numbered(name);
      if (character == 0) fail(kInvalidNumber, begin_);
    } else {
      character = predefined_entity(name);
    }
    if (character != 0) {
      add(TokenKind::kText).text += character;
      return;
    }
    add(TokenKind::kReference);
  }

  void read_section() {
    ++at_;
    constexpr std::u32string_view kWord = U"CDATA[";
    if (content_.size() - at_ < kWord.size()) fail(kUnclosedToken, begin_);
    for (const char32_t c : kWord) expect(c);
    while (between(at_, at_ + 3) != U"]]>") {
      if (at_end()) fail(kUnclosedCdata, at_);
      // The end of the text may be part of the end of the section, or of a line end.
      const std::u32string_view rest = between(at_, at_ + 3);
      if (rest == U"]" || rest == U"]]" || rest == U"\r") fail(kUnclosedCdata, at_);
      skip_character();
    }
    at_ += 3;
    add(TokenKind::kOther, kCdata);
  }

  void read_end_tag() {
    const std::size_t first = at_;
    skip_name();
    const std::u32string_view name = between(first, at_);
    skip_spaces();
    expect(U'>');
    if (open_.back() != name) fail(kMismatchedTag, first);
    open_.pop_back();
    if (!open_.empty() || is_document_) add(TokenKind::kEnd, name);
  }

  void read_start_tag() {
    const std::size_t first = at_;
    skip_name();
    const std::u32string_view name = between(first, at_);
    std::vector<AttributeSpan> spans;
    while (true) {
      const bool is_separate = is_xml_space(character());
      skip_spaces();
      const char32_t next = character();
      if (next == U'>' || next == U'/') break;
      if (!is_separate) fail_here();
      spans.push_back(skip_attribute());
    }
    const bool is_empty = is_here(U'/');
    if (is_empty) ++at_;
    expect(U'>');
    check_names(spans);
    Attributes attributes;
    for (const AttributeSpan& span : spans) {
      attributes.emplace_back(between(span.name, span.name_end),
                              value_of(span.value, span.value_end));
    }
    const bool is_root = open_.empty();
    if (!is_empty) open_.push_back(name);
    if (is_root && !is_document_) return;
    add(is_empty ? TokenKind::kEmpty : TokenKind::kStart, name).attributes = std::move(attributes);
  }

  AttributeSpan skip_attribute() {
    AttributeSpan span{};
    span.name = at_;
    skip_name();
    span.name_end = at_;
    skip_spaces();
    expect(U'=');
    skip_spaces();
    const char32_t quote = character();
    if (quote != U'"' && quote != U'\'') fail_here();
    span.value = ++at_;
    while (character() != quote) {
      if (is_here(U'&')) {
        skip_reference();
      } else if (is_here(U'<')) {
        fail_here();
      } else {
        skip_character();
      }
    }
    span.value_end = at_++;
    return span;
  }

  // The attribute value between two positions, with single white space characters as spaces, and
  // its references decoded. Other entities are omitted.
  std::u32string value_of(std::size_t begin, std::size_t end) {
    std::u32string value;
    const std::size_t after = std::exchange(at_, begin);
    while (at_ < end) {
      const std::size_t from = at_;
      const char32_t c = content_[at_];
      if (c == U'&') {
        const std::u32string_view name = skip_reference();
        const bool is_number = name.front() == U'#';
        const char32_t decoded = is_number ? numbered(name) : predefined_entity(name);
        if (decoded == 0 && is_number) fail(kInvalidNumber, from);
        if (decoded != 0) value += decoded;
      } else {
        ++at_;
        if (c == U'\r' && at_ < end && is_here(U'\n')) ++at_;
        value += is_xml_space(c) ? U' ' : c;
      }
    }
    at_ = after;
    return value;
  }

  // Refuses two attributes of one name: the first that repeats a name.
  void check_names(const std::vector<AttributeSpan>& spans) {
    std::vector<std::pair<std::u32string_view, std::size_t>> names;
    names.reserve(spans.size());
    for (const AttributeSpan& span : spans) {
      names.emplace_back(between(span.name, span.name_end), span.name);
    }
    std::sort(names.begin(), names.end());
    std::size_t first = content_.size();
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (names[i].first == names[i - 1].first) first = std::min(first, names[i].second);
    }
    if (first < content_.size()) fail(kDuplicateAttribute, first);
  }

  // Adds what was read from `begin_` on; texts and sections continue the token before.
  MarkupToken& add(TokenKind kind, std::u32string_view name = {}) {
    const std::size_t before = is_document_ ? 0 : kRootTag.size();
    const std::size_t begin = begin_ - before;
    if (!tokens_.empty()) {
      MarkupToken& last = tokens_.back();
      if (last.kind == kind && last.name == name && (kind == TokenKind::kText || name == kCdata)) {
        const auto first = static_cast<std::size_t>(last.raw.data() - text_.data());
        last.raw = text_.substr(first, at_ - before - first);
        return last;
      }
    }
    return tokens_.emplace_back(
        MarkupToken{kind, text_.substr(begin, at_ - begin_), std::u32string(name)});
  }

  std::u32string_view text_;
  bool is_document_;
  std::vector<std::u32string_view> open_;  // names of the open elements
  std::vector<MarkupToken> tokens_;
};

}  // namespace

std::vector<MarkupToken> xml_tokens(std::u32string_view text, const std::string& name) {
  if (!text.empty() && text.front() == kByteOrderMark && is_document(text.substr(1))) {
    std::vector<MarkupToken> tokens = XmlTokenizer(text.substr(1), true, name).read();
    tokens.insert(tokens.begin(),
                  {TokenKind::kOther, text.substr(0, 1), std::u32string(kDeclaration)});
    return tokens;
  }
  return XmlTokenizer(text, is_document(text), name).read();
}

}  // namespace translate_trt::runtime
