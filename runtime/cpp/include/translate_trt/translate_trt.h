/* libtranslate_trt: load a bundle and translate with it, from C (docs/embed-cpp.md).
 *
 * Ownership: a handle is opaque and belongs to the caller until the caller passes it to the `_free`
 * function of its type. Strings and arrays that a function returns belong to the handle that it was
 * called with, and are valid until that handle is freed. Arguments are copied where the library
 * keeps them, so the caller may free them when the function returns.
 *
 * Errors: every function that can fail returns a `tt_status`. On failure it has changed nothing:
 * the outputs keep their values, except output handles, which become NULL, and tt_last_error()
 * describes the failure. The comment of a function lists the statuses that are specific to it. No
 * C++ exception leaves the library.
 *
 * Options: a structure of options starts with its own size, so later versions can add fields. Fill
 * it with its `_default` function, then set the fields that should differ.
 *
 * Threads: any number of threads may call functions that take a `const` handle at the same time.
 * Only one thread may call a `_free` function, after all other threads have stopped using the
 * handle. Functions that follow other rules say so.
 *
 * Processes: after a fork, a bundle that was loaded before it can be used by either the parent or
 * the child, whichever translates first; the child needs threads = 1. In the other process,
 * functions fail with TT_FORKED and handles are not freed.
 */
#ifndef TRANSLATE_TRT_H_
#define TRANSLATE_TRT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(TRANSLATE_TRT_BUILD)
#define TT_API __declspec(dllexport)
#elif defined(__GNUC__) && !defined(_WIN32)
#define TT_API __attribute__((visibility("default")))
#else
#define TT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

typedef int32_t tt_status;

enum {
  TT_OK = 0,
  TT_INPUT_ERROR = 1,       /* text or tokens that cannot be translated as they are */
  TT_OPTION_ERROR = 2,      /* an option out of range, or one the bundle was not compiled for */
  TT_BUNDLE_ERROR = 3,      /* a bundle that is missing, incomplete, changed or of another format */
  TT_BACKEND_ERROR = 4,     /* ONNX Runtime, kernels or engines failed to load or to run */
  TT_MEMORY_ERROR = 5,      /* the host is out of memory */
  TT_INTERNAL_ERROR = 6,    /* a bug in this library: please report its message */
  TT_CANCELLED = 7,         /* tt_job_cancel, tt_job_free or tt_translator_free ended the job */
  TT_DEADLINE_EXCEEDED = 8, /* the job's timeout passed before the job finished */
  TT_CAPACITY_EXCEEDED = 9, /* `capacity` sentences are pending or running: retry later */
  TT_FORKED = 10 /* the translator is in use by the process that this one was forked from */
};

/* Returns the name of a status, such as "TT_BUNDLE_ERROR", or "unknown status". Thread-safe. */
TT_API const char* tt_status_name(tt_status status);

/* Returns the message of the calling thread's last failure in UTF-8, or "" before the first
 * failure. The message says what was wrong, where, and what to do about it. It is valid until the
 * next failure in this thread. Thread-safe. */
TT_API const char* tt_last_error(void);

/* Returns the version of the library, such as "0.1.0". Thread-safe. */
TT_API const char* tt_version(void);

/* ---- input ---- */

/* A UTF-8 string with an explicit size; it need not be null-terminated. Invalid UTF-8 is read as
 * U+FFFD. */
typedef struct tt_text {
  const char* data; /* may be NULL if size is 0 */
  size_t size;      /* bytes */
} tt_text;

/* Token ids, without start and end symbols. */
typedef struct tt_tokens {
  const int32_t* data; /* may be NULL if size is 0 */
  size_t size;         /* tokens */
} tt_tokens;

/* Length penalty of a hypothesis of n tokens: ((5 + n) / 6) ** alpha, or n ** alpha. */
enum { TT_LENGTH_PENALTY_GNMT = 0, TT_LENGTH_PENALTY_LENGTH = 1 };

/* Search options: the fields of Python's SearchOptions, in the same order (docs/beam-search.md).
 * Flags are 0 or 1. max_length is unset if it is 0, and a string if it is NULL; strings are UTF-8,
 * and copied by the function that takes the options. */
