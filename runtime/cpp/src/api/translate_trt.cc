// The C interface: converts exceptions to statuses and messages, and results to C arrays.

#include "translate_trt/translate_trt.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/calls.h"
#include "api/markup.h"
#include "api/result.h"
#include "base/errors.h"
#include "base/options.h"
#include "base/platform.h"
#include "base/utf8.h"
#include "core/translator.h"

#ifndef TRANSLATE_TRT_VERSION
#error "CMakeLists.txt defines the version"
#endif

using translate_trt::runtime::Additions;
using translate_trt::runtime::Clock;
using translate_trt::runtime::Constraints;
using translate_trt::runtime::Deadline;
using translate_trt::runtime::Forced;
using translate_trt::runtime::Glossary;
using translate_trt::runtime::guarded;
using translate_trt::runtime::Hypothesis;
using translate_trt::runtime::Job;
using translate_trt::runtime::Lines;
using translate_trt::runtime::require;
using translate_trt::runtime::SearchOptions;
using translate_trt::runtime::SourceNames;
using translate_trt::runtime::Split;
using translate_trt::runtime::TextHypothesis;
using translate_trt::runtime::texts;
using translate_trt::runtime::Tokens;
using translate_trt::runtime::Translation;
using translate_trt::runtime::Translator;

struct tt_translator {
  Translator translator;
  int process;  // id of the process that loaded it
};

struct tt_job {
  std::shared_ptr<Job> job;
  const Translator* translator;  // valid until the job has finished
  std::atomic<bool> is_taken = false;
  std::uint64_t round = 0;  // see tt_result
};

struct tt_completions {
  std::mutex mutex;
  std::condition_variable arrival;
  std::deque<void*> contexts;

  void push(void* context) {
    const std::lock_guard lock(mutex);
    contexts.push_back(context);
    // Under the lock: a waiting thread may free the queue as soon as it has seen the last job.
    arrival.notify_one();
  }
};

namespace {

using Splits = std::optional<std::vector<Split>>;

std::vector<Tokens> token_lists(const tt_tokens* given, std::size_t count, const char* name) {
  std::vector<Tokens> found;
  for (std::size_t i = 0; i < count; ++i) {
    require(given[i].data != nullptr || given[i].size == 0, name);
    found.emplace_back(given[i].data, given[i].data + given[i].size);
  }
  return found;
}

SearchOptions options_for(const Translator& translator, const tt_options* given) {
  return translate_trt::runtime::read_options(given, translator.default_options());
}

const char* text_at(const std::vector<std::string>& texts, std::size_t index) {
  return index < texts.size() ? texts[index].c_str() : "";
}

Forced forced_by(const tt_submit_options& options, bool has_targets, std::size_t count) {
  if (options.score == 0) return Forced::kPrefix;
  if (!has_targets && count > 0) {
    throw translate_trt::runtime::input_error(
        "score is 1, and no translations are given; pass them as the prefixes.");
  }
  return Forced::kTranslation;
}

// The phrases of each line, which end with -1.
Constraints phrase_lists(const tt_tokens* given, std::size_t count) {
  Constraints found;
  for (const Tokens& tokens : token_lists(given, count, "the list of constraints")) {
    auto& phrases = found.emplace_back();
    auto begin = tokens.begin();
    while (begin != tokens.end()) {
      const auto end = std::find(begin, tokens.end(), -1);
      if (end == tokens.end()) {
        throw translate_trt::runtime::input_error(
            "constraint_tokens of a line do not end with -1; write -1 after each phrase.");
      }
      phrases.emplace_back(begin, end);
      begin = end + 1;
    }
  }
  return found;
}

SourceNames names_of(const tt_submit_options& submitted, std::size_t count) {
  SourceNames names;
  if (submitted.first_line != 0) names.first = submitted.first_line;
  if (submitted.markup != nullptr) names.given = submitted.markup->names_of_lines();
  const tt_text* given = submitted.line_names;
  for (const auto name : texts(given, given == nullptr ? 0 : count, "the text of a name")) {
    names.given.emplace_back(name);
  }
  return names;
}

// The constraints of a job of `count` lines or token sequences.
Constraints constraints_of(const Translator& translator, const tt_submit_options& submitted,
                           std::size_t count) {
  const tt_text* lines = submitted.constraints;
  const tt_tokens* tokens = submitted.constraint_tokens;
  if (lines != nullptr && tokens != nullptr) {
    throw translate_trt::runtime::input_error(
        "constraints and constraint_tokens are both given; leave one of them out.");
  }
  if (tokens != nullptr) return phrase_lists(tokens, count);
  if (lines == nullptr) return {};
  return translator.jobs().encode_constraints(texts(lines, count, "the text of constraints"),
                                              names_of(submitted, count));
}

// Checks a job of the lines of texts with markup.
void check_markup(const tt_submit_options& submitted, const tt_text* lines, std::size_t count,
                  bool has_prefixes) {
  if (has_prefixes || submitted.prefix_tokens != nullptr || submitted.constraints != nullptr ||
      submitted.constraint_tokens != nullptr || submitted.score != 0 || submitted.alignments != 0 ||
      submitted.words != 0 || submitted.line_names != nullptr || submitted.segments != 0) {
    throw translate_trt::runtime::option_error(
        "prefixes, constraints, score, alignments, segments, words and line_names belong to lines, "
        "and the lines are of texts with markup; leave them out.");
  }
  const std::vector<tt_text>& wanted = submitted.markup->lines;
  const auto is_same = [](const tt_text& a, const tt_text& b) {
    return a.data != nullptr && a.size == b.size && std::equal(a.data, a.data + a.size, b.data);
  };
  if (std::equal(lines, lines + count, wanted.begin(), wanted.end(), is_same)) return;
  throw translate_trt::runtime::input_error(
      "the lines are not those that tt_markup_lines returns; pass all of them as they are.");
}

Splits splits_of(const tt_submit_options& submitted, std::size_t count) {
  if (submitted.splits == nullptr) return std::nullopt;
  std::vector<Split> found;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [parts, between, offsets, size] = submitted.splits[i];
    require(parts != nullptr || size == 0, "parts of a split");
    require(between != nullptr, "between of a split");
    Split& split = found.emplace_back();
    split.parts = texts(parts, size, "the text of a part");
    for (const auto text : texts(between, size + 1, "the text between parts")) {
      split.between.push_back(
          translate_trt::runtime::encode_utf8(translate_trt::runtime::decode_utf8(text)));
    }
    if (offsets != nullptr) split.offsets.assign(offsets, offsets + size);
  }
  return found;
}

