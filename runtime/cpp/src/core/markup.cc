#include "core/markup.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/errors.h"
#include "base/utf8.h"
#include "text/html_tokens.h"
#include "text/placeholders.h"
#include "text/tag_placement.h"
#include "text/translatable.h"
#include "text/unicode.h"

namespace translate_trt::runtime {

// Types of MarkedSegment, which is no type of this file alone.
enum class MarkedKind {
  kText,
  kOpen,
  kClose,
  kLeaf,  // without content that is translated
  kCut,   // separates segments
};

struct MarkedItem {
  MarkedKind kind;
  std::u32string raw;        // characters of the text with markup
  std::u32string text = {};  // of a text, or of a leaf that is shown to the model
  bool silent = false;       // a leaf that leaves no trace in the text, as a comment
  bool is_tag = true;        // a leaf that must stay in its element
};

// A segment without tags, as the model gets it.
struct PlainSegment {
  std::u32string text;  // with single spaces
  Elements elements;    // its elements and leaves, but not the placeholders that are shown
  std::vector<std::pair<std::u32string_view, Span>> shown;  // leaves that are shown, in order
};

// The nearest text or edge beside an item.
struct Neighbour {
  Side side = Side::kApart;
  bool is_beyond = false;  // anything without text, but not silent, is between
};

namespace {

// Elements of HTML that separate texts, and other elements that a sentence does not go across.
constexpr std::u32string_view kBlocks[] = {
    U"address", U"article",  U"aside",   U"base",     U"basefont", U"blockquote", U"body",
    U"br",      U"caption",  U"center",  U"col",      U"colgroup", U"dd",         U"details",
    U"dialog",  U"dir",      U"div",     U"dl",       U"dt",       U"fieldset",   U"figcaption",
    U"figure",  U"footer",   U"form",    U"frame",    U"frameset", U"h1",         U"h2",
    U"h3",      U"h4",       U"h5",      U"h6",       U"head",     U"header",     U"hgroup",
    U"hr",      U"html",     U"iframe",  U"legend",   U"li",       U"link",       U"main",
    U"menu",    U"meta",     U"nav",     U"noframes", U"noscript", U"object",     U"ol",
    U"option",  U"optgroup", U"p",       U"param",    U"pre",      U"search",     U"section",
    U"select",  U"source",   U"summary", U"table",    U"tbody",    U"td",         U"textarea",
    U"tfoot",   U"th",       U"thead",   U"title",    U"tr",       U"track",      U"ul",
    U"video"};
constexpr std::u32string_view kWithoutEnd[] = {
    U"area", U"base",  U"basefont", U"br",   U"col",   U"embed",  U"frame", U"hr",
    U"img",  U"input", U"link",     U"meta", U"param", U"source", U"track", U"wbr"};
// Blocks that a paragraph may contain.
constexpr std::u32string_view kInParagraphs[] = {
    U"base",     U"basefont", U"br",       U"iframe", U"link",  U"meta",
    U"noscript", U"object",   U"optgroup", U"option", U"param", U"select",
    U"source",   U"textarea", U"title",    U"track",  U"video"};
// Elements whose end tag may be omitted, except paragraphs, and the start tags that end them, each
// between spaces.
constexpr std::pair<std::u32string_view, std::u32string_view> kEndedBy[] = {
    {U" li ", U" li "},
    {U" dt dd ", U" dt dd "},
    {U" rt rp ", U" rt rp "},
    {U" optgroup ", U" optgroup "},
    {U" option ", U" option optgroup "},
    {U" caption ", U" col colgroup tbody tfoot thead tr "},
    {U" tbody tfoot thead ", U" tbody tfoot thead "},
    {U" tr ", U" tr tbody tfoot thead "},
    {U" td th ", U" td th tr tbody tfoot thead "},
    {U" head ", U" body "},
    {U" body html ", U" "}};
// Elements whose content is no markup, not even references; others that are not seen; whose content
// is not text; of code.
constexpr std::u32string_view kRaw[] = {U"script",  U"style",    U"xmp",      U"iframe",
                                        U"noembed", U"noframes", U"plaintext"};
constexpr std::u32string_view kUnseen[] = {U"script", U"style", U"template"};
constexpr std::u32string_view kNotText[] = {U"script", U"style", U"template", U"audio",
                                            U"canvas", U"math",  U"svg"};
constexpr std::u32string_view kUntranslated[] = {
    U"template", U"audio", U"canvas", U"math",   U"svg",      U"code", U"kbd",
    U"object",   U"pre",   U"samp",   U"select", U"textarea", U"var",  U"video"};
// Tags without content that are seen.
constexpr std::u32string_view kObjects[] = {U"img", U"input", U"embed", kCdata};
// Longest text of an element that is shown to the model.
constexpr std::size_t kLongestShown = 80;

template <std::size_t size>
bool is_in(const std::u32string_view (&names)[size], std::u32string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr char32_t kNoBreakSpace = 0xA0;
// References by name, each before one that it begins with. Texts of XML have none of them.
constexpr std::u32string_view kSpaceNames[] = {U"&nbsp;", U"&nbsp", U"&NonBreakingSpace;",
                                               U"&NewLine;", U"&Tab;"};

// White space between tags, as both kinds of markup define it, and no-break spaces.
bool is_markup_space(char32_t character) {
  return character == kNoBreakSpace ||
         std::u32string_view(U" \t\r\n\f").find(character) != std::u32string_view::npos;
}

// Length of the reference to white space that a text begins with; 0 if there is none.
std::size_t space_reference_at(std::u32string_view text) {
  for (const std::u32string_view name : kSpaceNames) {
    if (text.substr(0, name.size()) == name) return name.size();
  }
  if (text.substr(0, 2) != U"&#") return 0;
  std::size_t at = 2;
  const bool hexadecimal = at < text.size() && (text[at] == U'x' || text[at] == U'X');
  if (hexadecimal) ++at;
  constexpr char32_t kTooLarge = 0x1000;  // for white space
  char32_t number = 0;
  for (; at < text.size(); ++at) {
    const char32_t lower = text[at] | 0x20;
    char32_t digit = 0;
    if (text[at] >= U'0' && text[at] <= U'9') {
      digit = text[at] - U'0';
    } else if (hexadecimal && lower >= U'a' && lower <= U'f') {
      digit = lower - U'a' + 10;
    } else {
      break;
    }
    number = std::min<char32_t>(number * (hexadecimal ? 16 : 10) + digit, kTooLarge);
  }
  if (!is_markup_space(number)) return 0;
  return at < text.size() && text[at] == U';' ? at + 1 : at;
}

// Length of the white space that a text begins with, or ends with.
std::size_t spaces_at(std::u32string_view raw, Markup markup, bool at_end) {
  std::u32string_view rest = raw;
  while (!rest.empty()) {
    std::size_t size = is_markup_space(at_end ? rest.back() : rest.front()) ? 1 : 0;
    if (size == 0 && markup != Markup::kText) {
      const std::size_t begin = at_end ? rest.rfind(U'&') : 0;
      if (begin == rest.npos) break;
      size = space_reference_at(rest.substr(begin));
      if (at_end && begin + size < rest.size()) break;
    }
    if (size == 0) break;
    if (at_end) {
      rest.remove_suffix(size);
    } else {
      rest.remove_prefix(size);
    }
  }
  return raw.size() - rest.size();
}

using WordPair = std::pair<std::u32string, std::u32string>;

// Calls visit(position of the space, pair) for each pair of words with a space between them. The
// first may end in a symbol, as in "Dr.", and each may be one.
template <class Visit>
void for_each_pair(std::u32string_view text, char32_t space, const Visit& visit) {
  for (std::size_t at = text.find(space); at != text.npos; at = text.find(space, at + 1)) {
    const auto is_symbol = [&](std::size_t i) { return !is_word(text[i]) && !is_space(text[i]); };
    std::size_t begin = at, end = at + 1;
    if (begin > 0 && is_symbol(begin - 1)) --begin;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end == at + 1 && end < text.size() && is_symbol(end)) ++end;
    if (begin < at && end > at + 1) {
      visit(at, WordPair(text.substr(begin, at - begin), text.substr(at + 1, end - at - 1)));
    }
  }
}

bool is_blank(std::u32string_view text) { return std::all_of(text.begin(), text.end(), is_space); }

std::vector<std::u32string_view> words_between_spaces(std::u32string_view text) {
  std::vector<std::u32string_view> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto is_end = [&](std::size_t at) { return at == text.size() || is_space(text[at]); };
    std::size_t end = begin;
    while (!is_end(end)) ++end;
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::u32string with_single_spaces(std::u32string_view text) {
  std::u32string joined;
  for (const std::u32string_view word : words_between_spaces(text)) {
    if (!joined.empty()) joined += U' ';
    joined += word;
  }
  return joined;
}

// ---- parts of a text ----

constexpr std::ptrdiff_t kNoPartner = -1;
using Partners = std::vector<std::ptrdiff_t>;

// The index of the end tag of each start tag that has one, and the reverse.
Partners partners_of(const std::vector<MarkupToken>& tokens, Markup markup) {
  Partners partners(tokens.size(), kNoPartner);
  std::vector<std::size_t> stack;
  std::unordered_map<std::u32string_view, std::size_t> open;  // number of start tags of a name
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const MarkupToken& token = tokens[index];
    if (token.kind == TokenKind::kStart &&
        !(markup == Markup::kHtml && is_in(kWithoutEnd, token.name))) {
      stack.push_back(index);
      ++open[token.name];
    } else if (token.kind == TokenKind::kEnd && open[token.name] > 0) {
      while (tokens[stack.back()].name != token.name) {
        --open[tokens[stack.back()].name];  // has no end tag
        stack.pop_back();
      }
      --open[token.name];
      partners[stack.back()] = static_cast<std::ptrdiff_t>(index);
      partners[index] = static_cast<std::ptrdiff_t>(stack.back());
      stack.pop_back();
    }
  }
  return partners;
}

// Which tokens of XML no sentence goes across: tags of elements beside which is no text. An element
// is part of a sentence if it is beside text, or in another one that is.
std::vector<bool> xml_cuts(const std::vector<MarkupToken>& tokens, const Partners& partners,
                           bool whole) {
  const std::size_t outside = tokens.size();  // stands for what has no parent
  std::vector<std::size_t> parents, stack = {outside};
  std::vector<bool> has_text(tokens.size() + 1);
  has_text[outside] = !whole;
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const MarkupToken& token = tokens[index];
    if (token.kind == TokenKind::kEnd && stack.size() > 1) stack.pop_back();
    parents.push_back(stack.back());
    if (token.kind == TokenKind::kStart) {
      stack.push_back(index);
    } else if (token.kind == TokenKind::kReference || !is_blank(token.text)) {
      has_text[stack.back()] = true;
    }
  }
  std::vector<bool> cuts;
  for (const MarkupToken& token : tokens) cuts.push_back(token.name == kDeclaration);
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const TokenKind kind = tokens[index].kind;
    if (kind != TokenKind::kStart && kind != TokenKind::kEmpty) continue;
    // A parent that is part of a sentence makes all that it has part of the sentence.
    if (has_text[parents[index]]) has_text[index] = true;
    cuts[index] = !has_text[parents[index]];
    if (partners[index] != kNoPartner) {
      cuts[static_cast<std::size_t>(partners[index])] = cuts[index];
    }
  }
  return cuts;
}