typedef struct tt_options {
  size_t struct_size;
  /* ---- fields, made by scripts/declare.py ---- */
  /* Live hypotheses per sentence; 1 is greedy search. */
  int32_t beam_size;
  /* Alpha of the length penalty; 0 favours short output. */
  double length_penalty;
  /* Form of the length penalty: gnmt is ((5 + n) / 6) ** alpha, as in the paper; length is n **
   * alpha. TT_LENGTH_PENALTY_GNMT TT_LENGTH_PENALTY_LENGTH */
  int32_t length_penalty_form;
  /* Stop once beam_size hypotheses have finished, even if others may improve. */
  int32_t early_stopping;
  /* Longest translation in tokens, the end symbol included; unset: the length of the source +
   * max_extra_length. */
  int32_t max_length;
  /* Minimum length: the end symbol is not a candidate earlier. */
  int32_t min_length;
  /* Best hypotheses to return, at most beam_size. */
  int32_t num_hypotheses;
  /* Return the cross-attention of the layer and heads that the export chose. */
  int32_t return_attention;
  /* Language of the source, by the model's own code, such as en or eng_Latn; unset: the bundle's
   * default. */
  const char* source_language;
  /* Language to translate into, by the model's own code; unset: the bundle's default. */
  const char* target_language;
  /* End a translation that repeats one phrase without end, and keep the phrase once. */
  int32_t loop_guard;
  /* A translation for each of the n most likely tokens after the target prefix, the most likely
   * first; needs num_hypotheses 1. */
  int32_t alternatives;
  /* Leave out alternatives whose token is less likely, except the most likely one. */
  double min_alternative_prob;
  /* Factor from 1 to 1000 of the log-probabilities of tokens that the hypothesis has. */
  double repetition_penalty;
  /* No sequence of this many tokens occurs twice in a translation; 0: allowed. */
  int32_t no_repeat_ngram_size;
  /* Up to 256 sequences of token ids that no translation has: ids separated by spaces, sequences by
   * commas, such as 12 40, 7. */
  const char* suppress_sequences;
  /* No translation has the unknown symbol. */
  int32_t disable_unk;
  /* Draw each token from the k most likely ones, up to 1024; 1: take the best, 0: draw from the
   * whole vocabulary; needs beam_size 1 and no alternatives. */
  int32_t sampling_top_k;
  /* Of these, draw from the fewest that have this share of the probability. */
  double sampling_top_p;
  /* Divides log-probabilities before drawing; less than 1 favours likely tokens. */
  double sampling_temperature;
  /* Another seed draws another translation of the same source; the same seed repeats one in any
   * batch, order and shard. */
  int32_t seed;
  /* Where max_length is unset: tokens beyond the length of the source. */
  int32_t max_extra_length;
  /* ---- end ---- */
} tt_options;

/* Sets the first `struct_size` bytes of the options to their defaults. Pass sizeof(tt_options), so
 * that the library knows which version of the header the caller was compiled with. Thread-safe.
 *
 * TT_OPTION_ERROR: options is NULL, or this library does not know a structure of that size. */
TT_API tt_status tt_options_default(tt_options* options, size_t struct_size);

/* Receives messages that are not errors, such as the name of the compiled kernels in use: one line
 * of UTF-8 without a line break. Any thread may call it, and several threads may call it at the
 * same time. */
typedef void (*tt_log_function)(void* context, const char* message);

/* Load options: the arguments of Python's Translator, and the paths of libraries. */
typedef struct tt_load_options {
  size_t struct_size;
  const char* target;   /* such as "onnx-int8"; NULL: the first target of the manifest */
  int32_t shortlist;    /* 1: the variant of the target that uses a shortlist */
  int32_t threads;      /* compute threads per worker; 0: the available cores divided by workers.
                           More threads than cores are reduced to the cores, and logged */
  int32_t workers;      /* batches that run at the same time, each in its own thread. All workers
                           share one copy of the weights, and all calls and jobs share them. 0:
                           1; 2 on GPUs, whose batches need device memory of their own */
  int32_t batch_tokens; /* source tokens per batch, padding included. 0: 512; for engines, batch x
                           source_length of their largest profile; 4096 for other GPU targets */
  const char* device;   /* "cpu"; "cuda" or "cuda:1"; "tensorrt-rtx" or "tensorrt-rtx:1". NULL:
                           "cpu", or the first GPU for engines that the library itself loads */
  int32_t check_hashes; /* 1: compare the SHA-256 of every file with the manifest */
  const char* onnxruntime; /* path of ONNX Runtime's library, for graphs with operators
                              that have no kernel; NULL: $TRANSLATE_TRT_ONNXRUNTIME, or
                              libonnxruntime.so.1 on the system's library path; on Windows
                              onnxruntime.dll */
  const char* kernels;     /* path of the compiled kernels' library, or "none"; NULL:
                              $TRANSLATE_TRT_KERNELS, or the library beside this one, if any */
  tt_log_function log;     /* NULL: no logging */
  void* log_context;       /* passed to log */
  int32_t batches;  /* batches per worker, which take turns step by step. Sentences that cannot
                       share a batch (different beam sizes, very different lengths, a caller
                       with many more sentences) run in different ones. 0: 4; 2 for engines,
                       where each batch reserves device memory for the largest profile */
  int32_t capacity; /* number of pending and running sentences (lines, or segments of long
                       lines) at which calls and jobs are refused; 0: no limit */
  /* Functions that run TensorRT engines (translate_trt/device.h). NULL: the library loads the
   * engines itself, if it was built with TensorRT. */
  const struct tt_engines* engines;
  /* Path of the library of ONNX Runtime's plugin provider for "tensorrt-rtx"; NULL:
   * $TRANSLATE_TRT_RTX_PROVIDER. */
  const char* provider;
  /* Memory in MiB for results of earlier sentences, which later ones that are equal, in text and
   * options, have at once; 0: none are kept. Equal sentences of one call or job are translated
   * once in any case. */
  int32_t cache_mib;
} tt_load_options;

/* Sets the defaults, as tt_options_default does. */
TT_API tt_status tt_load_options_default(tt_load_options* options, size_t struct_size);

/* ---- translator: a loaded bundle ---- */

typedef struct tt_translator tt_translator;

