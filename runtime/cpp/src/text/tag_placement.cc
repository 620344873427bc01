#include "text/tag_placement.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "base/utf8.h"
#include "text/unicode.h"

namespace translate_trt::runtime {

namespace {

// Scripts without spaces between words, in which a unit is a token: Thai to Khmer, kana,
// ideographs.
constexpr std::pair<char32_t, char32_t> kScriptsWithoutSpaces[] = {
    {0x0E00, 0x0EFF}, {0x1000, 0x109F}, {0x1780, 0x17FF},   {0x3040, 0x30FF},
    {0x3400, 0x9FFF}, {0xF900, 0xFAFF}, {0x20000, 0x3FFFF},
};

bool has_no_spaces(char32_t character) {
  return std::any_of(
      std::begin(kScriptsWithoutSpaces), std::end(kScriptsWithoutSpaces),
      [&](const auto& range) { return range.first <= character && character <= range.second; });
}

bool joins_words(char32_t character) {
  return character == U'\'' || character == U'\u2019' || character == U'-';
}

// The end of the word or the other character that begins at a position.
std::size_t word_end(std::u32string_view text, std::size_t begin, std::size_t end) {
  std::size_t after = begin + 1;
  if (!is_word(text[begin])) return after;
  while (after < end && (is_word(text[after]) || (joins_words(text[after]) && after + 1 < end &&
                                                  is_word(text[after + 1])))) {
    ++after;
  }
  return after;
}

// A span without white space at its ends; an empty one at the begin of a span of white space.
Span bare(std::u32string_view text, Span span) {
  span.second = std::min(span.second, text.size());
  span.first = std::min(span.first, span.second);
  auto [begin, end] = span;
  while (begin < end && is_space(text[begin])) ++begin;
  if (begin == end) return {span.first, span.first};
  while (is_space(text[end - 1])) --end;
  return {begin, end};
}

std::u32string_view part_of(std::u32string_view text, const Span& span) {
  return text.substr(span.first, span.second - span.first);
}

// An element at its place in a translation. A place is twice the number of units before it, at the
// end of the last of these; plus 1 if it is beyond the white space, at the begin of the next unit.
// An element with units begins at the begin of the first, and ends at the end of the last.
struct Placed {
  std::size_t element, begin, end;
};

constexpr std::ptrdiff_t kNotTaken = -1;
constexpr double kBillion = 1e9;

// The range of free units of the largest sum, or the best free unit; nullopt for none. taken: of
// the units of `gain`.
std::optional<Span> best_range(const std::vector<double>& gain, const std::ptrdiff_t* taken) {
  double best = 0, total = 0;
  std::optional<Span> chosen;
  std::size_t first = 0;
  for (std::size_t unit = 0; unit < gain.size(); ++unit) {
    if (taken[unit] != kNotTaken) {
      total = 0;
      first = unit + 1;
      continue;
    }
    if (total <= 0) {
      total = 0;
      first = unit;
    }
    total += gain[unit];
    if (total > best) {
      best = total;
      chosen = {first, unit + 1};
    }
  }
  if (chosen) return chosen;
  std::optional<std::size_t> most;
  for (std::size_t unit = 0; unit < gain.size(); ++unit) {
    if (taken[unit] == kNotTaken && (!most || gain[unit] > gain[*most])) most = unit;
  }
  if (most) chosen = {*most, *most + 1};
  return chosen;
}

// Chooses the units of each child with text, as a range. A unit is worth more to a child the more
// its attention to the child exceeds that to anything else in the parent. Children choose in the
// order of what they gain. Each has a unit at least, if one is left.
//
// masses: each child with the attention to it. whole: attention to the parent. taken: child that
// has a unit, or kNotTaken, from `low` on; receives the choice. Returns each child with its range.
std::vector<std::pair<std::size_t, Span>> choose_ranges(
    std::vector<std::pair<std::size_t, Mass>> masses, const Mass& whole, std::size_t low,
    std::vector<std::ptrdiff_t>& taken) {
  // The largest attention of each unit to a child or the rest, and the second largest.
  std::vector<double> largest(taken.size()), second(taken.size());
  std::copy(whole.values.begin(), whole.values.end(),
            largest.begin() + static_cast<std::ptrdiff_t>(whole.first - low));
  for (auto& [child, mass] : masses) {
    mass.first -= low;
    for (std::size_t i = 0; i < mass.values.size(); ++i) largest[mass.first + i] -= mass.values[i];
  }
  for (const auto& [child, mass] : masses) {
    for (std::size_t i = 0; i < mass.values.size(); ++i) {
      double &most = largest[mass.first + i], &next = second[mass.first + i];
      next = std::max(next, std::min(most, mass.values[i]));
      most = std::max(most, mass.values[i]);
    }
  }
  std::vector<double> gained(masses.size());
  for (std::size_t one = 0; one < masses.size(); ++one) {
    Mass& mass = masses[one].second;
    for (std::size_t i = 0; i < mass.values.size(); ++i) {
      const std::size_t unit = mass.first + i;
      double& value = mass.values[i];
      value -= value == largest[unit] ? second[unit] : largest[unit];
      gained[one] += std::max(value, 0.0);
    }
  }
  std::vector<std::size_t> order(masses.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return gained[a] > gained[b]; });
  std::vector<std::pair<std::size_t, Span>> found;
  std::size_t free = 0;  // units before it are taken
  for (const std::size_t one : order) {
    const auto& [child, mass] = masses[one];
    std::optional<Span> chosen = best_range(mass.values, taken.data() + mass.first);
    if (chosen) {
      chosen = {chosen->first + mass.first, chosen->second + mass.first};
    } else {
      while (free < taken.size() && taken[free] != kNotTaken) ++free;
      if (free == taken.size()) continue;
      chosen = {free, free + 1};
    }
    std::fill(taken.begin() + static_cast<std::ptrdiff_t>(chosen->first),
              taken.begin() + static_cast<std::ptrdiff_t>(chosen->second),
              static_cast<std::ptrdiff_t>(child));
    found.push_back({child, {low + chosen->first, low + chosen->second}});
  }
  return found;
}

// Runs of units that the same child has.
class Runs {
 public:
  explicit Runs(const std::vector<std::ptrdiff_t>& taken)
      : first_(taken.size()), last_(taken.size()) {
    for (std::size_t unit = 0; unit < taken.size(); ++unit) {
      const bool continues = unit > 0 && taken[unit] != kNotTaken && taken[unit] == taken[unit - 1];
      first_[unit] = continues ? first_[unit - 1] : unit;
    }
    for (std::size_t unit = taken.size(); unit-- > 0;) {
      const bool continues = unit + 1 < taken.size() && first_[unit + 1] == first_[unit];
      last_[unit] = continues ? last_[unit + 1] : unit;
    }
  }

