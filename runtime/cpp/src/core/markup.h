// Translation of texts with markup: tags leave the text before translation and return after it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/results.h"
#include "text/markup_tokens.h"

namespace translate_trt::runtime {

class MarkedSegment;

// Texts with markup, and the plain lines to translate for them, in one round or two. The first has
// the lines of all segments, with placeholders and code for the model to copy; the second has those
// whose translation lacks a copy, without placeholders and code.
class MarkedTexts {
 public:
  // whole: the texts are documents. In a document of XML, tags of elements that are not beside text
  // separate segments; any other text of XML is one segment. Throws an input error if a text is not
  // well-formed XML. names: of the texts in error messages.
  MarkedTexts(const std::vector<std::u32string>& texts, const std::vector<std::string>& names,
              Markup markup, bool whole);
  MarkedTexts(MarkedTexts&& other) noexcept;
  ~MarkedTexts();

  // The lines to translate next; none once the texts are complete.
  const std::vector<std::string>& lines() const { return lines_; }
  // The index of the text that each line is from.
  const std::vector<std::size_t>& owners() const { return owners_; }
  // Whether each line is of a segment without tags and placeholders (Lines::tagless).
  const std::vector<bool>& tagless() const { return tagless_; }

  // Receives the translations of `lines`, which are aligned (Additions). Throws an input error, and
  // changes nothing, if their number is another or alignments are missing.
  void receive(const std::vector<Translation>& translations);

  // The translations of the texts. Throws an input error while there are lines to translate.
  std::vector<Translation> translations() const;

 private:
  // What is between segments, or the index of a segment.
  struct Part {
    std::u32string between;
    std::optional<std::size_t> segment;
  };

  void add_segments(std::size_t text, const std::vector<MarkupToken>& tokens, bool whole);
  void prepare();
  void clear_lines();
  Translation joined(const std::vector<Part>& parts) const;

  Markup markup_;
  std::vector<std::vector<Part>> parts_;  // by text
  std::vector<MarkedSegment> segments_;
  std::vector<std::size_t> owner_of_segment_;
  bool shows_all_ = true;           // the lines have what is shown to the model
  std::vector<std::size_t> round_;  // the segments that are translated now
  std::vector<std::string> lines_;
  std::vector<std::size_t> owners_;
  std::vector<bool> tagless_;
  std::shared_ptr<const Glossary> glossary_;  // of the translations, if their terms were looked up
};

}  // namespace translate_trt::runtime
