#include "core/line_jobs.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.h"
#include "base/utf8.h"
#include "core/alternatives.h"
#include "core/checks.h"
#include "core/constraints.h"
#include "text/segments.h"
#include "text/translatable.h"

namespace translate_trt::runtime {

namespace {

// The alignment of a text with its end, which is its translation: each word with itself.
TextAlignment aligned_with_end(std::u32string_view text, std::u32string_view end) {
  const std::size_t before = text.size() - end.size();
  TextAlignment found = {std::u32string(end), {}};
  for (std::size_t first = 0; first < end.size();) {
    std::size_t last = first;
    while (last < end.size() && !is_space(end[last])) ++last;
    if (last > first) {
      found.segments.push_back({{{first + before, last + before}}, {{first, last}}, {1}});
    }
    first = last + 1;
  }
  return found;
}

// Appends the alignment of a part, whose source begins at an offset, and whose translation begins
// at the end of the whole target.
void append_shifted(const TextAlignment& part, std::int64_t source, TextAlignment& whole) {
  const auto from = static_cast<std::size_t>(source);  // wraps around if it is negative
  const std::size_t target = whole.target.size();
  for (AlignedSegment segment : part.segments) {
    for (auto& [begin, end] : segment.source) begin += from, end += from;
    for (auto& [begin, end] : segment.target) begin += target, end += target;
    whole.segments.push_back(std::move(segment));
  }
}

// Joins the i-th best translations of the parts of a line to the i-th best of the line. A part with
// fewer hypotheses than others reuses its last one.
Translation join_parts(const Split& split, const std::vector<Translation>& parts, bool is_aligned) {
  std::size_t ranks = parts.empty() ? 1 : 0;
  for (const Translation& part : parts) ranks = std::max(ranks, part.hypotheses.size());
  Translation joined = {std::vector<TextHypothesis>(ranks), parts.size(), nullptr};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    TextHypothesis& whole = joined.hypotheses[rank];
    if (is_aligned) whole.aligned.emplace();
    const auto append = [&](const std::string& text) {
      whole.text += text;
      if (is_aligned) whole.aligned->target += decode_utf8(text);
    };
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& of_part = parts[i].hypotheses;
      const TextHypothesis& part = of_part[std::min(rank, of_part.size() - 1)];
      append(split.between[i]);
      if (part.aligned && !split.offsets.empty()) {
        append_shifted(*part.aligned, split.offsets[i], *whole.aligned);
      }
      append(part.text);
      whole.score += part.score;
      whole.pieces.insert(whole.pieces.end(), part.pieces.begin(), part.pieces.end());
    }
    append(split.between.back());
  }
  return joined;
}

}  // namespace

struct LineJobs::JobLines {
  std::vector<JobLine> lines;
  Additions additions;
  std::shared_ptr<const Glossary> terminology;
  std::optional<Calibration> calibration;
  bool keeps_attention;
};

std::string SourceNames::line(std::size_t index) const {
  return given.empty() ? "line " + std::to_string(first + index) + " of this call" : given[index];
}

std::string SourceNames::source(std::size_t index) const {
  return given.empty() ? "source " + std::to_string(index) : given[index];
}

std::vector<Tokens> LineJobs::encode_prefixes(const std::vector<std::string_view>& texts) const {
  std::vector<Tokens> found;
  for (const std::string_view text : texts) found.push_back(tokenizer_->encode_target(text));
  return found;
}

Tokens LineJobs::encode_phrase(const std::string& name, const std::string& phrase) const {
  Tokens tokens = tokenizer_->encode_target(phrase);
  const std::int64_t unknown = manifest_.model.unknown_token;
  if (std::find(tokens.begin(), tokens.end(), unknown) != tokens.end()) {
    throw input_error(name + ": " + in_quotes(phrase) +
                      " has a character that the vocabulary cannot spell; leave it out.");
  }
  return tokens;
}

Constraints LineJobs::encode_constraints(const std::vector<std::string_view>& texts,
                                         const SourceNames& names) const {
  Constraints found(texts.size());
  for (std::size_t line = 0; line < texts.size(); ++line) {
    std::string_view rest = texts[line];
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\t'), rest.size());
      const std::string_view phrase = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      found[line].push_back(
          encode_phrase("the constraints of " + names.line(line), std::string(phrase)));
    }
  }
  return found;
}