/* Verifies a bundle and loads one of its targets. Thread-safe.
 *
 * bundle: path of the bundle's directory.
 * options: NULL takes the defaults.
 * translator: set to a new handle, to be freed by tt_translator_free, or to NULL on failure.
 *
 * Fails with TT_BUNDLE_ERROR, TT_BACKEND_ERROR, TT_OPTION_ERROR or TT_MEMORY_ERROR. */
TT_API tt_status tt_translator_load(const char* bundle, const tt_load_options* options,
                                    tt_translator** translator);

/* Frees a translator and cancels its unfinished jobs; NULL is allowed. No other thread may use the
 * handle any more. Results stay valid. */
TT_API void tt_translator_free(tt_translator* translator);

/* Copies the bundle's default search options into the first `struct_size` bytes. The language
 * strings belong to the translator; NULL means that the bundle has no default.
 *
 * TT_OPTION_ERROR: as for tt_options_default. */
TT_API tt_status tt_translator_options(const tt_translator* translator, tt_options* options,
                                       size_t struct_size);

/* Returns the name of the loaded target, such as "onnx-int8". */
TT_API const char* tt_translator_target(const tt_translator* translator);

/* Sets `calibrated` to 1 if the confidence of words is calibrated for the target (`translate-trt
 * calibrate`), and to 0 if it is the model's own probability.
 *
 * TT_BUNDLE_ERROR: the calibration is damaged. */
TT_API tt_status tt_translator_calibrated(const tt_translator* translator, int32_t* calibrated);

/* Returns the number of workers in use: that of tt_load_options, limited by the cores, or its
 * default. */
TT_API int32_t tt_translator_workers(const tt_translator* translator);

/* Returns the source tokens per batch in use: those of tt_load_options, or their default. */
TT_API int64_t tt_translator_batch_tokens(const tt_translator* translator);

/* Returns the compiled kernels in use, such as "avx512_vnni", or "" without kernels. */
TT_API const char* tt_translator_kernels(const tt_translator* translator);

/* Returns the version of ONNX Runtime, such as "1.31.1", or "" if the target does not run on it. */
TT_API const char* tt_translator_onnxruntime(const tt_translator* translator);

/* Return the number of languages that tt_options accepts as source or target: every language of a
 * multilingual model, the single language of any other model, or 0 if the bundle does not name it.
 */
TT_API size_t tt_translator_source_languages(const tt_translator* translator);
TT_API size_t tt_translator_target_languages(const tt_translator* translator);

/* Return one language by its index in alphabetical order, or "" if the index is out of range. */
TT_API const char* tt_translator_source_language(const tt_translator* translator, size_t index);
TT_API const char* tt_translator_target_language(const tt_translator* translator, size_t index);

/* Current load and totals of a translator. Each segment of a long line, and each search for
 * alternatives, counts as a sentence. */
typedef struct tt_statistics {
  size_t struct_size;
  uint64_t pending;       /* sentences waiting for a batch */
  uint64_t running;       /* sentences in batches */
  uint64_t sentences;     /* sentences translated */
  uint64_t source_tokens; /* source tokens of the translated sentences */
  uint64_t target_tokens; /* tokens of their best hypotheses */
  uint64_t steps;         /* decoding steps of all batches */
  uint64_t rows;          /* batch rows of those steps: a step with n sentences counts n */
  double worker_seconds;  /* CPU time of the worker threads, without the threads that share
                             the work of operators */
  double graph_seconds;   /* the part of worker_seconds spent inside the encoder and step graphs */
  uint64_t repeated;      /* translated sentences that had the result of an equal one */
} tt_statistics;

/* Sets the first `struct_size` bytes of the statistics.
 *
 * TT_OPTION_ERROR: as for tt_options_default. TT_FORKED. */
TT_API tt_status tt_translator_statistics(const tt_translator* translator,
                                          tt_statistics* statistics, size_t struct_size);

/* Memory that batches of an engine target need, in addition to the engines and their scratch
 * memory. A stream context holds the buffers of one batch, for the largest profile. */
typedef struct tt_engine_memory {
  size_t struct_size;
  uint64_t device_bytes; /* device memory of a stream context */
  uint64_t pinned_bytes; /* pinned host memory of a stream context */
  int32_t workers;       /* default of tt_load_options.workers */
  int32_t batches;       /* default of tt_load_options.batches: there are at least as many stream
                            contexts as workers, and at most workers x batches */
} tt_engine_memory;

/* Sets the first `struct_size` bytes of the memory that a target of a bundle needs. Needs no GPU.
 *
 * target: NULL takes the first target of the manifest.
 *
 * TT_BUNDLE_ERROR. TT_OPTION_ERROR: the target has no engines; or as for tt_options_default. */
TT_API tt_status tt_bundle_engine_memory(const char* bundle, const char* target,
                                         tt_engine_memory* memory, size_t struct_size);

/* ---- blocking translation ----
 *
 * All calls and jobs of a translator share batches: new sentences join running batches as soon as
 * those have capacity (continuous batching), and callers take turns. The result for a sentence does
 * not depend on the sentences that share its batch. */

typedef struct tt_result tt_result;