  std::size_t count() const { return first_.size(); }

  // The last unit, in a direction, of the run of a unit; itself if no child has it.
  std::size_t last_of(std::size_t unit, bool forwards) const {
    return forwards ? last_[unit] : first_[unit];
  }

 private:
  std::vector<std::size_t> first_, last_;  // units of the run of each
};

// The unit of the largest mass, from `low` to `high`; of several, one that is the word, or is at
// one end. A punctuation mark whose like the translation has is there, whatever it attends to.
// all: units that are the word, in order.
std::size_t best_unit(const Mass& mass, const std::vector<std::size_t>& all, bool is_mark,
                      std::size_t low, std::size_t high, bool last) {
  const auto from = [&](std::size_t unit) {
    return std::lower_bound(all.begin(), all.end(), unit);
  };
  const auto same_begin = from(low), same_end = from(high);
  const auto attending_begin = from(mass.first), attending_end = from(mass.end());
  const bool has_same = same_begin < same_end;
  double most = 0;
  if (is_mark && has_same) {
    for (auto unit = attending_begin; unit < attending_end; ++unit) {
      most = std::max(most, mass.of(*unit));
    }
  } else {
    for (const double value : mass.values) most = std::max(most, value);
  }
  if (most == 0) {  // all units are equal
    if (has_same) return last ? *std::prev(same_end) : *same_begin;
    return last ? high - 1 : low;
  }
  std::optional<std::size_t> chosen;
  for (auto unit = attending_begin; unit < attending_end; ++unit) {
    if (mass.of(*unit) == most && (last || !chosen)) chosen = *unit;
  }
  if (chosen) return *chosen;
  for (std::size_t unit = mass.first; unit < mass.end(); ++unit) {
    if (mass.of(unit) == most && (last || !chosen)) chosen = unit;
  }
  return *chosen;
}

// Characters beside a tag in which its neighbouring word is looked for. Without a limit, the time
// for many tags beside a long word would grow with the square of the text's length.
constexpr std::size_t kNear = 200;

std::optional<Span> last_word(std::u32string_view text, std::size_t begin, std::size_t end) {
  const auto words = split_words(text, std::max(begin, end - std::min(end, kNear)), end);
  return words.empty() ? std::nullopt : std::optional(words.back());
}

std::optional<Span> first_word(std::u32string_view text, std::size_t begin, std::size_t end) {
  end = std::min(end, begin + kNear);
  while (begin < end && is_space(text[begin])) ++begin;
  if (begin >= end) return std::nullopt;
  return Span{begin, word_end(text, begin, end)};
}

// The characters of a token in a part of the text. A token of spaces has the character before it.
Span within_part(const Span& token, std::size_t offset, std::size_t size) {
  const auto [begin, end] = token;
  const auto within = [&](std::size_t position) {
    return std::min(position - std::min(position, offset), size);
  };
  return {within(begin < end || end == 0 ? begin : end - 1), within(end)};
}

// The begins and ends of tokens of a part of the text, and both ends of the part.
std::vector<std::size_t> edges_of(const std::vector<Span>& tokens, std::size_t size) {
  std::vector<std::size_t> edges = {0, size};
  for (const auto& [begin, end] : tokens) edges.insert(edges.end(), {begin, end});
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

// Chooses the place of a child without units: beside a word that is beside it in the source.
std::size_t place_of_point(const Element& child, const Element& parent, const Placed& placed,
                           const Units& units, const Runs& runs) {
  if (runs.count() == 0) return placed.begin;
  const std::size_t low = placed.begin / 2, high = low + runs.count();
  // Whether the word touches the child without a space, its attention, whether the child follows.
  using Choice = std::tuple<bool, double, bool, std::size_t>;
  std::optional<Choice> best;
  for (const bool follows : {true, false}) {
    const auto span = follows ? last_word(units.source(), parent.begin, child.begin)
                              : first_word(units.source(), child.end, parent.end);
    if (!span) continue;
    const std::u32string_view word = part_of(units.source(), *span);
    const Mass mass = units.mass(*span, low, high);
    const std::u32string_view gap = follows ? part_of(units.source(), {span->second, child.begin})
                                            : part_of(units.source(), {child.end, span->first});
    // The plain text has the space before an element after it.
    const bool touches = gap.empty() || (!follows && child.before == Side::kSpace &&
                                         std::all_of(gap.begin(), gap.end(), is_space));
    const Side side = follows ? child.before : child.after;
    const bool is_mark = std::none_of(word.begin(), word.end(), is_alphanumeric);
    const std::size_t unit = best_unit(mass, units.indices_of(word), is_mark, low, high, follows);
    const Choice choice = {touches && side != Side::kSpace, mass.of(unit), follows, unit};
    if (!best || choice > *best) best = choice;
  }
  if (!best) return child.begin <= parent.begin ? placed.begin : placed.end;
  const bool follows = std::get<2>(*best);
  // Not inside a sibling that has the unit.
  const std::size_t unit = low + runs.last_of(std::get<3>(*best) - low, follows);
  return follows ? 2 * (unit + 1) : 2 * unit + 1;
}

// Places the children of an element inside its range, in the order of the translation; nullopt if
// the range does not have the copy of a child.
std::optional<std::vector<Placed>> place_children(const Elements& elements, const Placed& placed,
                                                  const Units& units) {
  const Element& parent = elements[placed.element];
  const auto& children = parent.children;
  std::vector<Placed> found;
  if (children.empty()) return found;
  const std::size_t low = placed.begin / 2, high = placed.end / 2;
  const std::size_t count = high > low ? high - low : 0;
  std::vector<std::ptrdiff_t> taken(count, kNotTaken);
  std::vector<std::optional<Placed>> places(children.size());
  for (std::size_t i = 0; i < children.size(); ++i) {
    const Element& child = elements[children[i]];
    if (!child.is_copy) continue;
    const auto unit = units.copy_of({child.begin, child.end});
    if (!unit || *unit < low || *unit >= high) return std::nullopt;
    taken[*unit - low] = static_cast<std::ptrdiff_t>(i);
    places[i] = Placed{children[i], 2 * *unit + 1, 2 * *unit + 2};
  }
  std::vector<std::pair<std::size_t, Mass>> masses;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const Span content = {elements[children[i]].begin, elements[children[i]].end};
    const Span visible = bare(units.source(), content);
    if (visible.first == visible.second || count == 0 || places[i]) continue;
    masses.emplace_back(i, units.mass(content, low, high));
  }
  const Mass whole = units.mass({parent.begin, parent.end}, low, low + count);
  for (const auto& [i, range] : choose_ranges(std::move(masses), whole, low, taken)) {
    places[i] = Placed{children[i], 2 * range.first + 1, 2 * range.second};
  }
  const Runs runs(taken);
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (places[i]) continue;
    const std::size_t at = place_of_point(elements[children[i]], parent, placed, units, runs);
    places[i] = Placed{children[i], at, at};
  }
  for (const auto& place : places) found.push_back(*place);
  std::stable_sort(found.begin(), found.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  return found;
}

// Whether a space separates an element from the word with a character.
bool is_apart(Side side, char32_t character) {
  return side == Side::kApart && is_alphanumeric(character) && !has_no_spaces(character);
}

// Whether the space is missing that an element without text has before it in the source, and after
// it. What touches no word in the source, as before a full stop, touches none in the translation,
// unless its words have no spaces between them.
std::pair<bool, bool> missing_spaces(const Element& element, const Units& units,
                                     std::size_t place) {
  const std::u32string_view text = units.text();
  const std::size_t position = units.position(place);
  std::pair<bool, bool> missing = {false, false};
  if (element.keeps_before && position > 0) {
    const char32_t before = text[position - 1];
    missing.first =
        element.before == Side::kSpace ? !is_space(before) : is_apart(element.before, before);
  }
  if (element.keeps_after && position < text.size()) {
    const char32_t after = text[position];
    missing.second = element.after == Side::kSpace ? !is_space(after) && !is_closing(after)
                                                   : is_apart(element.after, after);
  }
  return missing;
}

}  // namespace

