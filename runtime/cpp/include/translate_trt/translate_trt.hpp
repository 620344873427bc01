// libtranslate_trt for C++17: a header-only wrapper of the C interface (docs/embed-cpp.md).
//
// Every operation comes in two forms: `translate` throws translate_trt::Error, and `try_translate`
// returns a Result and also works with -fno-exceptions. Handles are owned by the classes; results
// are ordinary values, independent of the translator.
#ifndef TRANSLATE_TRT_HPP_
#define TRANSLATE_TRT_HPP_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "translate_trt/translate_trt.h"

#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

namespace translate_trt {

// A failed operation: its status, and a message that says what was wrong, where, and what to do.
struct Failure {
  tt_status status = TT_INTERNAL_ERROR;
  std::string message;
};

// A value or a Failure.
template <class T>
class Result {
 public:
  Result(T value) : content_(std::move(value)) {}
  Result(Failure failure) : content_(std::move(failure)) {}

  bool has_value() const { return content_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // Require has_value().
  T& operator*() & { return *std::get_if<0>(&content_); }
  const T& operator*() const& { return *std::get_if<0>(&content_); }
  T&& operator*() && { return std::move(*std::get_if<0>(&content_)); }
  T* operator->() { return std::get_if<0>(&content_); }
  const T* operator->() const { return std::get_if<0>(&content_); }

  // Requires !has_value().
  const Failure& error() const { return *std::get_if<1>(&content_); }

 private:
  std::variant<T, Failure> content_;
};

#if defined(__cpp_exceptions)

class Error : public std::runtime_error {
 public:
  explicit Error(const Failure& failure)
      : std::runtime_error(failure.message), status_(failure.status) {}

  tt_status status() const { return status_; }

 private:
  tt_status status_;
};

#endif

enum class LengthPenalty { gnmt = TT_LENGTH_PENALTY_GNMT, length = TT_LENGTH_PENALTY_LENGTH };

// Search options; the fields are those of tt_options. A new object has the library's defaults;
// languages without a value take the bundle's defaults.
struct SearchOptions {
  // ---- fields, made by scripts/declare.py ----
  int beam_size;
  double length_penalty;
  LengthPenalty length_penalty_form;
  bool early_stopping;
  std::optional<int> max_length;
  int min_length;
  int num_hypotheses;
  bool return_attention;
  std::optional<std::string> source_language;
  std::optional<std::string> target_language;
  bool loop_guard;
  int alternatives;
  double min_alternative_prob;
  double repetition_penalty;
  int no_repeat_ngram_size;
  std::optional<std::string> suppress_sequences;
  bool disable_unk;
  int sampling_top_k;
  double sampling_top_p;
  double sampling_temperature;
  int seed;
  int max_extra_length;
  // ---- end ----

  SearchOptions() : SearchOptions(defaults()) {}

  explicit SearchOptions(const tt_options& options)
      // ---- from C, made by scripts/declare.py ----
      : beam_size(options.beam_size),
        length_penalty(options.length_penalty),
        length_penalty_form(static_cast<LengthPenalty>(options.length_penalty_form)),
        early_stopping(options.early_stopping != 0),
        max_length(count_or_none(options.max_length)),
        min_length(options.min_length),
        num_hypotheses(options.num_hypotheses),
        return_attention(options.return_attention != 0),
        source_language(text_or_none(options.source_language)),
        target_language(text_or_none(options.target_language)),
        loop_guard(options.loop_guard != 0),
        alternatives(options.alternatives),
        min_alternative_prob(options.min_alternative_prob),
        repetition_penalty(options.repetition_penalty),
        no_repeat_ngram_size(options.no_repeat_ngram_size),
        suppress_sequences(text_or_none(options.suppress_sequences)),
        disable_unk(options.disable_unk != 0),
        sampling_top_k(options.sampling_top_k),
        sampling_top_p(options.sampling_top_p),
        sampling_temperature(options.sampling_temperature),
        seed(options.seed),
        max_extra_length(options.max_extra_length) {}
  // ---- end ----