/* Translates lines of text and waits for the result.
 *
 * A line with more tokens than the bundle's limit is split into segments, at sentence boundaries
 * where possible, and the translations of the segments are joined. A blank line has an empty
 * translation. A line without letters, and one that is only a URL or an e-mail address, is its own
 * translation (tt_submit_options.translate_all).
 *
 * For a model whose sources begin with the target language (OPUS-MT), a line may name its own
 * target language, as in ">>deu<< A text."; it takes precedence over the options.
 *
 * options: NULL takes the bundle's defaults.
 * prefixes: NULL, or one text per line that its translation must begin with.
 * result: set to a new handle, to be freed by tt_result_free, or to NULL on failure.
 *
 * TT_INPUT_ERROR: lines is NULL and count is not 0. TT_OPTION_ERROR: also for a language that the
 * model does not know, or that it needs and was not given. TT_BACKEND_ERROR, TT_MEMORY_ERROR,
 * TT_CAPACITY_EXCEEDED, TT_FORKED. */
TT_API tt_status tt_translate(const tt_translator* translator, const tt_text* lines, size_t count,
                              const tt_options* options, const tt_text* prefixes,
                              tt_result** result);

/* Translates token sequences, each within the bundle's limits; otherwise like tt_translate.
 *
 * Sources and prefixes contain the tokens of the text alone: the library adds the tokens that name
 * languages. In the result, each source is a line, and each of its hypotheses has one piece. A
 * hypothesis begins with its language token if the model expects one there.
 *
 * TT_INPUT_ERROR: also for a token outside the vocabulary, or a source that is too long. */
TT_API tt_status tt_translate_ids(const tt_translator* translator, const tt_tokens* sources,
                                  size_t count, const tt_options* options,
                                  const tt_tokens* prefixes, tt_result** result);

/* ---- glossaries (docs/terminology.md) ---- */

/* Source phrases with their target phrases. Independent of any translator. */
typedef struct tt_glossary tt_glossary;

/* Read a glossary from a file, or from memory: lines of UTF-8 with a source phrase, a tab and its
 * target phrases, separated by tabs; lines that begin with # are comments.
 *
 * name: of the content in error messages; NULL: "the glossary".
 * ignore_case: 1: phrases match in any case, in lines and in translations.
 * glossary: set to a new handle, to be freed by tt_glossary_free, or to NULL on failure.
 *
 * TT_INPUT_ERROR: the file cannot be read or is compressed, a line is no entry, or there are no
 * entries. TT_OPTION_ERROR: ignore_case is neither 0 nor 1. TT_MEMORY_ERROR. */
TT_API tt_status tt_glossary_read(const char* path, int32_t ignore_case, tt_glossary** glossary);
TT_API tt_status tt_glossary_parse(tt_text content, const char* name, int32_t ignore_case,
                                   tt_glossary** glossary);

/* Makes a glossary of entries in memory.
 *
 * phrases: the phrases of all entries, one after another: the source phrase of an entry, then its
 * target phrases.
 * counts: number of phrases of each entry, at least 2.
 * size: number of entries, which may be 0.
 *
 * TT_INPUT_ERROR: a phrase is blank, or an entry has no target phrase. Otherwise as above. */
TT_API tt_status tt_glossary_new(const tt_text* phrases, const size_t* counts, size_t size,
                                 int32_t ignore_case, tt_glossary** glossary);

/* Frees a glossary; NULL is allowed. Its phrases in tt_term are valid until then. */
TT_API void tt_glossary_free(tt_glossary* glossary);

/* Returns the number of entries, each with another source phrase. */
TT_API size_t tt_glossary_size(const tt_glossary* glossary);

/* Return the number of phrases of an entry, and one of them, null-terminated: its source phrase
 * (0), or one of its target phrases. An index out of range returns 0 or an empty text. */
TT_API size_t tt_glossary_phrases(const tt_glossary* glossary, size_t entry);
TT_API tt_text tt_glossary_phrase(const tt_glossary* glossary, size_t entry, size_t index);

/* A phrase of a glossary in a line, looked for in the translation. The texts are
 * null-terminated. */
typedef struct tt_term {
  tt_text source;      /* the phrase as it stands in the line */
  tt_text target;      /* its first target phrase */
  tt_text translation; /* the target phrase that the translation has; empty if it has none */
  int32_t found;       /* 1 if it has one */
  uint32_t entry;      /* index of the entry in the glossary */
} tt_term;

/* A part of a text, in characters (code points). */
typedef struct tt_span {
  size_t begin, end;
} tt_span;

/* The terms of a line, in its order. */
typedef struct tt_terms tt_terms;

/* Finds the source phrases of a glossary in a line, and a target phrase of each in the translation,
 * each at a place of its own. Recall is the share of the terms that are found.
 *
 * line: text without the code of a target language that it may begin with.
 * translation: may be empty.
 * terms: set to a new handle, to be freed by tt_terms_free, or to NULL on failure.
 *
 * TT_INPUT_ERROR: an argument is NULL. TT_MEMORY_ERROR. */
TT_API tt_status tt_glossary_terms(const tt_glossary* glossary, tt_text line, tt_text translation,
                                   tt_terms** terms);

