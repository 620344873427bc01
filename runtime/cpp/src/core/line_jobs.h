// Jobs of lines: the sentences to search for, and translations of lines from their hypotheses.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bundle/manifest.h"
#include "core/confidence.h"
#include "core/job.h"
#include "core/lines.h"
#include "text/alignment.h"

namespace translate_trt::runtime {

// Makes the jobs of a bundle. Thread-safe.
class LineJobs {
 public:
  // The manifest, the target and the tokenizer outlive this object and its jobs.
  // most_constraint_tokens: different tokens that the constraints of a sentence may have.
  LineJobs(const Manifest& manifest, const TargetEntry& target, const Tokenizer* tokenizer,
           std::optional<std::int64_t> most_constraint_tokens = std::nullopt)
      : manifest_(manifest),
        target_(target),
        tokenizer_(tokenizer),
        most_constraint_tokens_(most_constraint_tokens) {}

  // Creates a job that translates lines, or scores translations of them. Without a tokenizer, there
  // are no lines: only the options are checked.
  std::shared_ptr<Job> job(const Lines& lines, const SearchOptions& options) const;

  // Creates a job of token sequences, which exclude the end symbol and the prompt.
  std::shared_ptr<Job> job(const std::vector<Tokens>& sources, const Demands& demands,
                           const SearchOptions& options) const;

  // Tokenizes target prefixes.
  std::vector<Tokens> encode_prefixes(const std::vector<std::string_view>& texts) const;

  // Tokenizes the constraints of each line, phrases between tab characters. Throws an input error
  // for a phrase that the vocabulary cannot spell.
  Constraints encode_constraints(const std::vector<std::string_view>& texts,
                                 const SourceNames& names) const;

  // The words of a translation that consists of pieces. Throws an input error for tokens outside
  // the vocabulary.
  std::vector<Word> words(const std::vector<Hypothesis>& pieces) const;

 private:
  // A line, or a part of one, whose characters are aligned with those of its translations.
  struct AlignedText {
    std::size_t source_prompt, target_prompt;  // tokens before those of source and translation
    std::vector<std::vector<Span>> segments;   // the characters of the tokens of each
  };

  // A text that is translated by itself: a line, or a part of one.
  struct Part {
    std::size_t sentences = 0;  // number of its sentences in the job
    std::u32string text = {};
    std::optional<std::u32string> untranslated = {};  // its translation, if it is not translatable
    std::optional<AlignedText> aligned = {};
  };

  // A line of a job, without what its sentences have.
  struct JobLine {
    std::vector<Part> parts;
    std::optional<Split> split;  // without the texts of the parts
    std::u32string text;
    std::u32string_view of_terms;  // the part of the text after its language code
  };

  struct JobLines;  // the lines of a job, and what its translations have

  // Checks what does not depend on the lines; returns the options of sentences.
  SearchOptions checked(const Lines& lines, const SearchOptions& options) const;
  SearchOptions checked(const SearchOptions& options, Forced forced) const;
  // The sentences of a line or of a part; the first has the target, alternatives and constraints.
  // A line to score is not split.
  std::vector<Sentence> sentences(const std::string& name, std::u32string_view line,
                                  const Tokens& target, Forced forced,
                                  std::vector<Tokens> constraints,
                                  const SearchOptions& options) const;
  // As above, with the terms of a glossary: in the line, for a model that reads annotations, or as
  // constraints. Each segment of a long line has its own constraints, unless the line is aligned.
  std::vector<Sentence> sentences_with_terms(const std::string& name, std::u32string_view line,
                                             const Tokens& target, std::vector<Tokens> constraints,
                                             const SearchOptions& options, bool aligned,
                                             const Glossary& terminology) const;
  // Checks the tokens of a text and what its translation must have, and adds the prompt; the
  // expansion if alternatives are wanted. name: of the text in errors.
  Sentence sentence(const std::string& name, const Tokens& source, const Tokens& target,
                    Forced forced, std::vector<Tokens> constraints,
                    const SearchOptions& options) const;
  // Tokenizes a phrase that a translation must have. name: of what has it, in errors.
  Tokens encode_phrase(const std::string& name, const std::string& phrase) const;
  AlignedText aligned_text(const std::string& name, std::u32string_view text,
                           const SearchOptions& options) const;
  std::size_t most_tokens() const;

  Translation translation(const JobLines& lines, const JobLine& line,
                          const std::vector<std::vector<Hypothesis>>& sentences) const;
  // Joins the i-th best hypotheses of a part's sentences to the i-th best of the part.
  Translation join(const std::vector<std::vector<Hypothesis>>& sentences) const;
  // The attention between the characters of a text and of a translation of it.
  TextAlignment align(const AlignedText& text, const std::vector<Hypothesis>& pieces) const;

  const Manifest& manifest_;
  const TargetEntry& target_;
  const Tokenizer* tokenizer_;
  std::optional<std::int64_t> most_constraint_tokens_;
};

}  // namespace translate_trt::runtime