SearchOptions LineJobs::checked(const Lines& lines, const SearchOptions& options) const {
  const Additions& additions = lines.additions;
  const bool is_aligned = additions.alignments || additions.aligned;
  if (lines.demands.forced == Forced::kTranslation && (lines.terminology || lines.splits)) {
    throw option_error(
        "a given translation is of a whole line; leave terminology and the splitting into "
        "sentences out.");
  }
  if (lines.splits && options.alternatives > 0) {
    throw option_error(
        "alternatives belong to one sentence, and lines are split into sentences; leave out one of "
        "the two.");
  }
  if (lines.terminology && manifest_.term_annotation && is_aligned) {
    throw option_error(
        "terminology goes with neither alignments nor markup: positions in an annotated line are "
        "not those of the line. Leave out one of them.");
  }
  if (is_aligned) check_attention(target_);
  SearchOptions with_attention = options;
  with_attention.return_attention |= is_aligned;
  return checked(with_attention, lines.demands.forced);
}

SearchOptions LineJobs::checked(const SearchOptions& options, Forced forced) const {
  SearchOptions of_sentences = options;
  if (forced == Forced::kTranslation) {
    // A translation is scored with as few beams as the target allows.
    of_sentences.beam_size = static_cast<int>(target_.contract.beams().value_or(1));
    of_sentences.num_hypotheses = 1;
    of_sentences.alternatives = 0;
    of_sentences.max_length.reset();  // that of each translation
    of_sentences.max_extra_length = 0;
    of_sentences.min_length = 0;
  }
  check_options(manifest_, target_, of_sentences);
  return of_sentences;
}

std::shared_ptr<Job> LineJobs::job(const Lines& lines, const SearchOptions& options) const {
  const SearchOptions of_sentences = checked(lines, options);
  const auto& [targets, forced, constraints, names] = lines.demands;
  const Additions& additions = lines.additions;
  auto all = std::make_shared<JobLines>();
  all->additions = additions;
  all->terminology = lines.terminology;
  all->keeps_attention = options.return_attention;
  if (additions.words) all->calibration = read_calibration(target_);
  const std::size_t count = lines.texts.size();
  all->lines.resize(count);
  auto made = std::make_shared<Job>([this, all](std::size_t line, const auto& sentences_of_line) {
    return translation(*all, all->lines[line], sentences_of_line);
  });
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = names.line(i);
    JobLine& line = all->lines[i];
    const Split* split = lines.splits ? &(*lines.splits)[i] : nullptr;
    if (split != nullptr) line.split = Split{{}, split->between, split->offsets};
    if (additions.alignments || additions.terms) {
      line.text = decode_utf8(lines.texts[i]);
      line.of_terms = manifest_.prompt.of_line(line.text, of_sentences, name).first;
    }
    std::vector<Tokens> phrases = constraints.empty() ? std::vector<Tokens>() : constraints[i];
    Tokens target = targets.empty() ? Tokens() : targets[i];
    if (split != nullptr && !phrases.empty()) {
      throw option_error("constraints belong to one sentence, and " + name +
                         " is split into sentences; leave out one of the two.");
    }
    const bool has_tags = additions.aligned && (lines.tagless.empty() || !lines.tagless[i]);
    const bool is_aligned = additions.alignments || has_tags;
    std::vector<Sentence> of_line;
    SearchOptions of_part = of_sentences;
    of_part.return_attention = options.return_attention || is_aligned;
    for (const std::string_view given :
         split == nullptr ? std::vector{lines.texts[i]} : split->parts) {
      Part& part = line.parts.emplace_back();
      const std::u32string text = decode_utf8(given);
      if (is_aligned) {
        part.text = text;
        part.aligned = aligned_text(name, text, of_part);
      }
      if (!additions.translate_all && forced == Forced::kPrefix && target.empty() &&
          phrases.empty()) {
        const auto own = manifest_.prompt.of_line(text, of_part, name).first;
        const bool has_terms = lines.terminology && !lines.terminology->find(own).empty();
        if (!is_translatable(own) && !has_terms) {
          part.untranslated = untranslated(own);
          continue;
        }
      }
      auto found = lines.terminology == nullptr
                       ? sentences(name, text, target, forced, std::move(phrases), of_part)
                       : sentences_with_terms(name, text, target, std::move(phrases), of_part,
                                              is_aligned, *lines.terminology);
      part.sentences = found.size();
      std::move(found.begin(), found.end(), std::back_inserter(of_line));
      target.clear();
      phrases.clear();
    }
    made->add_line(std::move(of_line));
  }
  return made;
}