// Whether a start tag says that the text of its element is not translated.
bool is_untranslated(const MarkupToken& token, Markup markup) {
  if (token.kind != TokenKind::kStart) return false;
  const std::u32string_view translate = token.attribute(U"translate");
  if (translate.size() == 2 && (translate[0] | 0x20) == U'n' && (translate[1] | 0x20) == U'o') {
    return true;
  }
  if (markup != Markup::kHtml) return false;
  const auto classes = words_between_spaces(token.attribute(U"class"));
  return is_in(kRaw, token.name) || is_in(kUntranslated, token.name) ||
         std::find(classes.begin(), classes.end(), U"notranslate") != classes.end();
}

// The index of the end tag of the start tag at an index, if it has one.
std::optional<std::size_t> end_of(const Partners& partners, std::size_t index) {
  const std::ptrdiff_t partner = partners[index];
  if (partner <= static_cast<std::ptrdiff_t>(index)) return std::nullopt;
  return static_cast<std::size_t>(partner);
}

// Whether a list of names between spaces has a name.
bool has_name(std::u32string_view names, std::u32string_view name) {
  const std::u32string spaced = U" " + std::u32string(name) + U" ";
  return names.find(spaced) != std::u32string_view::npos;
}

// The last token of an element of HTML without an end tag: the start tag itself of an element that
// cannot have content or must have an end tag.
std::size_t implied_end(const std::vector<MarkupToken>& tokens, const Partners& partners,
                        std::size_t index) {
  const std::u32string_view name = tokens[index].name;
  if (is_in(kRaw, name)) return tokens.size() - 1;
  const bool is_paragraph = name == U"p";
  const auto* const group =
      std::find_if(std::begin(kEndedBy), std::end(kEndedBy),
                   [&](const auto& one) { return has_name(one.first, name); });
  if (!is_paragraph && group == std::end(kEndedBy)) return index;
  const auto ends = [&](const MarkupToken& token) {
    if (token.kind != TokenKind::kStart && token.kind != TokenKind::kEmpty) return false;
    if (!is_paragraph) return has_name(group->second, token.name);
    return is_in(kBlocks, token.name) && !is_in(kInParagraphs, token.name);
  };
  std::size_t at = index + 1;
  while (at < tokens.size() && !ends(tokens[at])) {
    // Elements with both tags are passed over as a whole; the end tag of one around ends this.
    const auto end_tag = end_of(partners, at);
    if (!end_tag && partners[at] != kNoPartner) break;
    at = end_tag.value_or(at) + 1;
  }
  return at - 1;
}