  // The strings of the result belong to this object, which must outlive it unchanged.
  tt_options to_c() && = delete;
  tt_options to_c() const& {
    tt_options options = defaults();
    // ---- to C, made by scripts/declare.py ----
    options.beam_size = beam_size;
    options.length_penalty = length_penalty;
    options.length_penalty_form = static_cast<std::int32_t>(length_penalty_form);
    options.early_stopping = early_stopping;
    options.max_length = or_unset(max_length);
    options.min_length = min_length;
    options.num_hypotheses = num_hypotheses;
    options.return_attention = return_attention;
    options.source_language = or_unset(source_language);
    options.target_language = or_unset(target_language);
    options.loop_guard = loop_guard;
    options.alternatives = alternatives;
    options.min_alternative_prob = min_alternative_prob;
    options.repetition_penalty = repetition_penalty;
    options.no_repeat_ngram_size = no_repeat_ngram_size;
    options.suppress_sequences = or_unset(suppress_sequences);
    options.disable_unk = disable_unk;
    options.sampling_top_k = sampling_top_k;
    options.sampling_top_p = sampling_top_p;
    options.sampling_temperature = sampling_temperature;
    options.seed = seed;
    options.max_extra_length = max_extra_length;
    // ---- end ----
    return options;
  }

 private:
  static std::optional<std::string> text_or_none(const char* text) {
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  }

  static std::optional<int> count_or_none(std::int32_t count) {
    return count == 0 ? std::nullopt : std::optional<int>(count);
  }

  static const char* or_unset(const std::optional<std::string>& text) {
    return text ? text->c_str() : nullptr;
  }

  // In C, 0 means "not set"; an explicit 0 becomes an invalid value, so that it is an error.
  static std::int32_t or_unset(const std::optional<int>& count) {
    return count ? (*count == 0 ? -1 : *count) : 0;
  }

  static tt_options defaults() {
    tt_options options = {};
    tt_options_default(&options, sizeof(options));
    return options;
  }
};

// Load options; the fields are those of tt_load_options. An empty string means "not set".
struct LoadOptions {
  std::string target;
  bool shortlist = false;
  int threads = 0;
  int workers = 0;
  int batch_tokens = 0;
  std::string device;
  bool check_hashes = true;
  std::string onnxruntime;
  std::string kernels;
  std::function<void(const std::string&)> log;  // see tt_log_function; must not throw
  int batches = 0;
  int capacity = 0;
  std::string provider;
  int cache_mib = 0;
};

namespace detail {

struct Free {
  void operator()(tt_translator* handle) const { tt_translator_free(handle); }
  void operator()(tt_job* handle) const { tt_job_free(handle); }
  void operator()(tt_result* handle) const { tt_result_free(handle); }
  void operator()(tt_glossary* handle) const { tt_glossary_free(handle); }
  void operator()(tt_terms* handle) const { tt_terms_free(handle); }
  void operator()(tt_markup* handle) const { tt_markup_free(handle); }
};

inline Failure failure(tt_status status) { return {status, tt_last_error()}; }

#if defined(__cpp_exceptions)
template <class T>
T value_of(Result<T> result) {
  if (!result) throw Error(result.error());
  return *std::move(result);
}
#endif

}  // namespace detail

// A phrase of a glossary in a line; see tt_term.
struct Term {
  std::string source, target;
  std::optional<std::string> translation;  // nullopt if the translation has none of its targets
};

// Source phrases with their target phrases; see tt_glossary_read. Several threads may use one.
class Glossary {
 public:
  // Reads a file.
  static Result<Glossary> try_read(const std::string& path, bool ignore_case = false) {
    tt_glossary* made = nullptr;
    const tt_status status = tt_glossary_read(path.c_str(), ignore_case ? 1 : 0, &made);
    return owned(status, made);
  }

  // Reads the content of a file. name: of the content in error messages.
  static Result<Glossary> try_parse(const std::string& content, bool ignore_case = false,
                                    const std::string& name = "the glossary") {
    tt_glossary* made = nullptr;
    const tt_text text = {content.data(), content.size()};
    const tt_status status = tt_glossary_parse(text, name.c_str(), ignore_case ? 1 : 0, &made);
    return owned(status, made);
  }