std::shared_ptr<Job> LineJobs::job(const std::vector<Tokens>& sources, const Demands& demands,
                                   const SearchOptions& options) const {
  const SearchOptions of_sentences = checked(options, demands.forced);
  auto made = std::make_shared<Job>([this](std::size_t, const auto& sentences_of_line) {
    const std::vector<Hypothesis> empty(1);
    return sentences_of_line.empty() ? join({empty}) : join(sentences_of_line);
  });
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Sentence one = sentence(
        demands.names.source(i), sources[i],
        demands.targets.empty() ? Tokens() : demands.targets[i], demands.forced,
        demands.constraints.empty() ? std::vector<Tokens>() : demands.constraints[i], of_sentences);
    std::vector<Sentence> of_line;
    if (!one.tokens.empty()) of_line.push_back(std::move(one));
    made->add_line(std::move(of_line));
  }
  return made;
}

std::vector<Sentence> LineJobs::sentences(const std::string& name, std::u32string_view line,
                                          const Tokens& target, Forced forced,
                                          std::vector<Tokens> constraints,
                                          const SearchOptions& options) const {
  auto [text, of_line] = manifest_.prompt.of_line(line, options, name);
  const auto encode = [this](const std::string& part) { return tokenizer_->encode_source(part); };
  const auto sources = split_text(text, encode, most_tokens());
  if (!sources.empty()) manifest_.prompt.check_line(of_line, name);
  if (forced == Forced::kTranslation && sources.size() != 1) {
    if (sources.empty() && target.empty()) return {};
    throw input_error(name +
                      (sources.empty()
                           ? " is blank, and its translation is not"
                           : " has more than the " + std::to_string(longest_text(manifest_)) +
                                 " tokens that this bundle takes") +
                      "; only the translation of a single sentence has a score.");
  }
  if (!constraints.empty() && sources.size() > 1) {
    throw input_error(name + " has more than the " + std::to_string(longest_text(manifest_)) +
                      " tokens that this bundle takes, and constraints, which apply to a single "
                      "sentence; split it into sentences.");
  }
  std::vector<Sentence> found;
  for (const Tokens& source : sources) {
    found.push_back(sentence(name, source, found.empty() ? target : Tokens(), forced,
                             std::move(constraints), of_line));
    of_line.alternatives = 0;
  }
  return found;
}

std::vector<Sentence> LineJobs::sentences_with_terms(const std::string& name,
                                                     std::u32string_view line, const Tokens& target,
                                                     std::vector<Tokens> constraints,
                                                     const SearchOptions& options, bool aligned,
                                                     const Glossary& terminology) const {
  auto [text, of_line] = manifest_.prompt.of_line(line, options, name);
  if (manifest_.term_annotation) {
    std::u32string annotated(line.substr(0, line.size() - text.size()));
    annotated += manifest_.term_annotation->annotate(text, terminology);
    return sentences(name, annotated, target, Forced::kPrefix, std::move(constraints), options);
  }
  const auto required = [&](std::u32string_view part) {
    std::vector<Tokens> phrases;
    for (const GlossaryMatch& match : terminology.find(part)) {
      phrases.push_back(encode_phrase("the glossary", match.entry->targets.front()));
    }
    return phrases;
  };
  const std::function<Tokens(const std::string&)> encode = [this](const std::string& part) {
    return tokenizer_->encode_source(part);
  };
  const auto segments = split_at_offsets<std::int64_t>(text, encode, most_tokens());
  if (!segments.empty()) manifest_.prompt.check_line(of_line, name);
  if (aligned || segments.size() < 2) {
    std::vector<Tokens> phrases = required(text);
    std::move(constraints.begin(), constraints.end(), std::back_inserter(phrases));
    return sentences(name, line, target, Forced::kPrefix, std::move(phrases), options);
  }
  if (options.alternatives > 0) {
    throw option_error(
        "alternatives belong to one sentence, and a line with terms is too long for one; leave out "
        "alternatives or terminology.");
  }
  if (!constraints.empty()) {
    throw input_error(name +
                      " is too long for the model, and has constraints, which apply to a single "
                      "sentence; split it into sentences.");
  }
  std::vector<Sentence> found;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto& [begin, tokens] = segments[i];
    const std::size_t end = i + 1 < segments.size() ? segments[i + 1].first : text.size();
    found.push_back(sentence(name, tokens, i == 0 ? target : Tokens(), Forced::kPrefix,
                             required(text.substr(begin, end - begin)), of_line));
  }
  return found;
}