// Cuts texts of HTML at blank lines, except in elements that are not translated.
void cut_paragraphs(const std::vector<MarkupToken>& tokens, const Partners& partners,
                    std::vector<bool>& cuts) {
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    if (is_untranslated(tokens[index], Markup::kHtml)) {
      const auto end_tag = end_of(partners, index);
      index = end_tag ? *end_tag : implied_end(tokens, partners, index);
    } else if (tokens[index].kind == TokenKind::kText && is_paragraph_break(tokens[index].raw)) {
      cuts[index] = true;
    }
  }
}

// Cuts the elements with a cut inside, so that each segment has both tags of its elements.
void cut_around(std::vector<bool>& cuts, const Partners& partners) {
  std::vector<std::size_t> before = {0};  // number of cuts
  for (const bool cut : cuts) before.push_back(before.back() + (cut ? 1 : 0));
  for (std::size_t first = 0; first < cuts.size(); ++first) {
    const auto last = end_of(partners, first);
    if (last && before[*last] > before[first + 1]) cuts[first] = cuts[*last] = true;
  }
}

// Cuts elements in too many others of their segment, because placing tags takes time for all words
// in each of these; returns whether there are any.
bool cut_deep(std::vector<bool>& cuts, const Partners& partners) {
  constexpr std::size_t kMostNested = 100;
  std::size_t depth = 0;
  bool found = false;
  for (std::size_t index = 0; index < cuts.size(); ++index) {
    if (cuts[index] || partners[index] < 0) continue;
    const auto last = end_of(partners, index);
    if (!last) {
      --depth;
    } else if (depth < kMostNested) {
      ++depth;
    } else {
      cuts[index] = cuts[*last] = found = true;
    }
  }
  return found;
}