/* Annotates a line with target phrases, for a model that was trained so.
 *
 * translation: NULL annotates each source phrase with its first target phrase; otherwise, phrases
 * with the target phrase that this translation of the line has, as in training data.
 * appends: 1: the source phrase stays; 0: the target phrase replaces it.
 * symbols: three characters: before a phrase, between source and target, and after both.
 * terms: set to a new handle, whose tt_terms_annotated is the line.
 *
 * TT_INPUT_ERROR: an argument is NULL, or the symbols are not three. TT_MEMORY_ERROR. */
TT_API tt_status tt_glossary_annotate(const tt_glossary* glossary, tt_text line,
                                      const tt_text* translation, int32_t appends, tt_text symbols,
                                      tt_terms** terms);

/* Return the number of terms, and one of them; its texts are empty if the index is out of range. */
TT_API size_t tt_terms_size(const tt_terms* terms);
TT_API tt_term tt_terms_term(const tt_terms* terms, size_t index);

/* Returns where a term stands in the line. */
TT_API tt_span tt_terms_span(const tt_terms* terms, size_t index);

/* Returns the annotated line; "" unless tt_glossary_annotate made the terms. */
TT_API tt_text tt_terms_annotated(const tt_terms* terms);

/* Frees terms; NULL is allowed. */
TT_API void tt_terms_free(tt_terms* terms);

/* Sets `translatable` to 1 if a text has a letter and is no URL or e-mail address, and to 0
 * otherwise (tt_submit_options.translate_all).
 *
 * TT_INPUT_ERROR: an argument is NULL. TT_MEMORY_ERROR. */
TT_API tt_status tt_is_translatable(tt_text text, int32_t* translatable);

/* Texts with markup; see tt_markup_new. */
typedef struct tt_markup tt_markup;

/* ---- jobs: asynchronous translation ---- */

/* Lines that were submitted together. All functions of a job except tt_job_free may be called by
 * any number of threads at the same time. */
typedef struct tt_job tt_job;

/* Callback of a finished job, called once whether the job succeeded or failed. The thread that
 * finishes the job calls it: a worker; the thread that cancels the job, frees the job or its
 * translator, or waits past its deadline; or, for a job of blank lines, the thread that submits
 * it, before tt_submit returns. It must return quickly, because a worker translates nothing in the
 * meantime. It may call any function of this header except tt_translator_free and those that wait
 * for a job that has not finished, which its own thread may have to translate: tt_translate,
 * tt_translate_ids, tt_job_wait, tt_job_result. The capacity of the job's pending sentences is free
 * when it is called. */
typedef void (*tt_finished_function)(void* context);

/* A queue of finished jobs, for callers that cannot be called back from an arbitrary thread, such
 * as an event loop or another language. Thread-safe. */
typedef struct tt_completions tt_completions;

/* Creates a queue of completions.
 *
 * completions: set to a new handle, to be freed by tt_completions_free, or to NULL on failure.
 *
 * TT_MEMORY_ERROR. */
TT_API tt_status tt_completions_new(tt_completions** completions);

/* Waits until at least one job has finished, or until the time is over.
 *
 * seconds: maximum time to wait; negative: no limit.
 * contexts: array of `capacity` entries that receives the finished_context of finished jobs, in the
 * order in which they finished.
 * count: set to the number of contexts written; 0 if no job finished in time. */
TT_API tt_status tt_completions_wait(tt_completions* completions, double seconds, void** contexts,
                                     size_t capacity, size_t* count);

/* Appends a context to the queue, to wake up a thread in tt_completions_wait. */
TT_API tt_status tt_completions_add(tt_completions* completions, void* context);

/* Frees a queue; NULL is allowed. tt_completions_wait must have returned every job that was
 * submitted with the queue. */
TT_API void tt_completions_free(tt_completions* completions);

/* A line whose parts, such as its sentences, are translated one by one and joined. */
typedef struct tt_split {
  const tt_text* parts;   /* each with the language code that the line begins with, if any */
  const tt_text* between; /* size + 1 texts: before the first translation, between them, after */
  const int64_t* offsets; /* characters of the line before each part, minus those of the part's
                             language code; NULL: unknown, and parts are not aligned */
  size_t size;            /* number of parts; may be 0 */
} tt_split;