bool is_closing(char32_t character) {
  constexpr std::u32string_view kMarks = U".,;:!?)]}\u2026\u3002\uff0c\uff01\uff1f";
  return kMarks.find(character) != kMarks.npos;
}

std::vector<Span> split_words(std::u32string_view text, std::size_t begin, std::size_t end) {
  std::vector<Span> words;
  while (begin < end) {
    if (is_space(text[begin])) {
      ++begin;
      continue;
    }
    const std::size_t after = word_end(text, begin, end);
    words.push_back({begin, after});
    begin = after;
  }
  return words;
}

Units::Units(std::u32string_view source, const TextAlignment& alignment,
             const std::vector<Copy>& copies, const std::vector<std::size_t>& cuts)
    : source_(source), text_(alignment.target) {
  for (const Copy& copy : copies) copies_[copy.target] = copy.source;
  cut_copies(cuts);
  find_units(alignment.segments);
  for (const AlignedSegment& segment : alignment.segments) add_attention(segment);
  add_copies();
  for (std::vector<Block>* blocks : {&sentences_, &copied_}) {
    std::stable_sort(blocks->begin(), blocks->end(),
                     [](const Block& a, const Block& b) { return a.offset < b.offset; });
  }
  for (std::size_t unit = 0; unit < spans_.size(); ++unit) {
    indices_[part_of(text_, spans_[unit])].push_back(unit);
  }
}