// The parts of a text; those of the kind kCut are between segments.
std::vector<MarkedItem> items_of(const std::vector<MarkupToken>& tokens, Markup markup,
                                 bool whole) {
  const Partners partners = partners_of(tokens, markup);
  std::vector<bool> cuts;
  if (markup == Markup::kHtml) {
    for (const MarkupToken& token : tokens) {
      cuts.push_back(token.name == kDeclaration || is_in(kBlocks, token.name));
    }
    cut_paragraphs(tokens, partners, cuts);
  } else {
    cuts = xml_cuts(tokens, partners, whole);
  }
  cut_around(cuts, partners);
  if (cut_deep(cuts, partners)) cut_around(cuts, partners);
  std::vector<MarkedItem> items;
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    const MarkupToken& token = tokens[index];
    const std::u32string raw(token.raw);
    const auto end_tag = end_of(partners, index);
    std::size_t last = index;  // of an element that is not translated
    if (is_untranslated(token, markup)) {
      last = end_tag ? *end_tag : implied_end(tokens, partners, index);
    }
    if (last > index) {
      std::u32string all, text;
      bool is_cut = false;
      for (std::size_t inside = index; inside <= last; ++inside) {
        all += tokens[inside].raw;
        text += tokens[inside].text;
        is_cut = is_cut || cuts[inside];
      }
      if (is_cut) {
        items.push_back({MarkedKind::kCut, std::move(all)});
      } else {
        text = with_single_spaces(text);
        const bool is_shown = !is_in(kNotText, token.name) && text.size() <= kLongestShown;
        const bool silent = markup == Markup::kHtml && is_in(kUnseen, token.name);
        items.push_back(
            {MarkedKind::kLeaf, std::move(all), is_shown ? std::move(text) : U"", silent});
      }
      index = last;
    } else if (cuts[index]) {
      items.push_back({MarkedKind::kCut, raw});
    } else if (token.kind == TokenKind::kText) {
      items.push_back({MarkedKind::kText, raw, token.text});
    } else if (partners[index] != kNoPartner) {
      items.push_back({end_tag ? MarkedKind::kOpen : MarkedKind::kClose, raw});
    } else {
      const bool is_object = token.kind == TokenKind::kEmpty ||
                             token.kind == TokenKind::kReference || is_in(kObjects, token.name);
      items.push_back({MarkedKind::kLeaf, raw, {}, !is_object});
    }
  }
  return items;
}

// Whether an item stays where it is at the edge of a segment.
bool is_edge(const MarkedItem& item, Markup markup) {
  if (item.kind == MarkedKind::kText) {
    return spaces_at(item.raw, markup, false) == item.raw.size();
  }
  return item.kind == MarkedKind::kLeaf && item.text.empty();
}

