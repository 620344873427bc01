// Glossaries: source phrases with their target phrases, found in texts and in translations
// (runtime/text/glossary.py). The rules are those of docs/terminology.md.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace translate_trt::runtime {

// A source phrase and its target phrases, the preferred one first.
struct GlossaryEntry {
  std::string source;
  std::vector<std::string> targets;
  std::size_t index = 0;  // in the glossary
};

// Characters `begin` to `end` of a text that an entry's source phrase matches.
struct GlossaryMatch {
  std::size_t begin, end;
  const GlossaryEntry* entry;
};

// A phrase of a glossary in a source text, as it is spelled there, and the target phrase that the
// translation has, if any.
struct Term {
  GlossaryMatch match;
  std::string source;
  std::optional<std::string> translation;
};

class Glossary {
 public:
  // Parses the content of a glossary file. Throws an input error that names the line.
  // name: of the content in errors. ignore_case: phrases match in any case, on both sides.
  Glossary(std::string_view content, const std::string& name, bool ignore_case);

  // Makes a glossary of entries in memory. Throws an input error if a phrase is blank, or an entry
  // has no target phrase.
  Glossary(const std::vector<GlossaryEntry>& entries, bool ignore_case);

  Glossary(Glossary&&) = default;  // a copy's indices would refer to the original

  // Reads a glossary file, plain and in UTF-8.
  static Glossary read(const std::filesystem::path& path, bool ignore_case);

  // The source phrases in a text: the leftmost, longest ones, without overlaps.
  std::vector<GlossaryMatch> find(std::u32string_view text) const;

  // The source phrases in a text, each with its own occurrence of a target phrase in the
  // translation; long target phrases come first.
  std::vector<Term> terms(std::u32string_view source, std::u32string_view translation) const;

  // The entries, one of each source phrase, in the order in which these appeared first.
  std::size_t size() const { return entries_.size(); }
  const GlossaryEntry& entry(std::size_t index) const { return entries_.at(index).entry; }

 private:
  struct Folded;
  class FreeOccurrences;

  struct Keyed {
    std::u32string phrase;  // folded
    GlossaryEntry entry;
  };

  // An entry among those whose phrases have the same first word.
  struct Indexed {
    const Keyed* keyed;
    std::ptrdiff_t beginning;  // index of the longest other phrase that begins this one; -1: none
  };

  // Target phrases of each entry, while the glossary is parsed.
  using KnownTargets = std::unordered_map<const GlossaryEntry*, std::unordered_set<std::u32string>>;

  Folded fold(std::u32string_view text) const;
  void add(const std::u32string& source, const std::vector<std::u32string>& targets,
           KnownTargets& known);
  void index();

  bool ignore_case_;
  std::deque<Keyed> entries_;  // does not move its elements, which the indices refer to
  std::unordered_map<std::u32string_view, GlossaryEntry*> by_phrase_;
  // Entries whose phrases begin with a word, in the order of their phrases.
  std::unordered_map<std::u32string_view, std::vector<Indexed>> beginning_with_;
};

}  // namespace translate_trt::runtime
