#include "core/translator.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "backends/onnxruntime_backend.h"
#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/engine_record.h"
#include "core/alternatives.h"
#include "core/constraints.h"
#include "engines/context_memory.h"
#include "engines/device_batch.h"
#include "engines/engine_loader.h"
#include "text/alignment.h"
#include "text/segments.h"
#include "text/translatable.h"

namespace translate_trt::runtime {

namespace {

std::string text_of(const char* given) { return given == nullptr ? "" : given; }

void check_at_least(const char* name, std::int64_t value, std::int64_t smallest) {
  if (value >= smallest) return;
  throw option_error(std::string(name) + " is " + std::to_string(value) + "; it must be at least " +
                     std::to_string(smallest) + ".");
}

// Limits a number to `each` per available core and logs the reduction (within_cores in
// runtime/cores.py).
int within_cores(const Settings& settings, const char* name, int wanted, int each = 1) {
  const int cores = available_cores(), most = each * cores;
  if (wanted <= most) return wanted;
  settings.log(std::string(name) + " is " + std::to_string(wanted) + "; " + std::to_string(most) +
               " are used, since this process may use " + std::to_string(cores) +
               " processor core" + (cores == 1 ? "" : "s"));
  return most;
}

constexpr int kWorkersEach = 4;  // workers per core; more do not increase throughput

// Defaults of workers and of batches per worker. A GPU runs steps of one batch while the host
// handles the results of another: two workers overlap both, and more add memory, not speed, because
// every batch of a worker reserves device memory for the largest profile.
struct Defaults {
  int workers, batches;
};
constexpr Defaults kOfOnnx = {1, 4}, kOfGpus = {2, 2};

bool is_gpu(const char* device) {
  return device != nullptr && read_device(device).provider != Provider::kCpu;
}

Settings settings_of(const tt_load_options& options, const Defaults& defaults) {
  Settings settings;
  if (options.device != nullptr) settings.device = read_device(options.device);
  settings.default_device = options.device == nullptr;
  settings.onnxruntime = text_of(options.onnxruntime);
  settings.kernels = text_of(options.kernels);
  settings.provider = text_of(options.provider);
  settings.log = [log = options.log, context = options.log_context](const std::string& message) {
    if (log != nullptr) log(context, encode_utf8(decode_utf8(message)).c_str());
  };
  const int workers = options.workers > 0 ? options.workers : defaults.workers;
  settings.workers = within_cores(settings, "workers", workers, kWorkersEach);
  settings.threads = options.threads > 0 ? within_cores(settings, "threads", options.threads)
                                         : std::max(1, available_cores() / settings.workers);
  return settings;
}

// Whether device functions can run a target: it has fixed beams and slots.
bool is_static(const TargetEntry& target) {
  const bool known = target.backend.rfind("tensorrt", 0) == 0 || target.backend == "torch";
  return known && target.contract.beams() && target.contract.slots() && !target.contract.shortlist;
}

// Whether a target consists of TensorRT engines.
bool is_engine(const TargetEntry& target) { return is_static(target) && target.backend != "torch"; }

EngineSettings engine_settings(const tt_engines& given) {
  const auto read = [](const tt_profile* profiles, std::size_t count) {
    Profiles found;
    for (std::size_t i = 0; i < count; ++i) {
      const auto [batch, source_length, slots] = profiles[i];
      if (batch < 1 || source_length < 1 || slots < 0) {
        throw option_error("a profile of the engines is empty.");
      }
      found.push_back({batch, source_length, slots});
    }
    return found;
  };
  const auto [marked_tokens, sampled_ranks, tail_tokens, constraint_tokens] = given.changes;
  const ChangeSizes changes = {marked_tokens, sampled_ranks, tail_tokens, constraint_tokens};
  if (marked_tokens < 0 || sampled_ranks < 0 || tail_tokens < 0 || constraint_tokens < 0) {
    throw option_error("a size in changes of the engines is negative.");
  }
  EngineSettings settings;
  settings.encoder_profiles = read(given.encoder_profiles, given.encoder_profile_count);
  settings.step_profiles = read(given.step_profiles, given.step_profile_count);
  if (!changes.empty()) {
    const auto half = static_cast<std::ptrdiff_t>(given.step_profile_count / 2);
    const auto second = settings.step_profiles.begin() + half;
    std::for_each(second, settings.step_profiles.end(),
                  [&](Profile& profile) { profile.changes = changes; });
  }
  settings.poll_every = static_cast<std::size_t>(given.poll_every);
  settings.cuda_graphs = given.cuda_graphs != 0;
  settings.scratch_bytes = given.scratch_bytes;
  return settings;
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::int64_t length(const Tokens& tokens) { return static_cast<std::int64_t>(tokens.size()); }

// Converts the n best hypotheses of a source to a line without text; an empty source has an empty
// one.
Translation without_text(std::size_t, const std::vector<std::vector<Hypothesis>>& sentences) {
  Translation found;
  const std::vector<Hypothesis> none(1);
  for (const Hypothesis& one : sentences.empty() ? none : sentences.front()) {
    found.push_back({"", one.score, {one}, {}});
  }
  return found;
}

// The alignment of a line with its end, which is its translation: each word with itself.
std::vector<tt_word_pair> aligned_with_end(const std::u32string& line, const std::u32string& end,
                                           double threshold) {
  const std::size_t before = line.size() - end.size();
  std::vector<AlignedSegment> segments;
  for (std::size_t first = 0; first < end.size();) {
    std::size_t last = first;
    while (last < end.size() && !is_space(end[last])) ++last;
    if (last > first) segments.push_back({{{first + before, last + before}}, {{first, last}}, {1}});
    first = last + 1;
  }
  return aligned_words(line, end, segments, threshold);
}

}  // namespace

std::string SourceNames::line(std::size_t index) const {
  return given.empty() ? "line " + std::to_string(first + index) + " of this call" : given[index];
}

std::string SourceNames::source(std::size_t index) const {
  return given.empty() ? "source " + std::to_string(index) : given[index];
}

tt_engine_memory engine_memory(const std::filesystem::path& bundle,
                               const std::optional<std::string>& name) {
  const Manifest manifest = read_manifest(bundle);
  const TargetEntry target = manifest.target(name, false);
  if (!is_static(target)) throw option_error(target.name + " has no engines.");
  EngineSettings settings;
  const EngineRecords records = read_engine_records(target, bundle);
  const auto step = records.find("step");
  if (step == records.end()) {
    throw bundle_error("the target has no engine of the step; export the bundle again.");
  }
  settings.step_profiles = step->second.profiles;
  const ContextMemory each = context_memory(target.contract, settings);
  return {sizeof(tt_engine_memory), each.device, each.pinned, kOfGpus.workers, kOfGpus.batches};
}

Translator::Translator(const std::filesystem::path& bundle, const tt_load_options& options,
                       std::function<ArrayPlace()> place) {
  for (const auto& [name, value] :
       {std::pair{"threads", options.threads}, std::pair{"workers", options.workers},
        std::pair{"batch_tokens", options.batch_tokens}, std::pair{"batches", options.batches},
        std::pair{"capacity", options.capacity}}) {
    check_at_least(name, value, 0);
  }
  manifest_ = read_manifest(bundle);
  source_languages_ = manifest_.source_languages();
  target_languages_ = manifest_.target_languages();
  std::optional<std::string> name;
  if (options.target != nullptr) name = options.target;
  target_ = manifest_.target(name, options.shortlist != 0);
  const bool on_gpu = is_static(target_) || is_gpu(options.device);
  const Defaults& defaults = on_gpu ? kOfGpus : kOfOnnx;
  Settings settings = settings_of(options, defaults);
  settings.max_source_length = manifest_.limits.max_source_length;
  settings.max_target_length = manifest_.limits.max_target_length;
  settings.place = std::move(place);
  log_ = settings.log;
  workers_ = settings.workers;
  verify_files(bundle, manifest_, target_, options.check_hashes != 0);
  tokenizer_.emplace(manifest_.source_tokenizer.locate(bundle),
                     manifest_.target_tokenizer.locate(bundle));
  check_tokenizer();
  load_backend(bundle, options.engines, settings);
  batch_tokens_ =
      options.batch_tokens > 0 ? options.batch_tokens : backend_->default_batch_tokens();
  const int batches = options.batches > 0 ? options.batches : defaults.batches;
  const Service::Settings service_settings = {workers_,
                                              backend_->fitting_batches(workers_, batches),
                                              static_cast<std::size_t>(options.capacity)};
  const auto make_search = [this](const SearchOptions& shared) {
    return std::make_unique<Search>(*backend_, shared, batch_tokens_, manifest_.model);
  };
  service_.emplace(service_settings, make_search, log_);
}

void Translator::load_backend(const std::filesystem::path& bundle, const tt_engines* engines,
                              const Settings& settings) {
  if (target_.backend == "onnxruntime") {
    if (settings.device.provider != Provider::kCpu && target_.precision == "int8") {
      throw option_error(target_.name + " runs on a CPU only, and device is " +
                         in_quotes(settings.device.name) +
                         ". Choose onnx-fp16 or onnx-fp32, or leave device out.");
    }
    auto backend = std::make_unique<OnnxRuntimeBackend>(target_.file("encoder").locate(bundle),
                                                        target_.file("step").locate(bundle),
                                                        target_.contract, settings);
    kernels_ = backend->kernels();
    onnxruntime_ = backend->version();
    backend_ = std::move(backend);
  } else if (engines != nullptr && is_static(target_)) {
    const tt_engines given = complete(engines);
    backend_ = std::make_unique<DeviceBackend>(complete(*given.functions), target_.contract,
                                               engine_settings(given), settings.log);
  } else if (is_engine(target_)) {
    backend_ = load_engines(bundle, target_, settings);
  } else {
    throw bundle_error("the target runs on the backend " + in_quotes(target_.backend) +
                       ", which this library does not have by itself (it has onnxruntime). Choose "
                       "another target, or translate with Python, which runs engines.");
  }
}

std::vector<Tokens> Translator::encode_prefixes(const std::vector<std::string_view>& texts) const {
  std::vector<Tokens> found;
  for (const std::string_view text : texts) found.push_back(tokenizer_->encode_target(text));
  return found;
}

Tokens Translator::encode_phrase(const std::string& name, const std::string& phrase) const {
  Tokens tokens = tokenizer_->encode_target(phrase);
  const std::int64_t unknown = manifest_.model.unknown_token;
  if (std::find(tokens.begin(), tokens.end(), unknown) != tokens.end()) {
    throw input_error(name + ": " + in_quotes(phrase) +
                      " has a character that the vocabulary cannot spell; leave it out.");
  }
  return tokens;
}

Constraints Translator::encode_constraints(const std::vector<std::string_view>& texts,
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

std::shared_ptr<Job> Translator::job(const std::vector<std::string_view>& lines,
                                     const SearchOptions& options, std::vector<Tokens> targets,
                                     Forced forced, Constraints constraints,
                                     const SourceNames& names, const Additions& additions,
                                     const Glossary* terminology) const {
  if (terminology != nullptr && forced == Forced::kTranslation) {
    throw option_error("a given translation is of a whole line; leave terminology out.");
  }
  const bool is_aligned = additions.alignments || additions.aligned;
  if (terminology != nullptr && manifest_.term_annotation && is_aligned) {
    throw option_error(
        "terminology goes with neither alignments nor markup: positions in an annotated line are "
        "not those of the line. Leave out one of them.");
  }
  if (is_aligned && !target_.contract.attention()) {
    throw option_error(
        "alignments, which markup needs as well, are made from cross-attention, which this "
        "bundle's step graph does not return; export it again with --attention.");
  }
  SearchOptions with_attention = options;
  with_attention.return_attention |= is_aligned;
  const SearchOptions of_sentences = checked(with_attention, forced);
  targets.resize(lines.size());
  constraints.resize(lines.size());
  std::vector<AlignedLine> aligned;
  if (is_aligned) {
    for (std::size_t line = 0; line < lines.size(); ++line) {
      aligned.push_back(aligned_line(names.line(line), lines[line], of_sentences));
    }
  }
  // Of texts with markup, all lines are translatable.
  const bool translates_all =
      additions.translate_all || additions.aligned || forced == Forced::kTranslation;
  std::vector<std::optional<std::u32string>> untranslated(lines.size());
  for (std::size_t line = 0; line < lines.size() && !translates_all; ++line) {
    if (targets[line].empty() && constraints[line].empty()) {
      untranslated[line] =
          untranslated_end(names.line(line), lines[line], of_sentences, terminology);
    }
  }
  const auto calibration = additions.words ? read_calibration(target_) : std::nullopt;
  auto made = std::make_shared<Job>(
      [this, aligned = std::move(aligned), untranslated, additions, calibration,
       keeps_attention = options.return_attention](std::size_t line, const auto& sentences) {
        if (const auto& end = untranslated[line]) {
          TextHypothesis same = {encode_utf8(*end), 0, {}, {}};
          if (additions.alignments) {
            same.alignment = aligned_with_end(aligned[line].text, *end, additions.threshold);
          }
          return Translation{std::move(same)};
        }
        Translation translation = join(sentences);
        for (TextHypothesis& one : translation) {
          if (additions.words) one.words = words_of(*tokenizer_, one.pieces, calibration);
        }
        if (aligned.empty()) return translation;
        align(aligned[line], additions, translation);
        for (TextHypothesis& one : translation) {
          for (Hypothesis& piece : one.pieces) {
            if (!keeps_attention) piece.attention = {};
          }
        }
        return translation;
      });
  for (std::size_t line = 0; line < lines.size(); ++line) {
    if (untranslated[line]) {
      made->add_line({});
      continue;
    }
    std::vector<Tokens>& phrases = constraints[line];
    made->add_line(terminology == nullptr
                       ? sentences(names.line(line), lines[line], targets[line], forced,
                                   std::move(phrases), of_sentences)
                       : sentences_with_terms(names.line(line), lines[line], targets[line],
                                              std::move(phrases), of_sentences, is_aligned,
                                              *terminology));
  }
  return made;
}

std::shared_ptr<Job> Translator::job_of_ids(const std::vector<Tokens>& sources,
                                            const SearchOptions& options,
                                            std::vector<Tokens> targets, Forced forced,
                                            Constraints constraints,
                                            const SourceNames& names) const {
  const SearchOptions of_sentences = checked(options, forced);
  targets.resize(sources.size());
  constraints.resize(sources.size());
  auto made = std::make_shared<Job>(without_text);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Sentence one = sentence(names.source(i), sources[i], targets[i], forced,
                            std::move(constraints[i]), of_sentences);
    std::vector<Sentence> of_line;
    if (!one.tokens.empty()) of_line.push_back(std::move(one));
    made->add_line(std::move(of_line));
  }
  return made;
}

SearchOptions Translator::checked(const SearchOptions& options, Forced forced) const {
  SearchOptions of_sentences = options;
  if (forced == Forced::kTranslation) {
    of_sentences.beam_size = static_cast<int>(target_.contract.beams().value_or(1));
    of_sentences.num_hypotheses = 1;
    of_sentences.alternatives = 0;
    of_sentences.max_length.reset();  // that of each translation
    of_sentences.max_extra_length = 0;
    of_sentences.min_length = 0;
  }
  check_options(of_sentences);
  return of_sentences;
}

std::optional<std::u32string> Translator::untranslated_end(const std::string& name,
                                                           std::string_view line,
                                                           const SearchOptions& options,
                                                           const Glossary* terminology) const {
  const std::u32string characters = decode_utf8(line);
  const std::u32string_view text = manifest_.prompt.of_line(characters, options, name).first;
  if (is_translatable(text)) return std::nullopt;
  if (terminology != nullptr && !terminology->find(text).empty()) return std::nullopt;
  return runtime::untranslated(text);
}

std::vector<Sentence> Translator::sentences(const std::string& name, std::string_view line,
                                            const Tokens& target, Forced forced,
                                            std::vector<Tokens> constraints,
                                            const SearchOptions& options) const {
  const std::u32string characters = decode_utf8(line);
  auto [text, of_line] = manifest_.prompt.of_line(characters, options, name);
  const auto encode = [this](const std::string& part) { return tokenizer_->encode_source(part); };
  const auto sources = split_text(text, encode, static_cast<std::size_t>(longest_text()));
  if (forced == Forced::kTranslation && sources.size() != 1) {
    if (sources.empty() && target.empty()) return {};
    throw input_error(name +
                      (sources.empty() ? " is blank, and its translation is not"
                                       : " has more than the " + number(longest_text()) +
                                             " tokens that this bundle takes") +
                      "; only the translation of a single sentence has a score.");
  }
  if (!constraints.empty() && sources.size() > 1) {
    throw input_error(name + " has more than the " + number(longest_text()) +
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

std::vector<Sentence> Translator::sentences_with_terms(const std::string& name,
                                                       std::string_view line, const Tokens& target,
                                                       std::vector<Tokens> constraints,
                                                       const SearchOptions& options, bool aligned,
                                                       const Glossary& terminology) const {
  const std::u32string characters = decode_utf8(line);
  auto [text, of_line] = manifest_.prompt.of_line(characters, options, name);
  if (manifest_.term_annotation) {
    const std::u32string code = characters.substr(0, characters.size() - text.size());
    const std::string annotated =
        encode_utf8(code + manifest_.term_annotation->annotate(text, terminology));
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
  const auto segments =
      split_at_offsets<std::int64_t>(text, encode, static_cast<std::size_t>(longest_text()));
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

Sentence Translator::sentence(const std::string& name, const Tokens& source, const Tokens& target,
                              Forced forced, std::vector<Tokens> constraints,
                              const SearchOptions& options) const {
  const bool scored = forced == Forced::kTranslation;
  const std::string target_name = (scored ? "the translation of " : "the target prefix of ") + name;
  check_tokens(name, source, target_name, target);
  check_constraints(name, constraints, forced, options);
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
      throw input_error(target_name + " has " + number(length(made.prefix)) +
                        " tokens with the end symbol; this bundle takes up to " +
                        number(manifest_.limits.max_target_length) +
                        ". Split it, or export with a larger --max-target-length.");
    }
    made.options.max_length = static_cast<int>(made.prefix.size());
    return made;
  }
  std::transform(target.begin(), target.end(), std::back_inserter(made.prefix), unscored);
  const std::int64_t longest = options.max_length_for(made.length());
  const bool has_alternatives = options.alternatives > 0;
  if (length(made.prefix) + (has_alternatives ? 1 : 0) >= longest) {
    throw option_error(target_name + " has " + number(length(made.prefix)) +
                       " tokens, which leaves no room in the maximum length of " + number(longest) +
                       "; raise max_length or shorten the prefix.");
  }
  std::int64_t wanted = 0;
  for (const Tokens& phrase : constraints) wanted += length(phrase);
  if (length(made.prefix) + wanted >= longest) {
    throw option_error("the constraints of " + name + " have " + number(wanted) +
                       " tokens, which leaves no room in the maximum length of " + number(longest) +
                       "; raise max_length or leave some out.");
  }
  made.constraints = std::move(constraints);
  if (has_alternatives) return expansion(std::move(made), target_.contract.beams());
  return made;
}

std::int64_t Translator::longest_text() const {
  return manifest_.limits.max_source_length - 1 - manifest_.prompt.source_length();
}

Translation Translator::join(const std::vector<std::vector<Hypothesis>>& sentences) const {
  if (sentences.empty()) return {TextHypothesis()};
  std::size_t ranks = 0;
  for (const auto& sentence : sentences) ranks = std::max(ranks, sentence.size());
  Translation joined(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    TextHypothesis& hypothesis = joined[rank];
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

Translator::AlignedLine Translator::aligned_line(const std::string& name, std::string_view line,
                                                 const SearchOptions& options) const {
  AlignedLine found = {decode_utf8(line), 0, 0, {}};
  const auto [text, of_line] = manifest_.prompt.of_line(found.text, options, name);
  found.source_prompt = manifest_.prompt.of_source(of_line).size();
  found.target_prompt = manifest_.prompt.of_target(of_line).size();
  const auto spans = [this](const std::string& part) { return tokenizer_->source_spans(part); };
  const std::size_t before = found.text.size() - text.size();
  for (auto& [offset, segment] :
       split_at_offsets<Span>(text, spans, static_cast<std::size_t>(longest_text()), before)) {
    for (auto& [begin, end] : segment) begin += offset, end += offset;
    found.segments.push_back(std::move(segment));
  }
  return found;
}

void Translator::align(const AlignedLine& line, const Additions& additions,
                       Translation& translation) const {
  for (TextHypothesis& hypothesis : translation) {
    std::u32string target;
    std::vector<AlignedSegment> segments;
    for (std::size_t i = 0; i < hypothesis.pieces.size(); ++i) {
      const Hypothesis& piece = hypothesis.pieces[i];
      const auto skip = std::min(line.target_prompt, piece.tokens.size());
      const auto first = piece.tokens.begin() + static_cast<std::ptrdiff_t>(skip);
      auto [part, spans] = tokenizer_->target_spans({first, piece.tokens.end()});
      const std::u32string text = decode_utf8(part);
      if (!target.empty() && !text.empty()) target += U' ';
      for (auto& [begin, end] : spans) begin += target.size(), end += target.size();
      target += text;
      AlignedSegment segment = {line.segments[i], std::move(spans), {}};
      const std::size_t rows = std::max<std::size_t>(piece.token_log_probs.size(), 1);
      const std::size_t columns = piece.attention.size() / rows;
      for (auto row = skip; row < piece.tokens.size(); ++row) {
        const auto begin = piece.attention.begin() +
                           static_cast<std::ptrdiff_t>(row * columns + line.source_prompt);
        const auto count = static_cast<std::ptrdiff_t>(segment.source.size());
        segment.weights.insert(segment.weights.end(), begin, begin + count);
      }
      segments.push_back(std::move(segment));
    }
    if (additions.alignments) {
      hypothesis.alignment = aligned_words(line.text, target, segments, additions.threshold);
    }
    if (additions.aligned) hypothesis.aligned = {std::move(target), std::move(segments)};
  }
}

// ---- checks ----

void Translator::check_tokenizer() const {
  const ModelDescription& model = manifest_.model;
  for (const auto& [pieces, expected] :
       {std::pair{tokenizer_->source_vocabulary_size(), model.input_vocabulary_size},
        std::pair{tokenizer_->vocabulary_size(), model.vocabulary_size}}) {
    if (pieces == expected) continue;
    throw bundle_error("the tokenizer has " + number(pieces) + " pieces, the model " +
                       number(expected) +
                       "; they do not belong together. Export the bundle again.");
  }
}

void Translator::check_options(const SearchOptions& options) const {
  const Limits& limits = manifest_.limits;
  manifest_.prompt.check(options, manifest_.source_language, manifest_.target_language);
  if (options.return_attention && !target_.contract.attention()) {
    throw option_error(
        "return_attention: this bundle's step graph does not return attention; export it again "
        "with --attention.");
  }
  if (options.changing_option() != nullptr && !target_.contract.marks()) {
    throw option_error(std::string(options.changing_option()) + ": the step graph of " +
                       target_.name +
                       " can neither mark nor draw tokens. Export the bundle again with "
                       "--all-options, or for an onnx target.");
  }
  if (options.sampling_top_k == 0 && target_.contract.shortlist) {
    throw option_error("sampling_top_k is 0, the whole vocabulary, to which the shortlist of " +
                       target_.name +
                       " does not give access; use another target, or set sampling_top_k to " +
                       number(kMaxTopK) + " at most.");
  }
  check_sequences(options);
  if (options.max_length && *options.max_length > limits.max_target_length) {
    throw option_error("max_length " + number(*options.max_length) + " is more than the " +
                       number(limits.max_target_length) +
                       " tokens this bundle was exported for; export it with a larger "
                       "--max-target-length.");
  }
  if (!options.max_length &&
      options.max_extra_length > limits.max_target_length - limits.max_source_length) {
    throw option_error(
        "max_extra_length " + number(options.max_extra_length) + ": with sources of up to " +
        number(limits.max_source_length) + " tokens, that is more than the " +
        number(limits.max_target_length) +
        " tokens this bundle was exported for; export it with a larger --max-target-length.");
  }
  if (options.min_length > limits.max_target_length) {
    throw option_error("min_length " + number(options.min_length) + " is more than the " +
                       number(limits.max_target_length) +
                       " tokens this bundle was exported for; export it with a larger "
                       "--max-target-length.");
  }
  const auto beams = target_.contract.beams();
  const std::string beam_size = "beam_size " + number(options.beam_size);
  if (beams && options.beam_size != *beams) {
    throw option_error(beam_size + ": " + target_.name + " was made for " + number(*beams) +
                       " beams; ask for that, or export with --beam-size " +
                       number(options.beam_size) + ".");
  }
  const std::int64_t choices = target_.contract.choices(manifest_.model.vocabulary_size);
  if (options.beam_size > max_beams(choices)) {
    throw option_error(beam_size + " is too large for a " +
                       (target_.contract.shortlist ? "shortlist" : "vocabulary") + " of " +
                       number(choices) + " pieces; at most " + number(max_beams(choices)) + ".");
  }
  const std::int64_t most = beams.value_or(max_beams(choices));
  if (options.alternatives > most) {
    throw option_error("alternatives is " + number(options.alternatives) + "; " + target_.name +
                       " finds at most " + number(most) + ".");
  }
  if (options.beam_size > kManyBeams && !warned_of_beams_.exchange(true)) {
    log_(beam_size + " takes at least " + number(options.beam_size / 4) +
         " times as long as 4 beams; more than " + number(kManyBeams) +
         " beams seldom find anything better.");
  }
}

// Checks that suppressed tokens are in the vocabulary and not the end symbol.
void Translator::check_sequences(const SearchOptions& options) const {
  if (!options.suppress_sequences) return;
  const ModelDescription& model = manifest_.model;
  for (const auto& sequence : read_sequences(*options.suppress_sequences)) {
    for (const std::int64_t token : sequence) {
      if (token >= model.vocabulary_size) {
        throw option_error("suppress_sequences has token " + number(token) +
                           ", outside the vocabulary of " + number(model.vocabulary_size) +
                           " pieces.");
      }
      if (token == model.end_token) {
        throw option_error(
            "suppress_sequences has the end symbol, which every translation needs; set min_length "
            "for longer translations.");
      }
    }
  }
}

void Translator::check_tokens(const std::string& name, const Tokens& source,
                              const std::string& target_name, const Tokens& target) const {
  const ModelDescription& model = manifest_.model;
  if (length(source) > longest_text()) {
    throw input_error(name + " has " + number(length(source)) +
                      " tokens; this bundle takes up to " + number(longest_text()) +
                      " and the end symbol. Split it, or export with a larger "
                      "--max-source-length.");
  }
  for (const auto& [side, list, pieces] :
       {std::tuple{&name, &source, model.input_vocabulary_size},
        std::tuple{&target_name, &target, model.vocabulary_size}}) {
    for (const std::int64_t token : *list) {
      if (token >= 0 && token < pieces) continue;
      throw input_error(*side + " has token " + number(token) + ", outside the vocabulary of " +
                        number(pieces) + " pieces.");
    }
  }
  if (std::find(target.begin(), target.end(), model.end_token) != target.end()) {
    throw input_error(target_name + " contains the end symbol; leave it out.");
  }
}

// Checks phrases that a translation must have.
void Translator::check_constraints(const std::string& name, const std::vector<Tokens>& constraints,
                                   Forced forced, const SearchOptions& options) const {
  if (constraints.empty()) return;
  if (forced == Forced::kTranslation) {
    throw option_error(name + " has constraints, and its translation is scored; leave them out.");
  }
  if (!target_.contract.marks()) {
    throw option_error("constraints: the step graph of " + target_.name +
                       " cannot enforce them. Export the bundle again with --all-options, or for "
                       "an onnx target.");
  }
  if (options.beam_size < 2) {
    throw option_error("beam_size is 1, and " + name + " has constraints; set it to at least 2.");
  }
  const std::string whose = "a constraint of " + name;
  for (const Tokens& phrase : constraints) {
    if (phrase.empty()) throw input_error(whose + " is empty; leave it out.");
    check_tokens(name, {}, whose, phrase);
  }
  const auto count = static_cast<std::int64_t>(different_tokens(constraints).size());
  if (const auto most = backend_->most_constraint_tokens(); most && count > *most) {
    throw input_error("the constraints of " + name + " have " + number(count) +
                      " different tokens, and the engines of " + target_.name + " take " +
                      number(*most) + "; give fewer, or use an onnx target.");
  }
}

}  // namespace translate_trt::runtime