// Cuts a text at its placeholders.
void add_without_placeholders(const MarkedItem& item, Markup markup, std::vector<MarkedItem>& to) {
  if (item.kind != MarkedKind::kText) {
    to.push_back(item);
    return;
  }
  const std::u32string& text = item.text;
  std::size_t end = 0;
  const auto add_text = [&](std::size_t until) {
    if (until > end) to.push_back({MarkedKind::kText, {}, text.substr(end, until - end)});
  };
  for (const auto& [first, last] : find_placeholders(text)) {
    add_text(first);
    const std::u32string found = text.substr(first, last - first);
    const bool is_shown = found.size() <= kLongestShown;
    to.push_back(
        {MarkedKind::kLeaf, encode_text(found, markup), is_shown ? found : U"", false, false});
    end = last;
  }
  add_text(text.size());
}

// What is before each item of a segment, or after it.
std::vector<Neighbour> neighbours_of(const std::vector<MarkedItem>& items, bool forwards) {
  std::vector<Neighbour> found(items.size());
  std::vector<Side> around;  // of the elements that the item is in
  Neighbour next;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t index = forwards ? i : items.size() - 1 - i;
    const MarkedItem& item = items[index];
    const bool is_leaf = item.kind == MarkedKind::kLeaf;
    found[index] = next;
    if (item.kind == MarkedKind::kText || (is_leaf && !item.text.empty())) {
      const char32_t character = forwards ? item.text.back() : item.text.front();
      const bool is_word = is_leaf || is_alphanumeric(character);
      next = {is_word ? Side::kWord : is_space(character) ? Side::kSpace : Side::kApart, false};
    } else if (is_leaf) {
      next.is_beyond = next.is_beyond || !item.silent;
    } else if (item.kind == (forwards ? MarkedKind::kOpen : MarkedKind::kClose)) {
      around.push_back(next.side);
      next = {Side::kEdge, false};
    } else {
      const Side outside = around.back();
      around.pop_back();
      if (next.side == Side::kEdge) {
        next = {outside, true};
      } else if (next.is_beyond) {
        next = {Side::kWord, false};
      }
    }
  }
  return found;
}

// Builder of a text with single spaces.
class PlainWriter {
 public:
  const std::u32string& text() const { return text_; }

  // Something that is not shown is here.
  void leaf() { after_leaf_ = true; }

  // Appends a text; returns the position of its first character.
  std::size_t write(std::u32string_view text) {
    const auto words = words_between_spaces(text);
    space_ = space_ || (!text.empty() && is_space(text.front()));
    if (words.empty()) return text_.size();
    const char32_t first = words.front().front();
    // Without what was between them, two words are still two, and a comma follows its word.
    const bool joins =
        after_leaf_ && !text_.empty() && is_alphanumeric(text_.back()) && is_alphanumeric(first);
    const bool apart = space_ && !(after_leaf_ && is_closing(first));
    if (!text_.empty() && (apart || joins)) text_ += U' ';
    const std::size_t begin = text_.size();
    text_ += with_single_spaces(text);
    after_leaf_ = false;
    space_ = is_space(text.back());
    return begin;
  }

 private:
  std::u32string text_;
  bool after_leaf_ = false, space_ = false;
};

// The texts that are shown to the model, and their occurrences in a text that are not part of a
// longer word: leftmost, longest first. Time is linear in the length of the text, however many of
// them there are: at each position, each length is looked up once.
class ShownTexts {
 public:
  explicit ShownTexts(const PlainSegment& plain) {
    for (const auto& [text, span] : plain.shown) {
      if (texts_.insert(text).second) sizes_by_first_[text.front()].push_back(text.size());
    }
    for (auto& [first, sizes] : sizes_by_first_) {
      std::sort(sizes.begin(), sizes.end(), std::greater<>());
      sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    }
  }

  std::vector<Span> find(std::u32string_view text) const {
    std::vector<Span> found;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = match(text, at);
      if (size > 0) found.push_back({at, at + size});
      at += std::max<std::size_t>(size, 1);
    }
    return found;
  }

 private:
  // Length of the text that is at a position; 0 if none is.
  std::size_t match(std::u32string_view text, std::size_t at) const {
    const auto sizes = sizes_by_first_.find(text[at]);
    if (sizes == sizes_by_first_.end()) return 0;
    for (const std::size_t size : sizes->second) {
      const std::size_t end = at + size;
      if (end <= text.size() && !is_in_word(text, at) && !is_in_word(text, end) &&
          texts_.count(text.substr(at, size)) > 0) {
        return size;
      }
    }
    return 0;
  }

  // Whether a word continues across a position.
  static bool is_in_word(std::u32string_view text, std::size_t at) {
    return at > 0 && at < text.size() && is_word(text[at - 1]) && is_word(text[at]);
  }

  std::unordered_set<std::u32string_view> texts_;
  std::unordered_map<char32_t, std::vector<std::size_t>> sizes_by_first_;
};

