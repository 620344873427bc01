// Annotation of source text with the target phrases of a glossary, for models trained so
// (runtime/bundle/term_annotation.py). The rules are those of docs/terminology.md.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/glossary.h"

namespace translate_trt::runtime {

class Fields;

// Characters `begin` to `end` of a text, and the target phrase that annotates them.
struct Annotation {
  std::size_t begin, end;
  std::string_view target;
};

class TermAnnotation {
 public:
  // appends: the source phrase stays, and the target phrase is added. symbols: before a phrase,
  // before an appended target phrase, and after both.
  TermAnnotation(bool appends, const std::array<char32_t, 3>& symbols)
      : appends_(appends), symbols_(symbols) {}

  // Reads the manifest's field. Throws a bundle error if it is invalid.
  static TermAnnotation read(const Fields& fields);

  // Annotates a text, whose own symbols are escaped, with target phrases in its order that do not
  // overlap.
  std::u32string annotate(std::u32string_view text,
                          const std::vector<Annotation>& annotations) const;

  // Annotates a text with the preferred target phrase of each source phrase in it.
  std::u32string annotate(std::u32string_view text, const Glossary& glossary) const;

 private:
  std::u32string escape(std::u32string text) const;

  bool appends_;
  std::array<char32_t, 3> symbols_;
};

}  // namespace translate_trt::runtime