std::shared_ptr<const Glossary> glossary_of(const tt_submit_options& submitted) {
  if (submitted.terminology != nullptr) return submitted.terminology->glossary;
  if (submitted.terms == 0) return nullptr;
  throw translate_trt::runtime::option_error("terms is 1, and no terminology is given.");
}

// Lines of text without their demands.
Lines lines_of(const tt_text* lines, std::size_t count, const tt_submit_options& submitted) {
  require(lines != nullptr || count == 0, "lines");
  Lines made = {texts(lines, count, "the text of a line")};
  Additions& additions = made.additions;
  additions.alignments = submitted.alignments != 0;
  additions.threshold = submitted.alignment_threshold;
  additions.words = submitted.words != 0;
  additions.aligned = submitted.segments != 0 || submitted.markup != nullptr;
  additions.terms = submitted.terms != 0;
  // A segment of a text with markup is translatable; its parts may not be.
  const bool is_segment = submitted.markup != nullptr && submitted.splits == nullptr;
  additions.translate_all = submitted.translate_all != 0 || is_segment;
  made.terminology = glossary_of(submitted);
  made.splits = splits_of(submitted, count);
  if (submitted.markup != nullptr) made.tagless = submitted.markup->marked.tagless();
  return made;
}

std::shared_ptr<Job> job_of(const Translator& translator, const tt_text* given, std::size_t count,
                            const SearchOptions& options, const tt_text* prefixes,
                            const tt_submit_options& submitted) {
  Lines lines = lines_of(given, count, submitted);
  const tt_tokens* tokens = submitted.prefix_tokens;
  if (submitted.markup != nullptr) check_markup(submitted, given, count, prefixes != nullptr);
  if (prefixes != nullptr && tokens != nullptr) {
    throw translate_trt::runtime::input_error(
        "prefixes and prefix_tokens are both given; leave one of them out.");
  }
  lines.demands.forced = forced_by(submitted, prefixes != nullptr || tokens != nullptr, count);
  lines.demands.targets =
      token_lists(tokens, tokens == nullptr ? 0 : count, "the list of a prefix");
  if (prefixes != nullptr) {
    const auto of_text = texts(prefixes, count, "the text of a prefix");
    lines.demands.targets = translator.jobs().encode_prefixes(of_text);
  }
  lines.demands.names = names_of(submitted, count);
  lines.demands.constraints = constraints_of(translator, submitted, count);
  return translator.job(lines, options);
}