// Finds what was shown to the model in the translation. Returns nullopt unless the translation has
// each as often as the plain text, which may not have it elsewhere.
std::optional<std::vector<Copy>> copies_of(const PlainSegment& plain, std::u32string_view target) {
  std::vector<Copy> copies;
  if (plain.shown.empty()) return copies;
  const ShownTexts texts(plain);
  const auto in_source = texts.find(plain.text);
  const bool same =
      std::equal(in_source.begin(), in_source.end(), plain.shown.begin(), plain.shown.end(),
                 [](const Span& a, const auto& b) { return a == b.second; });
  if (!same) return std::nullopt;
  std::unordered_map<std::u32string_view, std::vector<Span>> left;  // last one first
  for (auto one = plain.shown.rbegin(); one != plain.shown.rend(); ++one) {
    left[one->first].push_back(one->second);
  }
  for (const auto& span : texts.find(target)) {
    auto& sources = left[target.substr(span.first, span.second - span.first)];
    if (sources.empty()) return std::nullopt;
    copies.push_back({sources.back(), span});
    sources.pop_back();
  }
  if (copies.size() != plain.shown.size()) return std::nullopt;
  return copies;
}

// The positions at which elements begin or end.
std::vector<std::size_t> edges_of(const Elements& elements) {
  std::vector<std::size_t> edges;
  for (std::size_t i = 1; i < elements.size(); ++i) {
    edges.push_back(elements[i].begin);
    edges.push_back(elements[i].end);
  }
  return edges;
}

}  // namespace

// Text with inline tags, which is translated as one.
class MarkedSegment {
 public:
  MarkedSegment(std::vector<MarkedItem> items, Markup markup) : markup_(markup) {
    for (const MarkedItem& item : items) fixed_ += item.raw;
    std::size_t first = 0, last = items.size();
    while (first < last && is_edge(items[first], markup)) before_ += items[first++].raw;
    while (first < last && is_edge(items[last - 1], markup)) --last;
    for (std::size_t i = last; i < items.size(); ++i) after_ += items[i].raw;
    if (first < last && items[first].kind == MarkedKind::kText) {
      const MarkedItem& item = items[first];
      before_ += item.raw.substr(0, spaces_at(item.raw, markup, false));
    }
    if (first < last && items[last - 1].kind == MarkedKind::kText) {
      const MarkedItem& item = items[last - 1];
      after_ = item.raw.substr(item.raw.size() - spaces_at(item.raw, markup, true)) + after_;
    }
    if (first < last && items[first].kind == MarkedKind::kText) {
      std::u32string& text = items[first].text;
      text.erase(0, spaces_at(text, Markup::kText, false));
    }
    if (first < last && items[last - 1].kind == MarkedKind::kText) {
      std::u32string& text = items[last - 1].text;
      text.erase(text.size() - spaces_at(text, Markup::kText, true));
    }
    for (std::size_t i = first; i < last; ++i) add_without_placeholders(items[i], markup, items_);
    before_items_ = neighbours_of(items_, true);
    after_items_ = neighbours_of(items_, false);
    std::u32string text;
    for (const MarkedItem& item : items_) {
      if (item.kind == MarkedKind::kText) text += item.text;
    }
    has_text_ = is_translatable(text);
    for_each_pair(text, kNoBreakSpace,
                  [&](std::size_t, WordPair pair) { no_break_pairs_.insert(std::move(pair)); });
    prepare(true);
  }

  // Makes the text without tags, with or without what is shown to the model.
  void prepare(bool shown) {
    plain_ = {};
    plain_.elements.emplace_back();
    // A segment whose own text is not translatable has no such text.
    if (!has_text_) return;
    PlainWriter writer;
    Elements& elements = plain_.elements;
    std::vector<std::size_t> stack = {0};
    std::vector<std::size_t> opened;       // items of the start tags in the stack
    std::optional<std::size_t> last_seen;  // last leaf that is seen, but not shown
    const auto add = [&](Element element) {
      elements[stack.back()].children.push_back(elements.size());
      elements.push_back(std::move(element));
    };
    for (std::size_t index = 0; index < items_.size(); ++index) {
      const MarkedItem& item = items_[index];
      const std::size_t at = writer.text().size();
      Element element = {item.raw, {}, at, at};
      if (item.kind == MarkedKind::kOpen) {
        add(element);
        stack.push_back(elements.size() - 1);
        opened.push_back(index);
      } else if (item.kind == MarkedKind::kClose) {
        Element& closed = elements[stack.back()];
        closed.closing = item.raw;
        closed.end = at;
        if (at == closed.begin &&
            set_sides(closed, opened.back(), index, last_seen && *last_seen > opened.back())) {
          writer.leaf();
        }
        stack.pop_back();
        opened.pop_back();
      } else if (item.kind == MarkedKind::kText) {
        writer.write(item.text);
      } else if (!item.text.empty() && shown) {
        const std::size_t begin = writer.write(item.text);
        const Span span = {begin, writer.text().size()};
        plain_.shown.push_back({item.text, span});
        if (!item.is_tag) continue;
        std::tie(element.begin, element.end) = span;
        element.is_copy = true;
        add(element);
      } else {
        if (!item.silent) {
          writer.leaf();
          last_seen = index;
        }
        set_sides(element, index, index, !item.silent);
        add(element);
      }
    }
    plain_.text = writer.text();
    elements[0].end = plain_.text.size();
  }