std::pair<std::size_t, double> Units::Block::place_of(std::size_t position) const {
  const std::size_t within = std::min(position - std::min(position, offset), edges.back());
  const auto next = std::upper_bound(edges.begin(), edges.end(), within);
  const auto edge = static_cast<std::size_t>(next - edges.begin()) - 1;
  if (within == edges[edge]) return {edge, 0.0};
  return {edge, static_cast<double>(within - edges[edge]) /
                    static_cast<double>(edges[edge + 1] - edges[edge])};
}

double Units::Block::before(std::size_t unit, const std::pair<std::size_t, double>& place) const {
  const auto& [edge, share] = place;
  const double* row = sums.data() + (unit - first) * edges.size();
  return share > 0 ? row[edge] + share * (row[edge + 1] - row[edge]) : row[edge];
}

Mass Units::mass(const Span& span, std::size_t low, std::size_t high) const {
  Mass found = {low, {}};
  // Calls a function with the blocks of a vector that are partly in the span, and their units.
  const auto visit = [&](const std::vector<Block>& blocks, const auto& function) {
    auto block = std::upper_bound(
        blocks.begin(), blocks.end(), span.first,
        [](std::size_t position, const Block& one) { return position < one.end(); });
    for (; block != blocks.end() && block->offset < span.second; ++block) {
      const std::size_t begin = std::max(low, block->first);
      const std::size_t end = std::min(high, block->first + block->count);
      if (begin < end) function(*block, begin, end);
    }
  };
  std::size_t first = high, last = low;
  const auto widen = [&](const Block&, std::size_t begin, std::size_t end) {
    first = std::min(first, begin);
    last = std::max(last, end);
  };
  visit(sentences_, widen);
  visit(copied_, widen);
  if (first >= last) return found;
  found.first = first;
  found.values.resize(last - first);
  const auto add = [&](const Block& block, std::size_t begin, std::size_t end) {
    const auto from = block.place_of(span.first), to = block.place_of(span.second);
    for (std::size_t unit = begin; unit < end; ++unit) {
      found.values[unit - first] += block.before(unit, to) - block.before(unit, from);
    }
  };
  visit(sentences_, add);
  visit(copied_, add);
  for (double& value : found.values) value = std::nearbyint(kBillion * value);
  const auto attends = [](double value) { return value != 0; };
  const auto end = std::find_if(found.values.rbegin(), found.values.rend(), attends).base();
  found.values.erase(end, found.values.end());
  const auto begin = std::find_if(found.values.begin(), found.values.end(), attends);
  found.first =
      found.values.empty() ? low : first + static_cast<std::size_t>(begin - found.values.begin());
  found.values.erase(found.values.begin(), begin);
  return found;
}