std::shared_ptr<Job> job_of(const Translator& translator, const tt_tokens* sources,
                            std::size_t count, const SearchOptions& options,
                            const tt_tokens* prefixes, const tt_submit_options& submitted) {
  require(sources != nullptr || count == 0, "sources");
  if (submitted.alignments != 0 || submitted.segments != 0) {
    throw translate_trt::runtime::input_error(
        "alignments or segments is 1, and the sources are tokens, which have no words; submit "
        "their text.");
  }
  if (submitted.words != 0) {
    throw translate_trt::runtime::input_error(
        "words is 1, and the sources are tokens, whose translations have no text; submit their "
        "text.");
  }
  if (submitted.markup != nullptr) {
    throw translate_trt::runtime::input_error(
        "markup is given, and the sources are tokens, which have no tags; submit the lines.");
  }
  if (submitted.terminology != nullptr) {
    throw translate_trt::runtime::input_error(
        "terminology is given, and the sources are tokens, in which no phrases are found; submit "
        "their text.");
  }
  if (submitted.splits != nullptr) {
    throw translate_trt::runtime::input_error(
        "splits is given, and the sources are tokens; submit their text.");
  }
  return translator.job(
      token_lists(sources, count, "the list of a source"),
      {token_lists(prefixes, prefixes == nullptr ? 0 : count, "the list of a prefix"),
       forced_by(submitted, prefixes != nullptr, count),
       constraints_of(translator, submitted, count), names_of(submitted, count)},
      options);
}

// The end of a wait of that many seconds; none if the number is negative, or too large for the
// clock. Throws an input error if it is not a number.
Deadline after(double seconds) {
  constexpr double kLongest = 1e9;
  if (std::isnan(seconds)) throw translate_trt::runtime::input_error("seconds is not a number.");
  if (seconds < 0 || seconds >= kLongest) return std::nullopt;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

template <class Source>
tt_status translate(const tt_translator* translator, const Source* sources, std::size_t count,
                    const tt_options* options, const Source* prefixes, tt_result** result) {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    require(result != nullptr, "result");
    require(translator != nullptr, "translator");
    const Translator& here = translator->translator;
    const auto job = job_of(here, sources, count, options_for(here, options), prefixes, {});
    here.service().submit(job);
    here.service().wait(job, std::nullopt);
    *result = new tt_result(std::move(job->translations()));
  });
}

template <class Source>
tt_status check(const tt_translator* translator, const Source* sources, std::size_t count,
                const tt_submit_options* options, const Source* prefixes) {
  return guarded([&] {
    require(translator != nullptr, "translator");
    const tt_submit_options given = translate_trt::runtime::complete(options);
    const Translator& here = translator->translator;
    job_of(here, sources, count, options_for(here, given.options), prefixes, given);
  });
}

template <class Source>
tt_status submit(const tt_translator* translator, const Source* sources, std::size_t count,
                 const tt_submit_options* options, const Source* prefixes, tt_job** job) {
  if (job != nullptr) *job = nullptr;
  return guarded([&] {
    require(job != nullptr, "job");
    require(translator != nullptr, "translator");
    const tt_submit_options given = translate_trt::runtime::complete(options);
    const Translator& here = translator->translator;
    auto made = std::make_unique<tt_job>();
    made->translator = &here;
    if (given.markup != nullptr) made->round = given.markup->round;
    made->job = job_of(here, sources, count, options_for(here, given.options), prefixes, given);
    if (given.timeout > 0) made->job->deadline = after(given.timeout);
    if (given.finished != nullptr || given.completions != nullptr) {
      made->job->on_finish = [given] {
        if (given.completions != nullptr) given.completions->push(given.finished_context);
        if (given.finished != nullptr) given.finished(given.finished_context);
      };
    }
    here.service().submit(made->job, given.caller);
    *job = made.release();
  });
}

}  // namespace

const char* tt_status_name(tt_status status) {
  static const char* const names[] = {"TT_OK",
                                      "TT_INPUT_ERROR",
                                      "TT_OPTION_ERROR",
                                      "TT_BUNDLE_ERROR",
                                      "TT_BACKEND_ERROR",
                                      "TT_MEMORY_ERROR",
                                      "TT_INTERNAL_ERROR",
                                      "TT_CANCELLED",
                                      "TT_DEADLINE_EXCEEDED",
                                      "TT_CAPACITY_EXCEEDED",
                                      "TT_FORKED"};
  return status >= TT_OK && status <= TT_FORKED ? names[status] : "unknown status";
}

const char* tt_version(void) { return TRANSLATE_TRT_VERSION; }

tt_status tt_options_default(tt_options* options, size_t struct_size) {
  return guarded([&] { translate_trt::runtime::write_options({}, options, struct_size); });
}