/* Options of a job. */
typedef struct tt_submit_options {
  size_t struct_size;
  const tt_options* options; /* NULL: the bundle's defaults */
  uint64_t caller; /* jobs with the same number, below 2^63, share one caller's turns; 0: the
                      job takes turns of its own */
  double timeout;  /* seconds from now until the job fails with TT_DEADLINE_EXCEEDED; 0: no
                      deadline */
  tt_finished_function finished;  /* NULL: no callback */
  void* finished_context;         /* passed to finished; must stay valid until then */
  tt_completions* completions;    /* queue that also receives finished_context; NULL: none */
  uint64_t first_line;            /* number of the first line in error messages; 0 means 1 */
  const tt_tokens* prefix_tokens; /* one prefix per line, as tokens instead of text; NULL: no
                                     prefixes, or prefixes as text */
  int32_t score; /* 1: the prefixes are whole translations, and the job scores them instead of
                    translating: its result has one hypothesis per line, the given one, with the
                    log-probability that the model gives each token and the end symbol. Beam size,
                    lengths and num_hypotheses have no effect. A line that would be split, and a
                    blank line with a translation, are input errors */
  const tt_text* constraints; /* phrases that each translation must have: one text per line, the
                                 phrases between tab characters, empty for none; NULL: no
                                 constraints. They need a beam size of at least 2, and a line that
                                 is not split */
  const tt_tokens* constraint_tokens; /* the same as tokens, with a -1 after each phrase; NULL: no
                                         constraints, or constraints as text */
  /* 1: align the words of each line with those of its translations (tt_result_alignment). Needs a
   * bundle exported with --attention; not for token sequences. */
  int32_t alignments;
  /* With alignments, from 0 to 1: align all pairs of words of at least this weight; negative: align
   * each word of the translation with the source word of the largest weight. */
  double alignment_threshold;
  const tt_text* line_names; /* one name per line for error messages, such as "sentence 3"; NULL:
                                "line N of this call", counted from first_line */
  int32_t words; /* 1: return the words of each translation with their confidence (tt_result_word);
                    not for token sequences */
  /* Glossary: each translation must have the first target phrase of every source phrase in its
   * line, as constraints, or as annotations of the line for a model that reads them; not for token
   * sequences. Each segment of a line that is split has the constraints of its own text. Only the
   * function that takes the options uses it. NULL: none */
  const tt_glossary* terminology;
  /* Texts with markup whose next lines are submitted (tt_markup_lines). The result keeps what
   * tt_markup_receive needs, and errors name the texts. Goes with neither prefixes, constraints,
   * score, alignments, words nor line_names; needs a bundle exported with --attention. Only the
   * function that takes the options uses it. NULL: none */
  const tt_markup* markup;
  /* 1: translate also lines without letters, and lines that are only a URL or an e-mail address;
   * 0: these are their own translations, unless they have a prefix, constraints or terms. */
  int32_t translate_all;
  /* One split per line; NULL: no line is split. The prefix of a line is that of its first part.
   * Goes with neither score, constraints nor alternatives, and belongs to lines of text. */
  const tt_split* splits;
  int32_t terms; /* 1: look up the terms of `terminology` in each translation (tt_result_term) */
  /* 1: return the attention between the tokens of each line and its translations
   * (tt_result_segments). Needs a bundle exported with --attention; not for token sequences. */
  int32_t segments;
} tt_submit_options;

/* Sets the defaults, as tt_options_default does. */
TT_API tt_status tt_submit_options_default(tt_submit_options* options, size_t struct_size);

/* Submit lines or token sequences without waiting; see tt_translate and tt_translate_ids. Errors in
 * the input or the options are returned at once, with the same statuses.
 *
 * options: NULL takes the defaults.
 * job: set to a new handle, to be freed by tt_job_free, or to NULL on failure; `finished` is not
 * called after a failure. */
TT_API tt_status tt_submit(const tt_translator* translator, const tt_text* lines, size_t count,
                           const tt_submit_options* options, const tt_text* prefixes, tt_job** job);
TT_API tt_status tt_submit_ids(const tt_translator* translator, const tt_tokens* sources,
                               size_t count, const tt_submit_options* options,
                               const tt_tokens* prefixes, tt_job** job);

/* Check lines or token sequences and options as tt_submit and tt_submit_ids do, and submit nothing.
 * No lines check the options alone. */
TT_API tt_status tt_check(const tt_translator* translator, const tt_text* lines, size_t count,
                          const tt_submit_options* options, const tt_text* prefixes);
TT_API tt_status tt_check_ids(const tt_translator* translator, const tt_tokens* sources,
                              size_t count, const tt_submit_options* options,
                              const tt_tokens* prefixes);

/* Checks options as tt_check does, for a target that is not loaded.
 *
 * target: NULL takes the first target of the manifest. */
TT_API tt_status tt_bundle_check(const char* bundle, const char* target,
                                 const tt_submit_options* options);

/* Returns 1 if the job has finished, and 0 otherwise, without waiting. */
TT_API int32_t tt_job_finished(const tt_job* job);

/* Waits until the job has finished, or until the time is over.
 *
 * seconds: maximum time to wait; negative: no limit.
 * finished: set to 1 if the job has finished and to 0 otherwise; may be NULL.
 *
 * TT_FORKED. */
TT_API tt_status tt_job_wait(const tt_job* job, double seconds, int32_t* finished);

/* Cancels a job, which then fails with TT_CANCELLED; has no effect on a finished job. Pending
 * sentences are removed from the queue; running sentences leave their batches before the next step.
 */
TT_API tt_status tt_job_cancel(tt_job* job);

/* Waits until the job has finished and returns its translations. They can be retrieved once.
 *
 * result: set to a new handle, to be freed by tt_result_free, or to NULL on failure.
 *
 * Fails with the job's own error: TT_BACKEND_ERROR, TT_CANCELLED, TT_DEADLINE_EXCEEDED or
 * TT_MEMORY_ERROR. TT_INPUT_ERROR: the translations were retrieved before. */
TT_API tt_status tt_job_result(tt_job* job, tt_result** result);

/* Frees a job, and cancels it first if it has not finished; NULL is allowed. The translator may
 * have been freed before. */
TT_API void tt_job_free(tt_job* job);