  // The text without tags; empty if there is nothing to translate.
  const std::u32string& plain() const { return plain_.text; }

  // Whether the text has no tag whose place the attention decides.
  bool is_tagless() const { return plain_.elements.size() == 1 && plain_.shown.empty(); }

  // Whether every hypothesis has a text.
  bool is_complete() const {
    return std::all_of(hypotheses_.begin(), hypotheses_.end(),
                       [](const auto& one) { return one.first.has_value(); });
  }

  // Puts the tags back into the hypotheses that have no text yet.
  void receive(const Translation& translation) {
    const std::size_t ranks = translation.hypotheses.size();
    sentences_ = plain_.text.empty() ? 0 : translation.sentences;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const TextHypothesis& hypothesis = translation.hypotheses[rank];
      if (rank < hypotheses_.size() && hypotheses_[rank].first) continue;
      std::optional<std::u32string> text = fixed_;
      if (!plain_.text.empty()) {
        text = with_tags(*hypothesis.aligned);
        if (text) text = before_ + *text + after_;
      }
      TextHypothesis kept;
      kept.score = hypothesis.score;
      kept.pieces = hypothesis.pieces;
      kept.terms = hypothesis.terms;
      hypotheses_.resize(std::max(hypotheses_.size(), rank + 1));
      hypotheses_[rank] = {std::move(text), std::move(kept)};
    }
    // A second translation may have fewer hypotheses than the first.
    hypotheses_.resize(std::min(hypotheses_.size(), std::max<std::size_t>(1, ranks)));
  }

  std::size_t ranks() const { return hypotheses_.size(); }

  // Number of sentences of the text that were translated.
  std::size_t sentences() const { return sentences_; }

  // Appends a hypothesis, or the last one, to that of a text.
  void append_to(TextHypothesis& whole, std::size_t rank) const {
    const auto& [text, hypothesis] = hypotheses_[std::min(rank, hypotheses_.size() - 1)];
    if (text) whole.text += encode_utf8(*text);
    whole.score += hypothesis.score;
    whole.pieces.insert(whole.pieces.end(), hypothesis.pieces.begin(), hypothesis.pieces.end());
    whole.terms.insert(whole.terms.end(), hypothesis.terms.begin(), hypothesis.terms.end());
  }

 private:
  // Sets what an element without text, of the items from first to last, has beside it; returns
  // whether it is seen. An element without anything that is seen may be an icon if a space is
  // beside it.
  bool set_sides(Element& element, std::size_t first, std::size_t last, bool has_object) const {
    const Neighbour &before = before_items_[first], &after = after_items_[last];
    element.before = before.side;
    element.after = after.side;
    const bool has_space = before.side == Side::kSpace || after.side == Side::kSpace;
    const bool is_seen = has_object || (items_[first].kind == MarkedKind::kOpen && has_space);
    element.keeps_before = is_seen && !before.is_beyond;
    element.keeps_after = is_seen && !after.is_beyond;
    return is_seen;
  }

  // A hypothesis with tags; nullopt if it lacks what was shown to the model.
  std::optional<std::u32string> with_tags(TextAlignment alignment) const {
    if (!no_break_pairs_.empty()) {
      std::u32string& target = alignment.target;
      for_each_pair(std::u32string(target), U' ', [&](std::size_t at, const WordPair& pair) {
        if (no_break_pairs_.count(pair) > 0) target[at] = kNoBreakSpace;
      });
    }
    if (is_tagless()) return encode_text(alignment.target, markup_);
    const auto copies = copies_of(plain_, alignment.target);
    if (!copies) return std::nullopt;
    const Units units(plain_.text, alignment, *copies, edges_of(plain_.elements));
    return place_tags(plain_.elements, units, [&](std::size_t begin, std::size_t end) {
      const auto part = std::u32string_view(alignment.target).substr(begin, end - begin);
      return encode_text(part, markup_);
    });
  }

  Markup markup_;
  std::u32string fixed_, before_, after_;
  std::vector<MarkedItem> items_;
  std::vector<Neighbour> before_items_, after_items_;  // of each of them
  bool has_text_ = false;
  std::set<WordPair> no_break_pairs_;  // of the text, with kNoBreakSpace between them
  PlainSegment plain_;
  std::vector<std::pair<std::optional<std::u32string>, TextHypothesis>> hypotheses_;
  std::size_t sentences_ = 0;
};