  // The terms of a line, looked for in its translation; see tt_glossary_terms.
  Result<std::vector<Term>> try_terms(const std::string& line,
                                      const std::string& translation) const {
    tt_terms* made = nullptr;
    const tt_status status = tt_glossary_terms(handle_.get(), {line.data(), line.size()},
                                               {translation.data(), translation.size()}, &made);
    const std::unique_ptr<tt_terms, detail::Free> terms(made);
    if (status != TT_OK) return detail::failure(status);
    std::vector<Term> found;
    for (std::size_t i = 0; i < tt_terms_size(made); ++i) {
      const tt_term term = tt_terms_term(made, i);
      Term& added = found.emplace_back();
      added.source.assign(term.source.data, term.source.size);
      added.target.assign(term.target.data, term.target.size);
      if (term.found != 0) added.translation.emplace(term.translation.data, term.translation.size);
    }
    return found;
  }

#if defined(__cpp_exceptions)

  // As above, but throw Error.
  static Glossary read(const std::string& path, bool ignore_case = false) {
    return detail::value_of(try_read(path, ignore_case));
  }
  static Glossary parse(const std::string& content, bool ignore_case = false,
                        const std::string& name = "the glossary") {
    return detail::value_of(try_parse(content, ignore_case, name));
  }
  std::vector<Term> terms(const std::string& line, const std::string& translation) const {
    return detail::value_of(try_terms(line, translation));
  }

#endif

  // Number of different source phrases.
  std::size_t size() const { return tt_glossary_size(handle_.get()); }

  // The C handle, which this object still owns.
  const tt_glossary* handle() const { return handle_.get(); }

 private:
  explicit Glossary(tt_glossary* handle) : handle_(handle) {}

  static Result<Glossary> owned(tt_status status, tt_glossary* made) {
    if (status != TT_OK) return detail::failure(status);
    return Glossary(made);
  }

  std::unique_ptr<tt_glossary, detail::Free> handle_;
};

// Options of a job; the fields are those of tt_submit_options.
struct SubmitOptions {
  std::optional<SearchOptions> search;  // nullopt: the bundle's defaults
  std::uint64_t caller = 0;
  std::optional<std::chrono::duration<double>> timeout;
  std::function<void()> finished;  // see tt_finished_function; must not throw
  bool score = false;              // the prefixes are whole translations to score
  // Phrases that the translation of each line must have, as text or as tokens; empty: none.
  std::vector<std::vector<std::string>> constraints;
  std::vector<std::vector<std::vector<std::int32_t>>> constraint_tokens;
  bool alignments = false;                // align the words of lines and translations
  double alignment_threshold = -1;        // see tt_submit_options
  std::vector<std::string> line_names;    // for error messages; empty: "line N of this call"
  bool words = false;                     // return the words of translations with their confidence
  bool translate_all = false;             // translate also lines without letters, and addresses
  const Glossary* terminology = nullptr;  // used by the call alone; see tt_submit_options
};

// A hypothesis of one segment of a line; see tt_result_... for the fields.
struct Hypothesis {
  std::vector<std::int32_t> tokens;
  double score = 0;
  std::vector<double> token_log_probs;
  bool truncated = false;
  bool looped = false;
  std::vector<std::vector<float>> attention;  // by row; empty unless return_attention
};

// A word of a line and a word of its translation, counted from 0.
struct WordPair {
  std::uint32_t source, target;
};

// A word of a translation with its confidence; see tt_word.
struct Word {
  std::string text;
  double log_prob = 0;
  double confidence = 0;
};

// A hypothesis of a line, with those of its segments.
struct TextHypothesis {
  std::string text;
  double score = 0;
  std::vector<Hypothesis> pieces;
  std::vector<WordPair> alignment;  // in ascending order; empty unless alignments
  std::vector<Word> words;          // in order; empty unless words
};

// The n best hypotheses of a line, best first; at least one.
struct Translation {
  std::vector<TextHypothesis> hypotheses;

