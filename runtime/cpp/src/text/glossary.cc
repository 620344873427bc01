#include "text/glossary.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/errors.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace translate_trt::runtime {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Number of lines at the start of a text that are checked for NUL bytes, and bytes of each.
constexpr std::size_t kHeadLines = 100, kHeadBytes = 4096;

// First bytes of files that are not text in UTF-8, with their format.
struct Magic {
  std::string_view bytes;
  const char* format;
};

using namespace std::string_view_literals;
// UTF-32 precedes UTF-16, whose mark is a prefix of its own.
constexpr Magic kEncodings[] = {{"\xFF\xFE\0\0"sv, "UTF-32"},
                                {"\0\0\xFE\xFF"sv, "UTF-32"},
                                {"\xFF\xFE"sv, "UTF-16"},
                                {"\xFE\xFF"sv, "UTF-16"}};
constexpr Magic kCompressions[] = {{"\x1F\x8B"sv, "gzip"},
                                   {"\x28\xB5\x2F\xFD"sv, "zstd"},
                                   {"\xFD"
                                    "7zXZ\0"sv,
                                    "xz"},
                                   {"PK\x03\x04"sv, "zip"}};

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

Error not_utf8(const std::string& name, const std::string& encoding, const std::string& reason) {
  return input_error(name + " is not text in UTF-8; " + reason + ", like " + encoding +
                     ". Convert it: iconv -f " + encoding + " -t UTF-8 OLD > NEW");
}

// Refuses what is certainly not text in UTF-8 (check_text in runtime/io/lines.py).
void check_text(std::string_view line, const std::string& name, std::size_t number) {
  std::string_view head = line.substr(0, kHeadBytes);
  if (number == 1) {
    for (const auto& [bytes, format] : kEncodings) {
      if (starts_with(head, bytes)) {
        throw not_utf8(name, format, "it begins with a byte order mark");
      }
    }
    for (const auto& [bytes, format] : kCompressions) {
      if (starts_with(head, bytes)) {
        throw input_error(name + " is compressed with " + format +
                          "; unpack it, because the library reads plain text.");
      }
    }
  }
  while (!head.empty() && (head.back() == '\r' || head.back() == '\n')) head.remove_suffix(1);
  const auto zeros = static_cast<std::size_t>(std::count(head.begin(), head.end(), '\0'));
  // In UTF-16, every second byte of mostly ASCII text is NUL.
  if (head.size() >= 4 && zeros * 5 >= head.size() * 2) {
    throw not_utf8(name, number == 1 && head.front() == '\0' ? "UTF-16BE" : "UTF-16LE",
                   "line " + std::to_string(number) + " is mostly NUL bytes");
  }
}

std::u32string_view stripped(std::u32string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The end of the word at a position, or of its character if no word is there.
std::size_t first_end(std::u32string_view text, std::size_t at) {
  std::size_t end = at + 1;
  if (joins(text[at])) {
    while (end < text.size() && joins(text[end])) ++end;
  }
  return end;
}

}  // namespace

// A text in which equivalent phrases are equal strings: white space is a single space, composed
// characters are in NFC, and the case is folded if it is ignored.
struct Glossary::Folded {
  static constexpr std::size_t kInside = static_cast<std::size_t>(-1);

  std::u32string text;
  // Position in the original of each character and of the end; kInside within what is one character
  // of the original with its marks.
  std::vector<std::size_t> offsets;

  // Whether a phrase may begin or end at a position.
  bool is_edge(std::size_t at) const {
    if (offsets[at] == kInside) return false;
    const bool inside = at > 0 && at < text.size();
    return !(inside && joins(text[at - 1]) && joins(text[at]));
  }

  // The first occurrence of a phrase between edges whose characters are not taken; npos if there is
  // none.
  std::size_t find(const std::u32string& phrase, const std::vector<bool>& taken) const {
    std::size_t begin = text.find(phrase);
    for (; begin != text.npos; begin = text.find(phrase, begin + 1)) {
      const std::size_t end = begin + phrase.size();
      const auto first = taken.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = taken.begin() + static_cast<std::ptrdiff_t>(end);
      if (is_edge(begin) && is_edge(end) && std::find(first, last, true) == last) break;
    }
    return begin;
  }
};

Glossary::Folded Glossary::fold(std::u32string_view text) const {
  Folded folded;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    std::u32string part;
    if (is_space(text[at])) {
      while (end < text.size() && is_space(text[end])) ++end;
      part = U' ';
    } else {
      while (end < text.size() && is_mark(text[end])) ++end;
      part = text.substr(at, end - at);
      // A single ASCII character is in NFC.
      if (part.size() > 1 || part.front() >= 0x80) part = nfc(part);
      if (ignore_case_) part = nfc(casefold(part));
    }
    folded.text += part;
    folded.offsets.push_back(at);
    folded.offsets.resize(folded.text.size(), Folded::kInside);
    at = end;
  }
  folded.offsets.push_back(text.size());
  return folded;
}