// Elements refer to strings of their segment.
static_assert(std::is_nothrow_move_constructible_v<MarkedSegment>);

MarkedTexts::MarkedTexts(const std::vector<std::u32string>& texts,
                         const std::vector<std::string>& names, Markup markup, bool whole)
    : markup_(markup) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    add_segments(i, read_tokens(texts[i], markup, names[i]), whole);
  }
  round_.resize(segments_.size());
  std::iota(round_.begin(), round_.end(), std::size_t{0});
  prepare();
}

MarkedTexts::MarkedTexts(MarkedTexts&& other) noexcept = default;

MarkedTexts::~MarkedTexts() = default;

void MarkedTexts::add_segments(std::size_t text, const std::vector<MarkupToken>& tokens,
                               bool whole) {
  std::vector<Part>& parts = parts_.emplace_back();
  std::vector<MarkedItem> items;
  const auto add = [&] {
    if (items.empty()) return;
    parts.push_back({{}, segments_.size()});
    segments_.emplace_back(std::move(items), markup_);
    owner_of_segment_.push_back(text);
    items.clear();
  };
  for (MarkedItem& item : items_of(tokens, markup_, whole)) {
    if (item.kind != MarkedKind::kCut) {
      items.push_back(std::move(item));
      continue;
    }
    add();
    parts.push_back({std::move(item.raw), std::nullopt});
  }
  add();
}

void MarkedTexts::prepare() {
  clear_lines();
  for (const std::size_t segment : round_) {
    if (segments_[segment].plain().empty()) continue;
    lines_.push_back(encode_utf8(segments_[segment].plain()));
    owners_.push_back(owner_of_segment_[segment]);
    tagless_.push_back(segments_[segment].is_tagless());
  }
  if (lines_.empty()) receive({});
}

void MarkedTexts::receive(const std::vector<Translation>& translations) {
  if (translations.size() != lines_.size()) {
    throw input_error(std::to_string(translations.size()) + " translations for " +
                      std::to_string(lines_.size()) + " lines of texts with markup.");
  }
  for (const Translation& translation : translations) {
    if (translation.glossary) glossary_ = translation.glossary;
    for (const TextHypothesis& one : translation.hypotheses) {
      if (one.aligned) continue;
      throw input_error(
          "the lines were submitted without tt_submit_options.markup; submit them with it, so that "
          "the result has what places the tags.");
    }
  }
  const Translation nothing = {{TextHypothesis()}};
  auto next = translations.begin();
  for (const std::size_t segment : round_) {
    MarkedSegment& one = segments_[segment];
    one.receive(one.plain().empty() ? nothing : *next++);
  }
  // Where the model did not copy what it was shown, it gets the text without it.
  const auto is_complete = [this](std::size_t one) { return segments_[one].is_complete(); };
  round_.erase(std::remove_if(round_.begin(), round_.end(), is_complete), round_.end());
  if (!std::exchange(shows_all_, false)) round_.clear();
  for (const std::size_t segment : round_) segments_[segment].prepare(false);
  clear_lines();
  if (!round_.empty()) prepare();
}

void MarkedTexts::clear_lines() {
  lines_.clear();
  owners_.clear();
  tagless_.clear();
}

std::vector<Translation> MarkedTexts::translations() const {
  if (!lines_.empty()) {
    throw input_error("the texts with markup have lines that are not translated yet.");
  }
  std::vector<Translation> found;
  for (const auto& parts : parts_) found.push_back(joined(parts));
  return found;
}

Translation MarkedTexts::joined(const std::vector<Part>& parts) const {
  std::size_t ranks = 1;
  bool any = false;
  for (const Part& part : parts) {
    if (!part.segment) continue;
    const std::size_t own = segments_[*part.segment].ranks();
    ranks = any ? std::max(ranks, own) : own;
    any = true;
  }
  Translation translation = {std::vector<TextHypothesis>(ranks), 0, glossary_};
  for (const Part& part : parts) {
    if (part.segment) translation.sentences += segments_[*part.segment].sentences();
  }
  translation.sentences = std::max<std::size_t>(1, translation.sentences);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    TextHypothesis& whole = translation.hypotheses[rank];
    for (const Part& part : parts) {
      if (part.segment) {
        segments_[*part.segment].append_to(whole, rank);
      } else {
        whole.text += encode_utf8(part.between);
      }
    }
  }
  return translation;
}

}  // namespace translate_trt::runtime