  const std::string& text() const { return hypotheses.front().text; }
  double score() const { return hypotheses.front().score; }
};

namespace detail {

inline Hypothesis piece(const tt_result* result, std::size_t line, std::size_t rank,
                        std::size_t index) {
  Hypothesis found;
  const tt_tokens tokens = tt_result_tokens(result, line, rank, index);
  found.tokens.assign(tokens.data, tokens.data + tokens.size);
  found.score = tt_result_piece_score(result, line, rank, index);
  const tt_log_probs log_probs = tt_result_token_log_probs(result, line, rank, index);
  found.token_log_probs.assign(log_probs.data, log_probs.data + log_probs.size);
  found.truncated = tt_result_truncated(result, line, rank, index) != 0;
  found.looped = tt_result_looped(result, line, rank, index) != 0;
  const tt_attention attention = tt_result_attention(result, line, rank, index);
  for (std::size_t row = 0; row < attention.rows; ++row) {
    const float* begin = attention.data + row * attention.columns;
    found.attention.emplace_back(begin, begin + attention.columns);
  }
  return found;
}

inline std::vector<Translation> translations(const tt_result* result) {
  std::vector<Translation> found(tt_result_size(result));
  for (std::size_t line = 0; line < found.size(); ++line) {
    found[line].hypotheses.resize(tt_result_hypotheses(result, line));
    for (std::size_t rank = 0; rank < found[line].hypotheses.size(); ++rank) {
      TextHypothesis& hypothesis = found[line].hypotheses[rank];
      const tt_text text = tt_result_text(result, line, rank);
      hypothesis.text.assign(text.data, text.size);
      hypothesis.score = tt_result_score(result, line, rank);
      for (std::size_t i = 0; i < tt_result_pieces(result, line, rank); ++i) {
        hypothesis.pieces.push_back(piece(result, line, rank, i));
      }
      const tt_word_pairs pairs = tt_result_alignment(result, line, rank);
      for (std::size_t i = 0; i < pairs.size; ++i) {
        hypothesis.alignment.push_back({pairs.data[i].source, pairs.data[i].target});
      }
      for (std::size_t i = 0; i < tt_result_words(result, line, rank); ++i) {
        const tt_word word = tt_result_word(result, line, rank, i);
        hypothesis.words.push_back(
            {std::string(word.text.data, word.text.size), word.log_prob, word.confidence});
      }
    }
  }
  return found;
}

}  // namespace detail

// Lines that were submitted together. Destroying a job cancels it. Several threads may wait for a
// job at the same time.
class Job {
 public:
  // Whether the job has finished. Does not wait.
  bool finished() const { return tt_job_finished(handle_.get()) != 0; }

  // Waits until the job has finished.
  void wait() const { tt_job_wait(handle_.get(), -1, nullptr); }

  // Waits at most that long; returns whether the job has finished.
  bool wait_for(std::chrono::duration<double> time) const {
    std::int32_t finished = 0;
    tt_job_wait(handle_.get(), time.count() < 0 ? 0 : time.count(), &finished);
    return finished != 0;
  }

  // Cancels the job, which then fails with TT_CANCELLED; no effect on a finished job.
  void cancel() { tt_job_cancel(handle_.get()); }

  // Waits for the translations of all lines; they can be retrieved once.
  Result<std::vector<Translation>> try_get() {
    tt_result* made = nullptr;
    const tt_status status = tt_job_result(handle_.get(), &made);
    const std::unique_ptr<tt_result, detail::Free> result(made);
    if (status != TT_OK) return detail::failure(status);
    return detail::translations(result.get());
  }

#if defined(__cpp_exceptions)

  // As try_get, but throws Error.
  std::vector<Translation> get() { return detail::value_of(try_get()); }

#endif

  // The C handle, which this object still owns.
  tt_job* handle() const { return handle_.get(); }

 private:
  friend class Translator;
  using Finished = std::function<void()>;

  // No exception may pass through C. The context owns the callback, because a job may be destroyed
  // while a worker is about to call it.
  static void pass_on(void* context) noexcept {
    const std::unique_ptr<Finished> finished(static_cast<Finished*>(context));
    (*finished)();
  }

  explicit Job(tt_job* handle) : handle_(handle) {}

  std::unique_ptr<tt_job, detail::Free> handle_;
};

enum class Markup { html = TT_MARKUP_HTML, xml = TT_MARKUP_XML, text = TT_MARKUP_TEXT };

// Texts with markup: plain lines to translate, twice at most, and the texts with their tags. For
// callers that do not wait; others use Translator::translate_markup.
class MarkedTexts {
 public:
  // Takes the tags out of texts. whole: they are documents, see tt_markup_new.
  static Result<MarkedTexts> try_make(const std::vector<std::string>& texts, Markup markup,
                                      bool whole = false) {
    std::vector<tt_text> views;
    for (const std::string& text : texts) views.push_back({text.data(), text.size()});
    tt_markup* made = nullptr;
    const tt_status status =
        tt_markup_new(views.data(), views.size(), static_cast<int>(markup), whole ? 1 : 0, &made);
    if (status != TT_OK) return detail::failure(status);
    return MarkedTexts(made);
  }