Sentence LineJobs::sentence(const std::string& name, const Tokens& source, const Tokens& target,
                            Forced forced, std::vector<Tokens> constraints,
                            const SearchOptions& options) const {
  const bool scored = forced == Forced::kTranslation;
  const std::string target_name = (scored ? "the translation of " : "the target prefix of ") + name;
  check_tokens(manifest_, name, source, target_name, target);
  if (scored && !constraints.empty()) {
    throw option_error(name + " has constraints, and its translation is scored; leave them out.");
  }
  check_constraints(manifest_, target_, name, constraints, options);
  const std::int64_t different = length(different_tokens(constraints));
  if (most_constraint_tokens_ && different > *most_constraint_tokens_) {
    throw input_error("the constraints of " + name + " have " + std::to_string(different) +
                      " different tokens, and the engines of " + target_.name + " take " +
                      std::to_string(*most_constraint_tokens_) +
                      "; give fewer, or use an onnx target.");
  }
  if (source.empty() && scored && !target.empty()) {
    throw input_error(name + " is empty, and its translation is not; it has no score.");
  }
  Sentence made = {};
  if (source.empty()) return made;
  if (options.suppress_sequences) made.suppressed = read_sequences(*options.suppress_sequences);
  if (const std::int64_t unknown = manifest_.model.unknown_token;
      options.disable_unk && unknown >= 0) {
    made.suppressed.push_back({unknown});
  }
  made.tokens = manifest_.prompt.of_source(options);
  made.tokens.insert(made.tokens.end(), source.begin(), source.end());
  made.prefix = manifest_.prompt.of_target(options);
  made.options = options;
  if (scored) {
    made.prefix.insert(made.prefix.end(), target.begin(), target.end());
    made.prefix.push_back(manifest_.model.end_token);
    if (length(made.prefix) > manifest_.limits.max_target_length) {
      throw input_error(target_name + " has " + std::to_string(length(made.prefix)) +
                        " tokens with the end symbol; this bundle takes up to " +
                        std::to_string(manifest_.limits.max_target_length) +
                        ". Split it, or export with a larger --max-target-length.");
    }
    made.options.max_length = static_cast<int>(made.prefix.size());
    return made;
  }
  std::transform(target.begin(), target.end(), std::back_inserter(made.prefix), unscored);
  const std::int64_t longest = options.max_length_for(made.length());
  const bool has_alternatives = options.alternatives > 0;
  if (length(made.prefix) + (has_alternatives ? 1 : 0) >= longest) {
    throw option_error(target_name + " has " + std::to_string(length(made.prefix)) +
                       " tokens, which leaves no room in the maximum length of " +
                       std::to_string(longest) + "; raise max_length or shorten the prefix.");
  }
  std::int64_t wanted = 0;
  for (const Tokens& phrase : constraints) wanted += length(phrase);
  if (length(made.prefix) + wanted >= longest) {
    throw option_error("the constraints of " + name + " have " + std::to_string(wanted) +
                       " tokens, which leaves no room in the maximum length of " +
                       std::to_string(longest) + "; raise max_length or leave some out.");
  }
  made.constraints = std::move(constraints);
  if (has_alternatives) return expansion(std::move(made), target_.contract.beams());
  return made;
}

std::size_t LineJobs::most_tokens() const {
  return static_cast<std::size_t>(longest_text(manifest_));
}

// ---- translations ----

Translation LineJobs::translation(const JobLines& lines, const JobLine& line,
                                  const std::vector<std::vector<Hypothesis>>& sentences) const {
  std::vector<Translation> parts;
  auto next = sentences.begin();
  for (const Part& part : line.parts) {
    const auto end = next + static_cast<std::ptrdiff_t>(part.sentences);
    if (part.untranslated) {
      TextHypothesis same = {encode_utf8(*part.untranslated), 0, {}};
      if (part.aligned) same.aligned = aligned_with_end(part.text, *part.untranslated);
      parts.push_back({{std::move(same)}});
      continue;
    }
    Translation& made = parts.emplace_back(join({next, end}));
    next = end;
    if (!part.aligned) continue;
    for (TextHypothesis& one : made.hypotheses) one.aligned = align(*part.aligned, one.pieces);
  }
  const Additions& additions = lines.additions;
  const bool is_aligned = additions.alignments || additions.aligned;
  Translation whole = line.split ? join_parts(*line.split, parts, is_aligned)
                                 : Translation(std::move(parts.front()));
  whole.glossary = lines.terminology;
  for (TextHypothesis& one : whole.hypotheses) {
    if (is_aligned && !one.aligned) one.aligned = TextAlignment{decode_utf8(one.text), {}};
    if (additions.words) one.words = words_of(*tokenizer_, one.pieces, lines.calibration);
    if (additions.alignments) {
      one.alignment =
          aligned_words(line.text, one.aligned->target, one.aligned->segments, additions.threshold);
    }
    if (additions.terms) {
      one.terms = lines.terminology->terms(line.of_terms, decode_utf8(one.text));
    }
    if (!additions.aligned) one.aligned.reset();
    if (lines.keeps_attention) continue;
    for (Hypothesis& piece : one.pieces) piece.attention = {};
  }
  return whole;
}