Glossary::Glossary(std::string_view content, const std::string& name, bool ignore_case)
    : ignore_case_(ignore_case) {
  for (std::size_t number = 1; !content.empty(); ++number) {
    const std::size_t newline = std::min(content.find('\n'), content.size());
    std::string_view raw = content.substr(0, newline);
    const bool ended = newline < content.size();
    if (number <= kHeadLines) check_text(content.substr(0, newline + ended), name, number);
    content.remove_prefix(newline + ended);
    if (number == 1 && starts_with(raw, kByteOrderMark)) raw.remove_prefix(kByteOrderMark.size());
    if (ended && !raw.empty() && raw.back() == '\r') raw.remove_suffix(1);
    const std::u32string line = decode_utf8(raw);
    if (stripped(line).empty() || line.front() == U'#') continue;
    const std::string where = name + ", line " + std::to_string(number);
    if (line.find(kReplacement) != line.npos) {
      throw input_error(where + " is not valid UTF-8; convert the file to UTF-8.");
    }
    std::vector<std::u32string> cells;
    for (std::size_t begin = 0; begin <= line.size();) {
      const std::size_t end = std::min(line.find(U'\t', begin), line.size());
      cells.emplace_back(stripped(std::u32string_view(line).substr(begin, end - begin)));
      begin = end + 1;
    }
    const std::u32string source = cells.front();
    if (source.empty()) {
      throw input_error(where + " has no source phrase before the first tab; add it.");
    }
    std::vector<std::u32string> targets;  // without blank cells: spreadsheets end short rows so
    std::copy_if(cells.begin() + 1, cells.end(), std::back_inserter(targets),
                 [](const std::u32string& cell) { return !cell.empty(); });
    if (targets.empty()) {
      throw input_error(where +
                        " has no target phrase; write the source phrase, a tab and a target phrase "
                        "(further ones after further tabs), or begin a comment with #.");
    }
    add(source, targets);
  }
  if (entries_.empty()) {
    throw input_error(
        name + " has no entries; write a source phrase, a tab and a target phrase per line.");
  }
  index();
}

Glossary Glossary::read(const std::filesystem::path& path, bool ignore_case) {
  const std::string name = path.string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw input_error("there is no file " + name + "; check the path.");
  }
  if (std::filesystem::is_directory(path, ignored)) {
    throw input_error(name + " is a directory; name the files in it.");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file && file.peek() != std::ifstream::traits_type::eof()) content << file.rdbuf();
  if (!file.is_open() || file.bad() || content.bad()) {
    throw input_error("cannot read " + name + ": " + std::strerror(errno) + ".");
  }
  return Glossary(content.str(), name, ignore_case);
}

// Adds an entry, or its target phrases to the entry of the same source phrase.
void Glossary::add(const std::u32string& source, const std::vector<std::u32string>& targets) {
  std::u32string phrase = fold(source).text;
  auto found = by_phrase_.find(phrase);
  if (found == by_phrase_.end()) {
    Keyed& added = entries_.emplace_back(Keyed{std::move(phrase), {encode_utf8(source), {}}});
    found = by_phrase_.emplace(added.phrase, &added.entry).first;
  }
  std::vector<std::string>& known = found->second->targets;
  for (const std::u32string& target : targets) {
    std::string text = encode_utf8(target);
    if (std::find(known.begin(), known.end(), text) == known.end())
      known.push_back(std::move(text));
  }
}

void Glossary::index() {
  for (const Keyed& keyed : entries_) {
    const std::u32string_view phrase = keyed.phrase;
    lengths_[phrase.substr(0, first_end(phrase, 0))].push_back(phrase.size());
  }
  for (auto& [first, lengths] : lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
}

std::vector<GlossaryMatch> Glossary::find(std::u32string_view text) const {
  const Folded folded = fold(text);
  const std::u32string_view characters = folded.text;
  std::vector<GlossaryMatch> matches;
  for (std::size_t at = 0; at < characters.size();) {
    const std::size_t next = first_end(characters, at);
    std::size_t end = at;  // of the longest phrase here
    const auto lengths = lengths_.find(characters.substr(at, next - at));
    if (lengths != lengths_.end() && folded.is_edge(at)) {
      for (const std::size_t length : lengths->second) {
        if (length > characters.size() - at || !folded.is_edge(at + length)) continue;
        const auto found = by_phrase_.find(characters.substr(at, length));
        if (found == by_phrase_.end()) continue;
        end = at + length;
        matches.push_back({folded.offsets[at], folded.offsets[end], found->second});
        break;
      }
    }
    at = end > at ? end : next;
  }
  return matches;
}

std::vector<Term> Glossary::terms(std::u32string_view source,
                                  std::u32string_view translation) const {
  std::vector<Term> terms;
  for (const GlossaryMatch& match : find(source)) terms.push_back({match, std::nullopt});
  if (terms.empty()) return terms;
  const Folded folded = fold(translation);
  std::vector<bool> taken(folded.text.size());
  std::vector<std::size_t> order(terms.size()), longest(terms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t n = 0; n < terms.size(); ++n) {
    for (const std::string& target : terms[n].match.entry->targets) {
      longest[n] = std::max(longest[n], decode_utf8(target).size());
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return longest[a] > longest[b]; });
  for (const std::size_t n : order) {
    for (const std::string& target : terms[n].match.entry->targets) {
      const std::u32string phrase = fold(decode_utf8(target)).text;
      const std::size_t begin = folded.find(phrase, taken);
      if (begin == folded.text.npos) continue;
      const std::size_t end = begin + phrase.size();
      std::fill(taken.begin() + static_cast<std::ptrdiff_t>(begin),
                taken.begin() + static_cast<std::ptrdiff_t>(end), true);
      const std::size_t first = folded.offsets[begin];
      terms[n].translation = encode_utf8(translation.substr(first, folded.offsets[end] - first));
      break;
    }
  }
  return terms;
}

}  // namespace translate_trt::runtime