  // The lines to translate next; none once all texts are translated.
  std::vector<std::string> lines() const {
    const tt_lines lines = tt_markup_lines(handle_.get());
    std::vector<std::string> found;
    for (std::size_t i = 0; i < lines.size; ++i) {
      found.emplace_back(lines.data[i].data, lines.data[i].size);
    }
    return found;
  }

  // Whether all texts are translated.
  bool complete() const { return tt_markup_lines(handle_.get()).size == 0; }

  // Waits for a job of the lines (Translator::submit_markup), and receives its translations.
  std::optional<Failure> try_receive(const Job& job) {
    tt_result* made = nullptr;
    tt_status status = tt_job_result(job.handle(), &made);
    const std::unique_ptr<tt_result, detail::Free> result(made);
    if (status == TT_OK) status = tt_markup_receive(handle_.get(), result.get());
    if (status != TT_OK) return detail::failure(status);
    return std::nullopt;
  }

  // The translations of the texts, with tags.
  Result<std::vector<Translation>> try_get() const {
    tt_result* made = nullptr;
    const tt_status status = tt_markup_result(handle_.get(), &made);
    const std::unique_ptr<tt_result, detail::Free> result(made);
    if (status != TT_OK) return detail::failure(status);
    return detail::translations(result.get());
  }

#if defined(__cpp_exceptions)

  // As try_make, but throws Error.
  explicit MarkedTexts(const std::vector<std::string>& texts, Markup markup, bool whole = false)
      : MarkedTexts(detail::value_of(try_make(texts, markup, whole))) {}

  // As try_receive, but throws Error.
  void receive(const Job& job) {
    if (const auto failure = try_receive(job)) throw Error(*failure);
  }

  // As try_get, but throws Error.
  std::vector<Translation> get() const { return detail::value_of(try_get()); }

#endif

  // The C handle, which this object still owns.
  const tt_markup* handle() const { return handle_.get(); }

 private:
  explicit MarkedTexts(tt_markup* handle) : handle_(handle) {}

  std::unique_ptr<tt_markup, detail::Free> handle_;
};

// A loaded bundle. Several threads may call const member functions at the same time.
class Translator {
 public:
  Translator(Translator&&) noexcept = default;
  ~Translator() = default;

  // First frees the translator that it holds, whose workers may call its log function until then.
  Translator& operator=(Translator&& other) noexcept {
    handle_ = std::move(other.handle_);
    log_ = std::move(other.log_);
    return *this;
  }

  // Verifies a bundle and loads one of its targets.
  static Result<Translator> try_load(const std::string& bundle, const LoadOptions& options = {}) {
    tt_load_options given = {};
    tt_load_options_default(&given, sizeof(given));
    given.target = text_or_null(options.target);
    given.shortlist = options.shortlist;
    given.threads = options.threads;
    given.workers = options.workers;
    given.batch_tokens = options.batch_tokens;
    given.device = text_or_null(options.device);
    given.check_hashes = options.check_hashes;
    given.onnxruntime = text_or_null(options.onnxruntime);
    given.kernels = text_or_null(options.kernels);
    given.batches = options.batches;
    given.capacity = options.capacity;
    given.provider = text_or_null(options.provider);
    given.cache_mib = options.cache_mib;
    auto log = std::make_unique<Log>(options.log);
    if (options.log) {
      given.log = &pass_on;
      given.log_context = log.get();
    }
    tt_translator* handle = nullptr;
    const tt_status status = tt_translator_load(bundle.c_str(), &given, &handle);
    if (status != TT_OK) return detail::failure(status);
    return Translator(handle, std::move(log));
  }

  // Translates lines and waits. options: nullopt takes the bundle's defaults. prefixes: empty, or
  // one prefix per line that its translation must begin with.
  Result<std::vector<Translation>> try_translate(
      const std::vector<std::string>& lines, const std::optional<SearchOptions>& options = {},
      const std::vector<std::string>& prefixes = {}) const {
    return call(tt_translate, views_of(lines), options, views_of(prefixes));
  }

