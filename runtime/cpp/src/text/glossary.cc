#include "text/glossary.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/utf8.h"
#include "text/unicode.h"

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

bool starts_with(std::u32string_view text, std::u32string_view prefix) {
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
};

// Occurrences of phrases in a text, each of which is taken once, without overlaps.
class Glossary::FreeOccurrences {
 public:
  explicit FreeOccurrences(const Folded& text) : text_(text), taken_(text.text.size(), '\0') {}

  // The first free occurrence of a phrase between edges, which is free no more; npos: none.
  std::size_t take(const std::u32string& phrase) {
    std::size_t& next = next_[phrase];
    for (; (next = text_.text.find(phrase, next)) != text_.text.npos; ++next) {
      const std::size_t begin = next, end = begin + phrase.size();
      if (!text_.is_edge(begin) || !text_.is_edge(end)) continue;
      if (std::memchr(&taken_[begin], 1, phrase.size()) != nullptr) continue;
      std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(begin), phrase.size(), '\1');
      next = end;
      return begin;
    }
    return next;
  }

 private:
  const Folded& text_;
  std::string taken_;
  // Position after which each phrase occurs next, if at all; those before stay taken.
  std::unordered_map<std::u32string, std::size_t> next_;
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
      while (end < text.size() && may_compose(text[end])) ++end;
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
  KnownTargets known;
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
    add(source, targets, known);
  }
  if (entries_.empty()) {
    throw input_error(
        name + " has no entries; write a source phrase, a tab and a target phrase per line.");
  }
  index();
}

Glossary::Glossary(const std::vector<GlossaryEntry>& entries, bool ignore_case)
    : ignore_case_(ignore_case) {
  KnownTargets known;
  for (const GlossaryEntry& entry : entries) {
    const std::u32string source = decode_utf8(entry.source);
    std::vector<std::u32string> targets;
    for (const std::string& target : entry.targets) targets.push_back(decode_utf8(target));
    const auto is_blank = [](const std::u32string& phrase) { return stripped(phrase).empty(); };
    if (is_blank(source) || targets.empty() ||
        std::any_of(targets.begin(), targets.end(), is_blank)) {
      throw input_error("the entry of " + in_quotes(entry.source) +
                        " has a blank phrase or no target phrase.");
    }
    add(source, targets, known);
  }
  index();
}

Glossary Glossary::read(const std::filesystem::path& path, bool ignore_case) {
  const std::string name = path.u8string();
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
void Glossary::add(const std::u32string& source, const std::vector<std::u32string>& targets,
                   KnownTargets& known) {
  std::u32string phrase = fold(stripped(source)).text;
  auto found = by_phrase_.find(phrase);
  if (found == by_phrase_.end()) {
    const std::size_t index = entries_.size();
    Keyed& added =
        entries_.emplace_back(Keyed{std::move(phrase), {encode_utf8(source), {}, index}});
    found = by_phrase_.emplace(added.phrase, &added.entry).first;
  }
  std::unordered_set<std::u32string>& of_entry = known[found->second];
  for (const std::u32string& target : targets) {
    if (of_entry.insert(target).second) found->second->targets.push_back(encode_utf8(target));
  }
}

void Glossary::index() {
  for (const Keyed& keyed : entries_) {
    const std::u32string_view phrase = keyed.phrase;
    beginning_with_[phrase.substr(0, first_end(phrase, 0))].push_back({&keyed, -1});
  }
  for (auto& [first, entries] : beginning_with_) {
    std::sort(entries.begin(), entries.end(),
              [](const Indexed& a, const Indexed& b) { return a.keyed->phrase < b.keyed->phrase; });
    for (std::size_t n = 1; n < entries.size(); ++n) {
      // A phrase that begins this one also begins the one before it, or is that one.
      std::ptrdiff_t& beginning = entries[n].beginning;
      beginning = static_cast<std::ptrdiff_t>(n) - 1;
      while (beginning >= 0 &&
             !starts_with(entries[n].keyed->phrase,
                          entries[static_cast<std::size_t>(beginning)].keyed->phrase)) {
        beginning = entries[static_cast<std::size_t>(beginning)].beginning;
      }
    }
  }
}

std::vector<GlossaryMatch> Glossary::find(std::u32string_view text) const {
  const Folded folded = fold(text);
  const std::u32string_view characters = folded.text;
  std::vector<GlossaryMatch> matches;
  for (std::size_t at = 0; at < characters.size();) {
    const std::size_t next = first_end(characters, at);
    std::size_t end = at;  // of the longest phrase here
    const auto entries = beginning_with_.find(characters.substr(at, next - at));
    if (entries != beginning_with_.end() && folded.is_edge(at)) {
      const std::vector<Indexed>& found = entries->second;
      const std::u32string_view rest = characters.substr(at);
      // In their order, all phrases between one that is here and the text begin with it.
      auto n = std::upper_bound(found.begin(), found.end(), rest,
                                [](std::u32string_view text, const Indexed& one) {
                                  return text < one.keyed->phrase;
                                }) -
               found.begin() - 1;
      for (; n >= 0; n = found[static_cast<std::size_t>(n)].beginning) {
        const Keyed& keyed = *found[static_cast<std::size_t>(n)].keyed;
        if (!starts_with(rest, keyed.phrase) || !folded.is_edge(at + keyed.phrase.size())) continue;
        end = at + keyed.phrase.size();
        matches.push_back({folded.offsets[at], folded.offsets[end], &keyed.entry});
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
  for (const GlossaryMatch& match : find(source)) {
    const auto spelled = source.substr(match.begin, match.end - match.begin);
    terms.push_back({match, encode_utf8(spelled), std::nullopt});
  }
  if (terms.empty()) return terms;
  const Folded folded = fold(translation);
  struct Targets {
    std::vector<std::u32string> phrases;  // folded
    std::size_t longest = 0;
  };
  std::unordered_map<const GlossaryEntry*, Targets> targets;
  for (const Term& term : terms) {
    const auto [found, is_new] = targets.try_emplace(term.match.entry);
    if (!is_new) continue;
    for (const std::string& text : term.match.entry->targets) {
      const std::u32string target = decode_utf8(text);
      found->second.phrases.push_back(fold(stripped(target)).text);
      found->second.longest = std::max(found->second.longest, target.size());
    }
  }
  std::vector<std::size_t> order(terms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return targets[terms[a].match.entry].longest > targets[terms[b].match.entry].longest;
  });
  FreeOccurrences occurrences(folded);
  for (const std::size_t n : order) {
    for (const std::u32string& phrase : targets[terms[n].match.entry].phrases) {
      const std::size_t begin = occurrences.take(phrase);
      if (begin == folded.text.npos) continue;
      const std::size_t end = begin + phrase.size();
      const std::size_t first = folded.offsets[begin];
      terms[n].translation = encode_utf8(translation.substr(first, folded.offsets[end] - first));
      break;
    }
  }
  return terms;
}

}  // namespace translate_trt::runtime