/* ---- markup (docs/markup.md) ---- */

/* HTML, XML, or text that has placeholders alone, such as {name}. */
enum { TT_MARKUP_HTML = 0, TT_MARKUP_XML = 1, TT_MARKUP_TEXT = 2 };

/* Texts with markup. Their tags leave the text before translation, and return after it at the words
 * that they belong to:
 *
 *   tt_markup_new(texts, count, TT_MARKUP_HTML, 1, &markup);
 *   options.markup = markup;
 *   for (;;) {
 *     tt_lines lines = tt_markup_lines(markup);
 *     if (lines.size == 0) break;
 *     tt_submit(translator, lines.data, lines.size, &options, NULL, &job);
 *     tt_job_result(job, &result);
 *     tt_markup_receive(markup, result);
 *   }
 *   tt_markup_result(markup, &translations);
 *
 * The loop runs at most twice: where a translation lacks a placeholder or the text of code, which
 * the model is to copy, the line is translated once more without it. Independent of any translator;
 * one thread at a time may use a handle.
 *
 * texts: documents, or fragments of them.
 * kind: TT_MARKUP_...
 * whole: 1: the texts are documents; 0: they are fragments, such as lines. This matters for XML
 * alone: in a document, elements without text beside them separate sentences; a fragment is one
 * sentence.
 * markup: set to a new handle, to be freed by tt_markup_free, or to NULL on failure.
 *
 * TT_INPUT_ERROR: a text is not well-formed XML. TT_OPTION_ERROR: there is no such kind, or whole
 * is neither 0 nor 1. TT_MEMORY_ERROR. */
TT_API tt_status tt_markup_new(const tt_text* texts, size_t count, int32_t kind, int32_t whole,
                               tt_markup** markup);

/* As tt_markup_new, with a name of each text for error messages. */
TT_API tt_status tt_markup_new_named(const tt_text* texts, const tt_text* names, size_t count,
                                     int32_t kind, int32_t whole, tt_markup** markup);

typedef struct tt_lines {
  const tt_text* data;
  size_t size;
} tt_lines;

/* Returns the plain lines to translate next; none once all texts are translated. They belong to the
 * handle, and are valid until tt_markup_receive or tt_markup_free. */
TT_API tt_lines tt_markup_lines(const tt_markup* markup);

/* Receives the translations of the lines, which were submitted with tt_submit_options.markup.
 *
 * TT_INPUT_ERROR: the result is of other lines. TT_MEMORY_ERROR. */
TT_API tt_status tt_markup_receive(tt_markup* markup, const tt_result* result);

/* Returns the translations of the texts, with tags.
 *
 * result: set to a new handle, to be freed by tt_result_free, or to NULL on failure.
 *
 * TT_INPUT_ERROR: there are lines to translate. TT_MEMORY_ERROR. */
TT_API tt_status tt_markup_result(const tt_markup* markup, tt_result** result);

/* Frees texts with markup; NULL is allowed. */
TT_API void tt_markup_free(tt_markup* markup);

/* ---- results ----
 *
 * A result has an entry for each line, in the order of the input. A line has its n best hypotheses,
 * best first (`rank` counts from 0), or its alternatives, in the order of their tokens. A
 * hypothesis has its pieces, one per segment: one for most lines, several for a line that was
 * split, none for a line that no model translated. An index out of range returns 0 or an empty
 * value. */

/* Frees a result; NULL is allowed. */
TT_API void tt_result_free(tt_result* result);

/* Returns the number of lines. */
TT_API size_t tt_result_size(const tt_result* result);

/* Returns the number of hypotheses of a line, at least 1. */
TT_API size_t tt_result_hypotheses(const tt_result* result, size_t line);

/* Returns the translation: valid UTF-8, null-terminated. It is a single line without its line
 * break, except that of a text with markup. */
TT_API tt_text tt_result_text(const tt_result* result, size_t line, size_t rank);

/* Returns the score: cumulative log-probability divided by the length penalty, summed over the
 * pieces. Higher is better. */
TT_API double tt_result_score(const tt_result* result, size_t line, size_t rank);

/* Returns the number of pieces. */
TT_API size_t tt_result_pieces(const tt_result* result, size_t line, size_t rank);

/* Returns the score of one piece. */
TT_API double tt_result_piece_score(const tt_result* result, size_t line, size_t rank,
                                    size_t piece);

/* Returns the target token ids of a piece, without the end symbol. */
TT_API tt_tokens tt_result_tokens(const tt_result* result, size_t line, size_t rank, size_t piece);

typedef struct tt_log_probs {
  const double* data;
  size_t size;
} tt_log_probs;

/* Returns the natural log-probability of each generated token of a piece. The last one belongs to
 * the end symbol, unless the piece is truncated. Tokens that the prompt forces, such as a language,
 * have log-probability 0. */
TT_API tt_log_probs tt_result_token_log_probs(const tt_result* result, size_t line, size_t rank,
                                              size_t piece);

/* Returns 1 if the piece was cut before its end symbol: at the maximum length, or by loop_guard. */
TT_API int32_t tt_result_truncated(const tt_result* result, size_t line, size_t rank, size_t piece);

