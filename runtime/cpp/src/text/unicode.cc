#include "text/unicode.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>

namespace translate_trt::runtime {

namespace {

struct Properties {
  char32_t first, last;
  unsigned bits;  // see Property
};

// The order of `properties` of scripts/unicode_tables.py.
enum Property : unsigned {
  kMark = 1,
  kLetter = 2,
  kAlphanumeric = 4,
  kJoining = 8,
  kUnspaced = 16
};

struct ClassRange {
  char32_t first, last;
  int combining_class;
};

struct Decomposition {
  char32_t character, first, second;  // second: 0 if there is one part
  int composes;
};

struct FoldingRun {
  char32_t first, last, step;
  std::int32_t distance;
};

struct Folding {
  char32_t character, parts[3];
};

#include "text/unicode_tables.inc"

// Hangul syllables are composed of two or three letters by arithmetic (section 3.12 of the Unicode
// Standard).
constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

// The range of a sorted table that has a character; null if none has.
template <class Entry, std::size_t size>
const Entry* range_of(const Entry (&table)[size], char32_t character) {
  const Entry* after =
      std::upper_bound(std::begin(table), std::end(table), character,
                       [](char32_t value, const Entry& entry) { return value < entry.first; });
  if (after == std::begin(table)) return nullptr;
  const Entry* found = std::prev(after);
  return character <= found->last ? found : nullptr;
}

// The entry of a character in a sorted table; null if there is none.
template <class Entry, std::size_t size>
const Entry* entry_of(const Entry (&table)[size], char32_t character) {
  const Entry* found =
      std::lower_bound(std::begin(table), std::end(table), character,
                       [](const Entry& entry, char32_t value) { return entry.character < value; });
  return found != std::end(table) && found->character == character ? found : nullptr;
}

bool has(char32_t character, Property property) {
  const Properties* found = range_of(kProperties, character);
  return found != nullptr && (found->bits & property) != 0;
}

int combining_class(char32_t character) {
  const ClassRange* found = range_of(kCombiningClasses, character);
  return found == nullptr ? 0 : found->combining_class;
}

void append_decomposed(std::u32string& text, char32_t character) {
  if (character >= kSyllables && character < kSyllables + kSyllableCount) {
    const char32_t index = character - kSyllables;
    text += kLeading + index / (kVowelCount * kTrailingCount);
    text += kVowels + index % (kVowelCount * kTrailingCount) / kTrailingCount;
    if (index % kTrailingCount != 0) text += kTrailing + index % kTrailingCount;
  } else if (const Decomposition* found = entry_of(kDecompositions, character)) {
    append_decomposed(text, found->first);
    if (found->second != 0) append_decomposed(text, found->second);
  } else {
    text += character;
  }
}

std::uint64_t pair_of(char32_t first, char32_t second) {
  return std::uint64_t{first} << 32 | second;
}

// The character that two are composed to; 0 if they are not.
char32_t composed(char32_t first, char32_t second) {
  static const auto compositions = [] {
    std::unordered_map<std::uint64_t, char32_t> found;
    for (const Decomposition& one : kDecompositions) {
      if (one.composes != 0) found.emplace(pair_of(one.first, one.second), one.character);
    }
    return found;
  }();
  if (first >= kLeading && first < kLeading + kLeadingCount && second >= kVowels &&
      second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount &&
      (first - kSyllables) % kTrailingCount == 0 && second > kTrailing &&
      second < kTrailing + kTrailingCount) {
    return first + (second - kTrailing);
  }
  const auto found = compositions.find(pair_of(first, second));
  return found == compositions.end() ? 0 : found->second;
}

// Sorts the marks between two characters of class 0 by their combining class.
void order_marks(std::u32string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(begin),
                     text.begin() + static_cast<std::ptrdiff_t>(end), [](char32_t a, char32_t b) {
                       return combining_class(a) < combining_class(b);
                     });
    begin = end + 1;
  }
}

}  // namespace

const char* unicode_version() { return kUnicodeVersion; }

bool is_letter(char32_t character) { return has(character, kLetter); }

bool is_alphanumeric(char32_t character) { return has(character, kAlphanumeric); }

bool is_word(char32_t character) { return character == U'_' || is_alphanumeric(character); }

bool may_compose(char32_t character) {
  return has(character, kMark) || (character >= kVowels && character < kVowels + kVowelCount) ||
         (character > kTrailing && character < kTrailing + kTrailingCount);
}

bool joins(char32_t character) { return has(character, kJoining); }

bool is_unspaced(char32_t character) { return has(character, kUnspaced); }

std::u32string nfc(std::u32string_view text) {
  std::u32string decomposed;
  for (const char32_t character : text) append_decomposed(decomposed, character);
  order_marks(decomposed);
  std::u32string found;
  std::size_t starter = std::u32string::npos;  // the last character of class 0
  int last_class = 0;                          // of the character after which the next one stands
  for (const char32_t character : decomposed) {
    const int own_class = combining_class(character);
    if (starter != std::u32string::npos) {
      const bool adjacent = starter + 1 == found.size();
      // A character is blocked by one of its class or of class 0 between it and the starter.
      if (adjacent || (last_class != 0 && last_class < own_class)) {
        if (const char32_t whole = composed(found[starter], character)) {
          found[starter] = whole;
          continue;
        }
      }
    }
    if (own_class == 0) starter = found.size();
    last_class = own_class;
    found += character;
  }
  return found;
}

std::u32string casefold(std::u32string_view text) {
  std::u32string folded;
  for (const char32_t character : text) {
    if (const Folding* found = entry_of(kFoldings, character)) {
      for (const char32_t part : found->parts) {
        if (part != 0) folded += part;
      }
      continue;
    }
    const FoldingRun* run = range_of(kFoldingRuns, character);
    const bool folds = run != nullptr && (character - run->first) % run->step == 0;
    folded += folds ? static_cast<char32_t>(static_cast<std::int32_t>(character) + run->distance)
                    : character;
  }
  return folded;
}

}  // namespace translate_trt::runtime