Translation LineJobs::join(const std::vector<std::vector<Hypothesis>>& sentences) const {
  if (sentences.empty()) return {{TextHypothesis()}};
  std::size_t ranks = 0;
  for (const auto& sentence : sentences) ranks = std::max(ranks, sentence.size());
  Translation joined = {std::vector<TextHypothesis>(ranks)};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    TextHypothesis& hypothesis = joined.hypotheses[rank];
    std::vector<std::string> texts;
    for (const auto& sentence : sentences) {
      // A sentence with fewer hypotheses than requested reuses its last one.
      const Hypothesis& part = sentence[std::min(rank, sentence.size() - 1)];
      std::string text = tokenizer_->decode(part.tokens);
      if (!text.empty()) texts.push_back(std::move(text));
      hypothesis.score += part.score;
      hypothesis.pieces.push_back(part);
    }
    hypothesis.text = runtime::join(texts, " ");
  }
  return joined;
}

LineJobs::AlignedText LineJobs::aligned_text(const std::string& name, std::u32string_view line,
                                             const SearchOptions& options) const {
  const auto [text, of_line] = manifest_.prompt.of_line(line, options, name);
  AlignedText found = {
      manifest_.prompt.of_source(of_line).size(), manifest_.prompt.of_target(of_line).size(), {}};
  const auto spans = [this](const std::string& part) { return tokenizer_->source_spans(part); };
  const std::size_t before = line.size() - text.size();
  for (auto& [offset, segment] : split_at_offsets<Span>(text, spans, most_tokens(), before)) {
    for (auto& [begin, end] : segment) begin += offset, end += offset;
    found.segments.push_back(std::move(segment));
  }
  return found;
}

TextAlignment LineJobs::align(const AlignedText& text,
                              const std::vector<Hypothesis>& pieces) const {
  TextAlignment found;
  std::u32string& target = found.target;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Hypothesis& piece = pieces[i];
    const auto skip = std::min(text.target_prompt, piece.tokens.size());
    const auto first = piece.tokens.begin() + static_cast<std::ptrdiff_t>(skip);
    auto [part, spans] = tokenizer_->target_spans({first, piece.tokens.end()});
    const std::u32string characters = decode_utf8(part);
    if (!target.empty() && !characters.empty()) target += U' ';
    for (auto& [begin, end] : spans) begin += target.size(), end += target.size();
    target += characters;
    AlignedSegment segment = {text.segments[i], std::move(spans), {}};
    const std::size_t rows = std::max<std::size_t>(piece.token_log_probs.size(), 1);
    const std::size_t columns = piece.attention.size() / rows;
    for (auto row = skip; row < piece.tokens.size(); ++row) {
      const auto begin =
          piece.attention.begin() + static_cast<std::ptrdiff_t>(row * columns + text.source_prompt);
      const auto count = static_cast<std::ptrdiff_t>(segment.source.size());
      segment.weights.insert(segment.weights.end(), begin, begin + count);
    }
    found.segments.push_back(std::move(segment));
  }
  return found;
}

std::vector<Word> LineJobs::words(const std::vector<Hypothesis>& pieces) const {
  for (const Hypothesis& piece : pieces) {
    check_tokens(manifest_, "the line", {}, "the translation", piece.tokens);
    if (piece.token_log_probs.size() < piece.tokens.size()) {
      throw input_error("a piece of the translation has " + std::to_string(length(piece.tokens)) +
                        " tokens and " + std::to_string(piece.token_log_probs.size()) +
                        " log-probabilities.");
    }
  }
  return words_of(*tokenizer_, pieces, read_calibration(target_));
}

}  // namespace translate_trt::runtime
