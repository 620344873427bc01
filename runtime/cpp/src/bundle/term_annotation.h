// Annotation of source text with the target phrases of a glossary, for models trained so
// (runtime/bundle/term_annotation.py). The rules are those of docs/terminology.md.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/glossary.h"

namespace translate_trt::runtime {

class Fields;

class TermAnnotation {
 public:
  // Reads the manifest's field. Throws a bundle error if it is invalid.
  static TermAnnotation read(const Fields& fields);

  // Annotates a text with the preferred target phrase of each source phrase in it. The text's own
  // symbols are escaped.
  std::u32string annotate(std::u32string_view text, const Glossary& glossary) const;

 private:
  std::u32string escape(std::u32string text) const;

  // Whether the source phrase stays, and the target phrase is added.
  bool appends_ = true;
  // Before a phrase, before an appended target phrase, and after both.
  std::array<char32_t, 3> symbols_{};
};

}  // namespace translate_trt::runtime