const std::vector<std::size_t>& Units::indices_of(std::u32string_view word) const {
  static const std::vector<std::size_t> kNone;
  const auto found = indices_.find(word);
  return found == indices_.end() ? kNone : found->second;
}

std::optional<std::size_t> Units::copy_of(const Span& source) const {
  const auto found = unit_of_copy_.find(source);
  if (found == unit_of_copy_.end()) return std::nullopt;
  return found->second;
}

std::size_t Units::position(std::size_t place) const {
  const std::size_t index = place / 2;
  if (place % 2 == 1) return index < spans_.size() ? spans_[index].first : text_.size();
  return index > 0 ? spans_[index - 1].second : 0;
}

std::vector<Span> Units::words() const {
  std::vector<Span> words;
  const auto add_until = [&](std::size_t begin, std::size_t end) {
    const auto found = split_words(text_, begin, end);
    words.insert(words.end(), found.begin(), found.end());
  };
  std::size_t end = 0;
  for (const auto& [target, source] : copies_) {
    add_until(end, target.first);
    words.push_back(target);
    end = target.second;
  }
  add_until(end, text_.size());
  return words;
}

// Cuts words of the translation where the same words of the source are cut: H<sub>2</sub>O. A word
// that occurs once in each text is a copy, and so are its parts.
void Units::cut_copies(const std::vector<std::size_t>& cuts) {
  std::vector<std::size_t> wanted = cuts;
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  if (wanted.empty()) return;
  struct Occurrences {
    std::size_t here = 0, there = 0;
    Span translated = {};
  };
  std::unordered_map<std::u32string_view, Occurrences> occurrences;
  const std::vector<Span> source_words = split_words(source_, 0, source_.size());
  for (const Span& word : source_words) ++occurrences[part_of(source_, word)].here;
  for (const Span& word : words()) {
    Occurrences& found = occurrences[part_of(text_, word)];
    ++found.there;
    found.translated = word;
  }
  for (const Span& word : source_words) {
    const std::size_t begin = word.first, end = word.second;
    const auto first = std::upper_bound(wanted.begin(), wanted.end(), begin);
    const auto last = std::lower_bound(first, wanted.end(), end);
    if (first == last) continue;
    const Occurrences& found = occurrences[part_of(source_, {begin, end})];
    if (found.here != 1 || found.there != 1 || copies_.count(found.translated) != 0) continue;
    std::size_t from = begin;
    const auto add = [&](std::size_t to) {
      const std::size_t shifted = found.translated.first + (from - begin);
      copies_[{shifted, shifted + (to - from)}] = {from, to};
      from = to;
    };
    std::for_each(first, last, add);
    add(end);
  }
}