/* Returns 1 if the piece was cut because it repeated one phrase; it has the phrase once. */
TT_API int32_t tt_result_looped(const tt_result* result, size_t line, size_t rank, size_t piece);

/* A row-major matrix: one row per entry of token_log_probs, one column per source token of the
 * piece, language tokens included, and one for the source's end symbol if the model sees it. */
typedef struct tt_attention {
  const float* data;
  size_t rows, columns;
} tt_attention;

/* A word of a line and a word of its translation, counted from 0. White space separates words. */
typedef struct tt_word_pair {
  uint32_t source, target;
} tt_word_pair;

typedef struct tt_word_pairs {
  const tt_word_pair* data;
  size_t size;
} tt_word_pairs;

/* Returns the aligned words of a line and its translation in ascending order, empty unless
 * alignments was set. */
TT_API tt_word_pairs tt_result_alignment(const tt_result* result, size_t line, size_t rank);

/* A word of a translation: the text between two spaces, with the punctuation attached to it. */
typedef struct tt_word {
  tt_text text;      /* null-terminated */
  double log_prob;   /* sum of the log-probabilities of its tokens; 0 in a forced prefix */
  double confidence; /* its probability, from 0 to 1, calibrated if the target is */
} tt_word;

/* Return the number of words of a translation, which is 0 unless words was set, and one of them, in
 * order. A confidence is a probability only of calibrated targets (tt_translator_calibrated). */
TT_API size_t tt_result_words(const tt_result* result, size_t line, size_t rank);
TT_API tt_word tt_result_word(const tt_result* result, size_t line, size_t rank, size_t word);

/* Returns the words of a translation that consists of pieces, with their confidence, as
 * tt_submit_options.words does: those of line 0 and rank 0 of the result.
 *
 * TT_INPUT_ERROR: a piece has fewer log-probabilities than tokens, or a token is outside the
 * vocabulary. TT_BUNDLE_ERROR: the calibration is damaged. TT_MEMORY_ERROR. */
TT_API tt_status tt_translator_words(const tt_translator* translator, const tt_tokens* pieces,
                                     const tt_log_probs* log_probs, size_t count,
                                     tt_result** result);

/* Tokens of a segment and the attention between them. Tokens of different segments are not
 * aligned. */
typedef struct tt_segment {
  const tt_span* source; /* the characters of each source token in the line, in order */
  const tt_span* target; /* the characters of each target token in the translation, in order */
  size_t source_size, target_size;
  const float* weights; /* [target_size, source_size] */
} tt_segment;

typedef struct tt_segments {
  const tt_segment* data;
  size_t size;
  tt_text translation; /* text that target spans refer to: without tokens of the prompt */
} tt_segments;

/* Returns the aligned segments of a line and its translation, none unless
 * tt_submit_options.segments was set. */
TT_API tt_segments tt_result_segments(const tt_result* result, size_t line, size_t rank);

/* Aligns the words of a line and a translation by segments, as tt_submit_options.alignments does:
 * the pairs are those of line 0 and rank 0 of the result.
 *
 * threshold: see tt_submit_options.alignment_threshold.
 *
 * TT_INPUT_ERROR: an argument is NULL. TT_MEMORY_ERROR. */
TT_API tt_status tt_align_words(tt_text line, tt_segments segments, double threshold,
                                tt_result** result);

/* Return the number of terms of a translation, which is 0 unless tt_submit_options.terms was set,
 * and one of them, in the order of the line. */
TT_API size_t tt_result_terms(const tt_result* result, size_t line, size_t rank);
TT_API tt_term tt_result_term(const tt_result* result, size_t line, size_t rank, size_t index);

enum { TT_TRUNCATED = 1, TT_LOOPED = 2 };

/* A whole result as arrays, for bindings, which need one call for it instead of one per value. An
 * array of ends has one entry per line, hypothesis or piece: the index after the last of its
 * entries in the array of what it contains. */
typedef struct tt_result_arrays {
  size_t struct_size;
  size_t lines, hypotheses, pieces;
  const size_t* hypothesis_ends; /* [lines] */
  const size_t* sentences;       /* [lines] number of parts that were translated one by one */
  const size_t* piece_ends;      /* [hypotheses] */
  const double* scores;          /* [hypotheses] */
  const size_t* text_ends;       /* [hypotheses] in bytes */
  const char* texts;             /* UTF-8 */
  const double* piece_scores;    /* [pieces] */
  const uint8_t* flags;          /* [pieces] TT_TRUNCATED, TT_LOOPED */
  const size_t* token_ends;      /* [pieces] */
  const int32_t* tokens;
  const size_t* log_prob_ends; /* [pieces] */
  const double* log_probs;
} tt_result_arrays;

/* Sets the first `struct_size` bytes of the arrays, which belong to the result.
 *
 * TT_OPTION_ERROR: as for tt_options_default. TT_MEMORY_ERROR. */
TT_API tt_status tt_result_as_arrays(tt_result* result, tt_result_arrays* arrays,
                                     size_t struct_size);

/* Returns the cross-attention of a piece, which is empty unless return_attention was set. */
TT_API tt_attention tt_result_attention(const tt_result* result, size_t line, size_t rank,
                                        size_t piece);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TRANSLATE_TRT_H_ */