  // Translates token ids without start and end symbols. In the result, each source is a line whose
  // hypotheses have one piece.
  Result<std::vector<Translation>> try_translate_ids(
      const std::vector<std::vector<std::int32_t>>& sources,
      const std::optional<SearchOptions>& options = {},
      const std::vector<std::vector<std::int32_t>>& prefixes = {}) const {
    return call(tt_translate_ids, views_of(sources), options, views_of(prefixes));
  }

  // Submits lines without waiting; errors in the input are returned at once. The job may outlive
  // the translator, whose destructor cancels it.
  Result<Job> try_submit(const std::vector<std::string>& lines, const SubmitOptions& options = {},
                         const std::vector<std::string>& prefixes = {}) const {
    return submit_texts(tt_submit, views_of(lines), options, views_of(prefixes));
  }

  Result<Job> try_submit_ids(const std::vector<std::vector<std::int32_t>>& sources,
                             const SubmitOptions& options = {},
                             const std::vector<std::vector<std::int32_t>>& prefixes = {}) const {
    return submit_texts(tt_submit_ids, views_of(sources), options, views_of(prefixes));
  }

  // Submits the next lines of texts with markup without waiting. Needs a bundle exported with
  // --attention. options: without constraints, names, score, alignments and words.
  Result<Job> try_submit_markup(const MarkedTexts& texts, const SubmitOptions& options = {}) const {
    const tt_lines lines = tt_markup_lines(texts.handle());
    const std::vector<tt_text> views(lines.data, lines.data + lines.size);
    return submit_texts(tt_submit, views, options, {}, texts.handle());
  }

  // Translates texts with markup and waits: their tags return at the words that they belong to.
  // whole: texts are documents, see tt_markup_new. options: as for try_submit_markup, without
  // `finished`; the timeout is that of the call.
  Result<std::vector<Translation>> try_translate_markup(const std::vector<std::string>& texts,
                                                        Markup markup, bool whole = false,
                                                        SubmitOptions options = {}) const {
    if (options.finished) {
      return Failure{TT_OPTION_ERROR, "finished is of a job, and this call waits; leave it out."};
    }
    auto marked = MarkedTexts::try_make(texts, markup, whole);
    if (!marked) return marked.error();
    const auto begin = std::chrono::steady_clock::now();
    const auto timeout = options.timeout;
    while (!marked->complete()) {
      if (timeout) {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
        options.timeout = std::max(*timeout - passed, std::chrono::duration<double>(0));
      }
      const auto job = try_submit_markup(*marked, options);
      if (!job) return job.error();
      if (const auto failure = marked->try_receive(*job)) return *failure;
    }
    return marked->try_get();
  }

  // Current load and totals.
  tt_statistics statistics() const {
    tt_statistics found = {};
    tt_translator_statistics(handle_.get(), &found, sizeof(found));
    return found;
  }

#if defined(__cpp_exceptions)

  // As try_load, but throws Error.
  explicit Translator(const std::string& bundle, const LoadOptions& options = {})
      : Translator(detail::value_of(try_load(bundle, options))) {}

  // As try_translate, but throws Error.
  std::vector<Translation> translate(const std::vector<std::string>& lines,
                                     const std::optional<SearchOptions>& options = {},
                                     const std::vector<std::string>& prefixes = {}) const {
    return detail::value_of(try_translate(lines, options, prefixes));
  }

  // As try_translate_ids, but throws Error.
  std::vector<Translation> translate_ids(
      const std::vector<std::vector<std::int32_t>>& sources,
      const std::optional<SearchOptions>& options = {},
      const std::vector<std::vector<std::int32_t>>& prefixes = {}) const {
    return detail::value_of(try_translate_ids(sources, options, prefixes));
  }

  // As try_submit_markup, but throws Error.
  Job submit_markup(const MarkedTexts& texts, const SubmitOptions& options = {}) const {
    return detail::value_of(try_submit_markup(texts, options));
  }

  // As try_translate_markup, but throws Error.
  std::vector<Translation> translate_markup(const std::vector<std::string>& texts, Markup markup,
                                            bool whole = false,
                                            const SubmitOptions& options = {}) const {
    return detail::value_of(try_translate_markup(texts, markup, whole, options));
  }