void Units::find_units(const std::vector<AlignedSegment>& segments) {
  std::vector<std::size_t> starts;
  for (const AlignedSegment& segment : segments) {
    for (const Span& span : segment.target) starts.push_back(bare(text_, span).first);
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  for (const Span& word : words()) {
    const std::u32string_view text = part_of(text_, word);
    std::size_t begin = word.first;
    if (copies_.count(word) == 0 && std::any_of(text.begin(), text.end(), has_no_spaces)) {
      for (auto start = std::upper_bound(starts.begin(), starts.end(), begin);
           start != starts.end() && *start < word.second; ++start) {
        spans_.push_back({begin, *start});
        begin = *start;
      }
    }
    spans_.push_back({begin, word.second});
  }
}

void Units::add_attention(const AlignedSegment& segment) {
  if (segment.source.empty()) return;
  std::vector<Span> tokens;
  for (const Span& span : segment.source) tokens.push_back(bare(source_, span));
  const std::size_t offset = tokens.front().first;
  const std::size_t size = std::max(tokens.back().second, offset) - offset;
  for (Span& token : tokens) token = within_part(token, offset, size);
  std::vector<Span> units;  // of each token
  for (const Span& span : segment.target) {
    const Span token = bare(text_, span);
    const auto after = std::upper_bound(
        spans_.begin(), spans_.end(), token.first,
        [](std::size_t position, const Span& unit) { return position < unit.second; });
    const auto beyond = std::lower_bound(
        spans_.begin(), spans_.end(), token.second,
        [](const Span& unit, std::size_t position) { return unit.first < position; });
    const auto first = static_cast<std::size_t>(after - spans_.begin());
    const auto last = std::max(static_cast<std::size_t>(beyond - spans_.begin()), first + 1);
    units.push_back({first, std::min(last, spans_.size())});
  }
  if (units.empty()) return;
  std::size_t first = units.front().first, last = units.front().second;
  for (const auto& [begin, end] : units) {
    first = std::min(first, begin);
    last = std::max(last, end);
  }
  const std::size_t count = std::max(last, first) - first;
  // The attention to a token is that to its characters, in equal parts, so the sums at the ends of
  // tokens are enough. A token may have any number of characters, such as invisible ones.
  const std::vector<std::size_t> edges = edges_of(tokens, size);
  Block block = {first, count, offset, edges, std::vector<double>(count * edges.size())};
  std::vector<double> sums(edges.size());
  for (std::size_t row = 0; row < units.size(); ++row) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t column = 0; column < tokens.size(); ++column) {
      const auto& [begin, end] = tokens[column];
      const double share = segment.weights[row * tokens.size() + column] /
                           static_cast<double>(std::max<std::size_t>(end - begin, 1));
      auto edge = static_cast<std::size_t>(std::lower_bound(edges.begin(), edges.end(), begin) -
                                           edges.begin());
      for (; edges[edge] < end; ++edge) {
        sums[edge + 1] += share * static_cast<double>(edges[edge + 1] - edges[edge]);
      }
    }
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
    for (std::size_t unit = units[row].first; unit < units[row].second; ++unit) {
      double* to = block.sums.data() + (unit - first) * edges.size();
      std::transform(sums.begin(), sums.end(), to, to, std::plus<>());
    }
  }
  for (std::size_t unit = first; unit < first + count; ++unit) {
    if (copies_.count(spans_[unit]) == 0) continue;
    double* row = block.sums.data() + (unit - first) * edges.size();
    std::fill(row, row + edges.size(), 0.0);
  }
  sentences_.push_back(std::move(block));
}