tt_status tt_load_options_default(tt_load_options* options, size_t struct_size) {
  return guarded([&] { translate_trt::runtime::write_default(options, struct_size); });
}

tt_status tt_submit_options_default(tt_submit_options* options, size_t struct_size) {
  return guarded([&] { translate_trt::runtime::write_default(options, struct_size); });
}

tt_status tt_translator_load(const char* bundle, const tt_load_options* options,
                             tt_translator** translator) {
  if (translator != nullptr) *translator = nullptr;
  return guarded([&] {
    require(translator != nullptr, "translator");
    require(bundle != nullptr, "bundle");
    *translator = new tt_translator{
        Translator(std::filesystem::u8path(bundle), translate_trt::runtime::complete(options)),
        translate_trt::runtime::process_id()};
  });
}

void tt_translator_free(tt_translator* translator) {
  // A forked process does not have the worker threads that the destructor waits for.
  if (translator != nullptr && translator->process == translate_trt::runtime::process_id())
    delete translator;
}

tt_status tt_translator_options(const tt_translator* translator, tt_options* options,
                                size_t struct_size) {
  return guarded([&] {
    require(translator != nullptr, "translator");
    translate_trt::runtime::write_options(translator->translator.default_options(), options,
                                          struct_size);
  });
}

tt_status tt_translator_statistics(const tt_translator* translator, tt_statistics* statistics,
                                   size_t struct_size) {
  return guarded([&] {
    require(translator != nullptr, "translator");
    const auto found = translator->translator.service().statistics();
    const tt_statistics here = {sizeof(tt_statistics), found.pending,       found.running,
                                found.sentences,       found.source_tokens, found.target_tokens,
                                found.steps,           found.rows,          found.worker_seconds,
                                found.graph_seconds,   found.repeated};
    translate_trt::runtime::write_statistics(here, statistics, struct_size);
  });
}

tt_status tt_bundle_engine_memory(const char* bundle, const char* target, tt_engine_memory* memory,
                                  size_t struct_size) {
  return guarded([&] {
    require(bundle != nullptr, "bundle");
    std::optional<std::string> name;
    if (target != nullptr) name = target;
    const tt_engine_memory found =
        translate_trt::runtime::engine_memory(std::filesystem::u8path(bundle), name);
    translate_trt::runtime::write_memory(found, memory, struct_size);
  });
}

const char* tt_translator_target(const tt_translator* translator) {
  return translator == nullptr ? "" : translator->translator.target().c_str();
}

tt_status tt_translator_calibrated(const tt_translator* translator, int32_t* calibrated) {
  return guarded([&] {
    require(translator != nullptr, "translator");
    require(calibrated != nullptr, "calibrated");
    *calibrated = translator->translator.calibrated() ? 1 : 0;
  });
}

int32_t tt_translator_workers(const tt_translator* translator) {
  return translator == nullptr ? 0 : translator->translator.workers();
}

int64_t tt_translator_batch_tokens(const tt_translator* translator) {
  return translator == nullptr ? 0 : translator->translator.batch_tokens();
}

const char* tt_translator_kernels(const tt_translator* translator) {
  return translator == nullptr ? "" : translator->translator.kernels().c_str();
}

const char* tt_translator_onnxruntime(const tt_translator* translator) {
  return translator == nullptr ? "" : translator->translator.onnxruntime().c_str();
}

size_t tt_translator_source_languages(const tt_translator* translator) {
  return translator == nullptr ? 0 : translator->translator.source_languages().size();
}

const char* tt_translator_source_language(const tt_translator* translator, size_t index) {
  return translator == nullptr ? "" : text_at(translator->translator.source_languages(), index);
}

size_t tt_translator_target_languages(const tt_translator* translator) {
  return translator == nullptr ? 0 : translator->translator.target_languages().size();
}

const char* tt_translator_target_language(const tt_translator* translator, size_t index) {
  return translator == nullptr ? "" : text_at(translator->translator.target_languages(), index);
}

tt_status tt_translate(const tt_translator* translator, const tt_text* lines, size_t count,
                       const tt_options* options, const tt_text* prefixes, tt_result** result) {
  return translate(translator, lines, count, options, prefixes, result);
}

tt_status tt_translate_ids(const tt_translator* translator, const tt_tokens* sources, size_t count,
                           const tt_options* options, const tt_tokens* prefixes,
                           tt_result** result) {
  return translate(translator, sources, count, options, prefixes, result);
}

tt_status tt_submit(const tt_translator* translator, const tt_text* lines, size_t count,
                    const tt_submit_options* options, const tt_text* prefixes, tt_job** job) {
  return submit(translator, lines, count, options, prefixes, job);
}