  // As try_submit, but throws Error.
  Job submit(const std::vector<std::string>& lines, const SubmitOptions& options = {},
             const std::vector<std::string>& prefixes = {}) const {
    return detail::value_of(try_submit(lines, options, prefixes));
  }

  // As try_submit_ids, but throws Error.
  Job submit_ids(const std::vector<std::vector<std::int32_t>>& sources,
                 const SubmitOptions& options = {},
                 const std::vector<std::vector<std::int32_t>>& prefixes = {}) const {
    return detail::value_of(try_submit_ids(sources, options, prefixes));
  }

#endif

  // The bundle's default options.
  SearchOptions default_options() const {
    tt_options options = {};
    tt_options_default(&options, sizeof(options));
    tt_translator_options(handle_.get(), &options, sizeof(options));
    return SearchOptions(options);
  }

  // Languages that options accept as source and target.
  std::vector<std::string> source_languages() const {
    return languages(tt_translator_source_languages, tt_translator_source_language);
  }
  std::vector<std::string> target_languages() const {
    return languages(tt_translator_target_languages, tt_translator_target_language);
  }

  // Whether the confidence of words is calibrated; see tt_translator_calibrated.
  Result<bool> try_calibrated() const {
    std::int32_t calibrated = 0;
    const tt_status status = tt_translator_calibrated(handle_.get(), &calibrated);
    if (status != TT_OK) return detail::failure(status);
    return calibrated != 0;
  }

#if defined(__cpp_exceptions)

  // As try_calibrated, but throws Error.
  bool calibrated() const { return detail::value_of(try_calibrated()); }

#endif

  std::string target() const { return tt_translator_target(handle_.get()); }
  int workers() const { return tt_translator_workers(handle_.get()); }
  std::int64_t batch_tokens() const { return tt_translator_batch_tokens(handle_.get()); }
  std::string kernels() const { return tt_translator_kernels(handle_.get()); }
  std::string onnxruntime() const { return tt_translator_onnxruntime(handle_.get()); }

  // The C handle, which this object still owns.
  const tt_translator* handle() const { return handle_.get(); }

 private:
  using Log = std::function<void(const std::string&)>;

  Translator(tt_translator* handle, std::unique_ptr<Log> log)
      : log_(std::move(log)), handle_(handle) {}

  static const char* text_or_null(const std::string& text) {
    return text.empty() ? nullptr : text.c_str();
  }

  // No exception may pass through C.
  static void pass_on(void* log, const char* message) noexcept {
    (*static_cast<Log*>(log))(message);
  }

  std::vector<std::string> languages(std::size_t (*count)(const tt_translator*),
                                     const char* (*at)(const tt_translator*, std::size_t)) const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count(handle_.get()); ++i) names.push_back(at(handle_.get(), i));
    return names;
  }

  template <class Source>
  Result<std::vector<Translation>> call(tt_status (*function)(const tt_translator*, const Source*,
                                                              std::size_t, const tt_options*,
                                                              const Source*, tt_result**),
                                        const std::vector<Source>& sources,
                                        const std::optional<SearchOptions>& options,
                                        const std::vector<Source>& prefixes) const {
    if (auto wrong = check_prefixes(sources.size(), prefixes.size())) return *wrong;
    tt_options given = {};
    if (options) given = options->to_c();
    tt_result* made = nullptr;
    const tt_status status =
        function(handle_.get(), sources.data(), sources.size(), options ? &given : nullptr,
                 prefixes.empty() ? nullptr : prefixes.data(), &made);
    const std::unique_ptr<tt_result, detail::Free> result(made);
    if (status != TT_OK) return detail::failure(status);
    return detail::translations(result.get());
  }

