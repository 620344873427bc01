// Positions in a translation of the tags of its source text (runtime/text/tag_placement.py).
//
// Every element keeps one range of the translation, inside that of the element that it is in, and
// apart from those beside it. So the tags of well-formed markup are well-formed at their new
// places, whatever the alignment is.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/alignment.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Whether a punctuation mark has no space before it.
bool is_closing(char32_t character);

// Neighbour of an element that has no text, on one of its sides.
enum class Side {
  kEdge,  // of the element around it, whose own sides count; or of no interest
  kSpace,
  kWord,
  kApart,  // a punctuation mark, or the end of the text
};

// An element, or anything else that keeps its place in the text, such as a comment.
struct Element {
  std::u32string_view opening;             // start tag, or the whole of what has no content
  std::u32string_view closing;             // end tag
  std::size_t begin = 0;                   // position in the plain text
  std::size_t end = 0;                     // end of its content in the plain text
  std::vector<std::size_t> children = {};  // indices of the elements inside it, in order
  // In the text, if it has no text. Others without text, such as images, count as nothing.
  Side before = Side::kEdge, after = Side::kEdge;
  // Whether it has the same beside it in the translation: it is seen although it has no text, as an
  // image, and is the first of several such, or the last.
  bool keeps_before = false, keeps_after = false;
  bool is_copy = false;  // its content is a copy in the translation, which `opening` replaces
};

// Elements of a plain text. The first one, without tags, has all others. Indices refer to this
// vector, because nested elements may be many and a recursion too deep.
using Elements = std::vector<Element>;

// Spans of a plain text and of its translation that are copies of each other.
struct Copy {
  Span source, target;
};

// Attention of consecutive units to a part of the plain text, from the first that attends to it to
// the last. So time and memory of all elements grow with the text, and not with its square. In
// billionths, rounded: otherwise rounding errors, which depend on the order of additions, would
// break ties.
struct Mass {
  std::size_t first = 0;  // index of the first unit
  std::vector<double> values = {};

  std::size_t end() const { return first + values.size(); }
  // The attention of a unit.
  double of(std::size_t unit) const {
    return unit >= first && unit < end() ? values[unit - first] : 0;
  }
};

// Words of a text with their apostrophes and hyphens, and other characters that are not white
// space, between two positions.
std::vector<Span> split_words(std::u32string_view text, std::size_t begin, std::size_t end);

// Words and punctuation marks of a translation, and their attention to the source.
class Units {
 public:
  // source: the plain text. alignment: of its translation. copies: each is one unit. cuts:
  // positions in the plain text where elements begin or end. All must outlive the units.
  Units(std::u32string_view source, const TextAlignment& alignment, const std::vector<Copy>& copies,
        const std::vector<std::size_t>& cuts);

  std::u32string_view source() const { return source_; }
  std::u32string_view text() const { return text_; }
  std::size_t size() const { return spans_.size(); }

  // The attention of the units from `low` to `high` to a span of the plain text.
  Mass mass(const Span& span, std::size_t low, std::size_t high) const;

  // The units that are a word, in order.
  const std::vector<std::size_t>& indices_of(std::u32string_view word) const;

  // The unit that is a copy of a span of the plain text.
  std::optional<std::size_t> copy_of(const Span& source) const;

  // The character at a place, see `Place`.
  std::size_t position(std::size_t place) const;

 private:
  // Attention of consecutive units to a part of the plain text.
  struct Block {
    std::size_t first;               // index of the first unit
    std::size_t count;               // number of units
    std::size_t offset;              // begin of the part
    std::vector<std::size_t> edges;  // begins and ends of its tokens, from 0 to its length
    std::vector<double> sums;        // [units, edges] attention to all characters before each

    std::size_t end() const { return offset + edges.back(); }

    // A character of the text by the edge before it and its share of the way to the next one.
    std::pair<std::size_t, double> place_of(std::size_t position) const;

    // The attention of a unit to all characters before a place.
    double before(std::size_t unit, const std::pair<std::size_t, double>& place) const;
  };

  std::vector<Span> words() const;
  void cut_copies(const std::vector<std::size_t>& cuts);
  void find_units(const std::vector<AlignedSegment>& segments);
  void add_attention(const AlignedSegment& segment);
  void add_copies();

  std::u32string_view source_, text_;
  std::map<Span, Span> copies_;               // source span by target span
  std::map<Span, std::size_t> unit_of_copy_;  // by source span
  std::vector<Span> spans_;
  // By their begin in the source. Those of a vector do not overlap, so their ends are in order,
  // too.
  std::vector<Block> sentences_, copied_;
  std::unordered_map<std::u32string_view, std::vector<std::size_t>> indices_;  // by the unit's text
};

// Returns a translation with the tags of its source at the places of the words that they are at;
// nullopt if a copy is not where the element is that it must be in. render: the characters between
// two positions of the translation, encoded.
std::optional<std::u32string> place_tags(
    const Elements& elements, const Units& units,
    const std::function<std::u32string(std::size_t, std::size_t)>& render);

}  // namespace translate_trt::runtime