tt_status tt_submit_ids(const tt_translator* translator, const tt_tokens* sources, size_t count,
                        const tt_submit_options* options, const tt_tokens* prefixes, tt_job** job) {
  return submit(translator, sources, count, options, prefixes, job);
}

tt_status tt_check(const tt_translator* translator, const tt_text* lines, size_t count,
                   const tt_submit_options* options, const tt_text* prefixes) {
  return check(translator, lines, count, options, prefixes);
}

tt_status tt_check_ids(const tt_translator* translator, const tt_tokens* sources, size_t count,
                       const tt_submit_options* options, const tt_tokens* prefixes) {
  return check(translator, sources, count, options, prefixes);
}

tt_status tt_bundle_check(const char* bundle, const char* target,
                          const tt_submit_options* options) {
  return guarded([&] {
    require(bundle != nullptr, "bundle");
    std::optional<std::string> name;
    if (target != nullptr) name = target;
    const tt_submit_options given = translate_trt::runtime::complete(options);
    translate_trt::runtime::check_for_bundle(std::filesystem::u8path(bundle), name,
                                             lines_of(nullptr, 0, given), given.options);
  });
}

tt_status tt_translator_words(const tt_translator* translator, const tt_tokens* pieces,
                              const tt_log_probs* log_probs, size_t count, tt_result** result) {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    require(result != nullptr, "result");
    require(translator != nullptr, "translator");
    require((pieces != nullptr && log_probs != nullptr) || count == 0, "pieces or log_probs");
    std::vector<Hypothesis> given;
    for (Tokens& tokens : token_lists(pieces, count, "the list of a piece")) {
      const tt_log_probs& values = log_probs[given.size()];
      require(values.data != nullptr || values.size == 0, "the log-probabilities of a piece");
      Hypothesis& piece = given.emplace_back();
      piece.tokens = std::move(tokens);
      piece.token_log_probs.assign(values.data, values.data + values.size);
    }
    TextHypothesis found;
    found.words = translator->translator.jobs().words(given);
    *result = new tt_result({Translation{{std::move(found)}}});
  });
}

tt_status tt_completions_new(tt_completions** completions) {
  if (completions != nullptr) *completions = nullptr;
  return guarded([&] {
    require(completions != nullptr, "completions");
    *completions = new tt_completions();
  });
}

tt_status tt_completions_wait(tt_completions* completions, double seconds, void** contexts,
                              size_t capacity, size_t* count) {
  return guarded([&] {
    require(completions != nullptr, "completions");
    require(contexts != nullptr && count != nullptr, "contexts or count");
    const Deadline until = after(seconds);
    auto& waiting = completions->contexts;
    std::unique_lock lock(completions->mutex);
    const auto is_any = [&] { return !waiting.empty(); };
    if (until) {
      completions->arrival.wait_until(lock, *until, is_any);
    } else {
      completions->arrival.wait(lock, is_any);
    }
    *count = std::min(capacity, waiting.size());
    std::copy_n(waiting.begin(), *count, contexts);
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(*count));
  });
}

tt_status tt_completions_add(tt_completions* completions, void* context) {
  return guarded([&] {
    require(completions != nullptr, "completions");
    completions->push(context);
  });
}

void tt_completions_free(tt_completions* completions) { delete completions; }

int32_t tt_job_finished(const tt_job* job) {
  int32_t finished = 0;
  return tt_job_wait(job, 0, &finished) == TT_OK ? finished : 0;
}

tt_status tt_job_wait(const tt_job* job, double seconds, int32_t* finished) {
  return guarded([&] {
    require(job != nullptr, "job");
    const Deadline until = after(seconds);
    const bool found = job->job->is_finished() || job->translator->service().wait(job->job, until);
    if (finished != nullptr) *finished = found;
  });
}

tt_status tt_job_cancel(tt_job* job) {
  return guarded([&] {
    require(job != nullptr, "job");
    if (!job->job->is_finished()) job->translator->service().cancel(job->job);
  });
}

tt_status tt_job_result(tt_job* job, tt_result** result) {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    require(result != nullptr, "result");
    require(job != nullptr, "job");
    if (!job->job->is_finished()) job->translator->service().wait(job->job, std::nullopt);
    std::vector<Translation>& translations = job->job->translations();
    if (job->is_taken.exchange(true)) {
      throw translate_trt::runtime::input_error("the job's result was handed over before.");
    }
    *result = new tt_result(std::move(translations));
    (*result)->round = job->round;
  });
}

void tt_job_free(tt_job* job) {
  if (job == nullptr) return;
  if (tt_job_cancel(job) != TT_FORKED) delete job;
}