  template <class Source>
  Result<Job> submit_texts(tt_status (*function)(const tt_translator*, const Source*, std::size_t,
                                                 const tt_submit_options*, const Source*, tt_job**),
                           const std::vector<Source>& sources, const SubmitOptions& options,
                           const std::vector<Source>& prefixes,
                           const tt_markup* markup = nullptr) const {
    if (auto wrong = check_prefixes(sources.size(), prefixes.size())) return *wrong;
    for (const std::size_t lists : {options.constraints.size(), options.constraint_tokens.size()}) {
      if (auto wrong = check_count(sources.size(), lists, "lists of constraints")) return *wrong;
    }
    if (auto wrong = check_count(sources.size(), options.line_names.size(), "names")) {
      return *wrong;
    }
    tt_submit_options given = {};
    tt_submit_options_default(&given, sizeof(given));
    const std::vector<tt_text> names = views_of(options.line_names);
    if (!names.empty()) given.line_names = names.data();
    const std::vector<std::string> phrases = joined(options.constraints);
    const std::vector<tt_text> texts = views_of(phrases);
    if (!texts.empty()) given.constraints = texts.data();
    const std::vector<std::vector<std::int32_t>> flat = joined(options.constraint_tokens);
    const std::vector<tt_tokens> tokens = views_of(flat);
    if (!tokens.empty()) given.constraint_tokens = tokens.data();
    tt_options search = {};
    if (options.search) {
      search = options.search->to_c();
      given.options = &search;
    }
    given.caller = options.caller;
    given.score = options.score ? 1 : 0;
    given.alignments = options.alignments ? 1 : 0;
    given.alignment_threshold = options.alignment_threshold;
    given.words = options.words ? 1 : 0;
    given.translate_all = options.translate_all ? 1 : 0;
    if (options.terminology != nullptr) given.terminology = options.terminology->handle();
    given.markup = markup;
    // In C, 0 means "no timeout"; pass an explicit 0 as the shortest timeout.
    if (options.timeout) {
      given.timeout = options.timeout->count() == 0 ? 1e-9 : options.timeout->count();
    }
    std::unique_ptr<Job::Finished> finished;
    if (options.finished) {
      finished = std::make_unique<Job::Finished>(options.finished);
      given.finished = &Job::pass_on;
      given.finished_context = finished.get();
    }
    tt_job* made = nullptr;
    const tt_status status = function(handle_.get(), sources.data(), sources.size(), &given,
                                      prefixes.empty() ? nullptr : prefixes.data(), &made);
    if (status != TT_OK) return detail::failure(status);
    static_cast<void>(finished.release());  // owned, or already deleted, by the callback
    return Job(made);
  }

  static std::optional<Failure> check_prefixes(std::size_t sources, std::size_t prefixes) {
    return check_count(sources, prefixes, "target prefixes");
  }

  static std::optional<Failure> check_count(std::size_t sources, std::size_t count,
                                            const std::string& what) {
    if (count == 0 || count == sources) return std::nullopt;
    return Failure{TT_INPUT_ERROR, std::to_string(count) + " " + what + " for " +
                                       std::to_string(sources) + " sources."};
  }

  // The phrases of each line between tab characters, which are white space within a phrase.
  static std::vector<std::string> joined(const std::vector<std::vector<std::string>>& lines) {
    std::vector<std::string> texts;
    for (const auto& phrases : lines) {
      std::string& text = texts.emplace_back();
      for (std::string phrase : phrases) {
        for (char& character : phrase) character = character == '\t' ? ' ' : character;
        text += phrase + '\t';
      }
    }
    return texts;
  }

  // The tokens of each line's phrases, with a -1 after each phrase.
  static std::vector<std::vector<std::int32_t>> joined(
      const std::vector<std::vector<std::vector<std::int32_t>>>& lines) {
    std::vector<std::vector<std::int32_t>> lists;
    for (const auto& phrases : lines) {
      auto& list = lists.emplace_back();
      for (const auto& phrase : phrases) {
        list.insert(list.end(), phrase.begin(), phrase.end());
        list.push_back(-1);
      }
    }
    return lists;
  }

  static std::vector<tt_text> views_of(const std::vector<std::string>& texts) {
    std::vector<tt_text> views;
    for (const std::string& text : texts) views.push_back({text.data(), text.size()});
    return views;
  }

  static std::vector<tt_tokens> views_of(const std::vector<std::vector<std::int32_t>>& lists) {
    std::vector<tt_tokens> views;
    for (const auto& list : lists) views.push_back({list.data(), list.size()});
    return views;
  }

  std::unique_ptr<Log> log_;  // outlives handle_, which calls it until it is freed
  std::unique_ptr<tt_translator, detail::Free> handle_;
};

}  // namespace translate_trt

#endif  // TRANSLATE_TRT_HPP_