// A copy attends to what it is a copy of, in equal parts.
void Units::add_copies() {
  for (std::size_t unit = 0; unit < spans_.size(); ++unit) {
    const auto found = copies_.find(spans_[unit]);
    if (found == copies_.end()) continue;
    const auto [begin, end] = found->second;
    unit_of_copy_.emplace(found->second, unit);
    if (begin < end) {
      copied_.push_back({unit, 1, begin, {0, end - begin}, {0.0, 1.0}});
    } else {
      copied_.push_back({unit, 1, begin, {0}, {0.0}});
    }
  }
}

std::optional<std::u32string> place_tags(
    const Elements& elements, const Units& units,
    const std::function<std::u32string(std::size_t, std::size_t)>& render) {
  std::u32string text;
  // Elements to open, and strings to write, last first.
  struct Pending {
    bool is_text;
    std::u32string text;
    Placed placed;
  };
  const auto between = [&](std::size_t begin, std::size_t end) {
    return Pending{
        true,
        begin < end ? render(units.position(begin), units.position(end)) : std::u32string(),
        {}};
  };
  std::vector<Pending> pending = {{false, {}, {0, 0, 2 * units.size() + 1}}};
  while (!pending.empty()) {
    const Pending item = std::move(pending.back());
    pending.pop_back();
    if (item.is_text) {
      text += item.text;
      continue;
    }
    const Element& element = elements[item.placed.element];
    if (element.is_copy) {
      text += element.opening;
      continue;
    }
    const auto children = place_children(elements, item.placed, units);
    if (!children) return std::nullopt;
    const auto [space_before, space_after] = missing_spaces(element, units, item.placed.begin);
    if (space_before) text += U' ';
    text += element.opening;
    std::vector<Pending> content;
    std::size_t cursor = item.placed.begin;
    const Element* last = nullptr;
    // No space is beside what touches a word in the source.
    const auto add_between = [&](std::size_t end, const Element* next) {
      std::u32string& gap = content.emplace_back(between(cursor, end)).text;
      if (last != nullptr && last->keeps_after && last->after == Side::kWord) {
        gap.erase(gap.begin(), std::find_if_not(gap.begin(), gap.end(), is_space));
      }
      if (next != nullptr && next->keeps_before && next->before == Side::kWord) {
        gap.erase(std::find_if_not(gap.rbegin(), gap.rend(), is_space).base(), gap.end());
      }
    };
    for (const Placed& child : *children) {
      add_between(child.begin, &elements[child.element]);
      content.push_back({false, {}, child});
      cursor = child.end;
      last = &elements[child.element];
    }
    add_between(item.placed.end, nullptr);
    content.push_back({true, std::u32string(element.closing) + (space_after ? U" " : U""), {}});
    std::move(content.rbegin(), content.rend(), std::back_inserter(pending));
  }
  return text;
}

}  // namespace translate_trt::runtime
