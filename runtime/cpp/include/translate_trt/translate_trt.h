/* libtranslate_trt: a bundle in, translations out, from C (docs/embed-cpp.md).
 *
 * Handles are opaque and belong to whoever made them, until they are given to their `_free`
 * function. Strings and arrays that a function returns belong to the handle they were asked of, and
 * live as long as it does. What is given to a function is copied where it is kept.
 *
 * Functions that can fail return a `tt_status`. On failure they leave their outputs as they were,
 * but for handles, which become NULL, and nothing has changed; `tt_last_error` says in words what
 * was wrong. No C++ exception ever leaves the library.
 *
 * Structures of options begin with their size, so that they can grow: fill them by their `_default`
 * function, then set what you want otherwise.
 *
 * Threads: functions of a `const` handle may be called by any number of threads at once; a `_free`
 * function by one, once all others are done with the handle. All else says so where it stands.
 *
 * Processes: a bundle that was loaded before a fork can be used in the parent or in the child, in
 * whichever translates first, and with threads set to 1 if it is the child; elsewhere functions
 * fail with TT_FORKED, and handles are not freed.
 */
#ifndef TRANSLATE_TRT_H_
#define TRANSLATE_TRT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
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
  TT_INPUT_ERROR = 1,       /* text or tokens that cannot be used as they are */
  TT_OPTION_ERROR = 2,      /* an option out of range, or one the bundle was not compiled for */
  TT_BUNDLE_ERROR = 3,      /* a bundle that is missing, incomplete, changed or of another format */
  TT_BACKEND_ERROR = 4,     /* ONNX Runtime, kernels or engines do not load, or fail as they run */
  TT_MEMORY_ERROR = 5,      /* the host's memory ran out */
  TT_INTERNAL_ERROR = 6,    /* a defect of this library: please report its message */
  TT_CANCELLED = 7,         /* tt_job_cancel, tt_job_free or tt_translator_free ended the job */
  TT_DEADLINE_EXCEEDED = 8, /* the job's timeout passed first */
  TT_CAPACITY_EXCEEDED = 9, /* `capacity` sentences are pending or running: try again later */
  TT_FORKED = 10            /* the process that used the translator was forked into this one */
};

/* Such as "TT_BUNDLE_ERROR"; "unknown status" for a number that is none. Any thread. */
TT_API const char* tt_status_name(tt_status status);

/* What was wrong, where, and what to do, of the last failure in the calling thread, in UTF-8; ""
 * before the first. It is valid until the next failure in this thread. Any thread. */
TT_API const char* tt_last_error(void);

/* Version of the library, such as "0.1.0". Any thread. */
TT_API const char* tt_version(void);

/* ---- what is given ---- */

/* UTF-8, not ended by a zero; bytes that are not UTF-8 are read as U+FFFD. */
typedef struct tt_text {
  const char* data; /* may be NULL if size is 0 */
  size_t size;      /* bytes */
} tt_text;

/* Token ids, without start and end symbols. */
typedef struct tt_tokens {
  const int32_t* data; /* may be NULL if size is 0 */
  size_t size;         /* tokens */
} tt_tokens;

/* ((5 + n) / 6) ** alpha, or n ** alpha. */
enum { TT_LENGTH_PENALTY_GNMT = 0, TT_LENGTH_PENALTY_LENGTH = 1 };

/* How to search: the fields of Python's SearchOptions, in the same order (docs/beam-search.md). */
typedef struct tt_options {
  size_t struct_size;
  int32_t beam_size;           /* live hypotheses per sentence; 1 is greedy search */
  double length_penalty;       /* alpha: 0 favours short output */
  int32_t length_penalty_form; /* TT_LENGTH_PENALTY_... */
  int32_t early_stopping;      /* 1: a sentence ends once beam_size hypotheses are finished */
  int32_t max_length;          /* generated tokens with the end symbol; 0: source length + 50 */
  int32_t min_length;          /* the end symbol cannot come before this many tokens */
  int32_t num_hypotheses;      /* the n best, at most beam_size */
  int32_t return_attention;    /* 1: cross-attention of the last layer, averaged over heads */
  /* Of a model of several languages, as it calls them, such as "en" or "eng_Latn"; NULL: the
   * bundle's default, if it has one. UTF-8, copied by the call that they are given to. */
  const char* source_language;
  const char* target_language; /* that is translated into */
} tt_options;

/* Sets the first `struct_size` bytes, which is sizeof(tt_options) of the header you compile with.
 * Any thread.
 * TT_OPTION_ERROR: options is NULL, or the size is none that this library knows. */
TT_API tt_status tt_options_default(tt_options* options, size_t struct_size);

/* Receives what is worth knowing and no error, such as which kernels are used: a line of text
 * without its end. Called by any thread, by several at once. */
typedef void (*tt_log_function)(void* context, const char* message);

/* How to load a bundle: the arguments of Python's Translator, and where libraries are. */
typedef struct tt_load_options {
  size_t struct_size;
  const char* target;      /* such as "onnx-int8"; NULL: the manifest's first */
  int32_t shortlist;       /* 1: the target that is like it, with a shortlist */
  int32_t threads;         /* of each worker; 0 shares out the cores, and more than there are are
                              lowered to that, which `log` is told */
  int32_t workers;         /* batches that take steps at once, each in a thread of its own, by one
                              copy of the weights; all calls and jobs share them */
  int32_t batch_tokens;    /* source tokens in a batch, padding included */
  const char* device;      /* "cpu", "cuda", "cuda:1", "tensorrt" or "tensorrt:1"; NULL: "cpu",
                              or the first GPU for engines that the library loads */
  int32_t check_hashes;    /* 1: compare every file with its SHA-256 in the manifest */
  const char* onnxruntime; /* path of ONNX Runtime's library; NULL: $TRANSLATE_TRT_ONNXRUNTIME, else
                              libonnxruntime.so.1 where the system looks for libraries */
  const char* kernels;     /* path of the compiled kernels' library, or "none"; NULL:
                              $TRANSLATE_TRT_KERNELS, else the one beside this library, if any */
  tt_log_function log;     /* NULL: nobody is told */
  void* log_context;       /* handed to log */
  int32_t batches;  /* that a worker runs in turn, step by step, of sentences that cannot share
                       one: other beam sizes, much longer ones, or a caller with many more */
  int32_t capacity; /* sentences (lines, or segments of long ones) pending or running, from
                       which on calls and jobs are refused; 0: any number */
  /* Of a target that TensorRT runs (translate_trt/device.h); NULL: the library loads the engines,
   * if it was built with TensorRT. */
  const struct tt_engines* engines;
} tt_load_options;

/* As tt_options_default. */
TT_API tt_status tt_load_options_default(tt_load_options* options, size_t struct_size);

/* ---- a loaded bundle ---- */

typedef struct tt_translator tt_translator;

/* Checks a bundle and loads one of its targets.
 *
 * bundle: path of the directory. options: NULL takes the defaults. translator: to be freed by
 * tt_translator_free; NULL after a failure. Any thread.
 * TT_BUNDLE_ERROR, TT_BACKEND_ERROR, TT_OPTION_ERROR, TT_MEMORY_ERROR. */
TT_API tt_status tt_translator_load(const char* bundle, const tt_load_options* options,
                                    tt_translator** translator);

/* NULL is fine. No other thread may use the handle any more; results of it stay valid. */
TT_API void tt_translator_free(tt_translator* translator);

/* The bundle's defaults for searching, into the first `struct_size` bytes. Languages are the
 * translator's, and live as long as it does; NULL: the bundle has no default.
 * TT_OPTION_ERROR, as of tt_options_default. */
TT_API tt_status tt_translator_options(const tt_translator* translator, tt_options* options,
                                       size_t struct_size);

/* Name of the target in use, such as "onnx-int8". */
TT_API const char* tt_translator_target(const tt_translator* translator);

/* Compiled kernels in use, such as "avx512_vnni"; "" if there are none. */
TT_API const char* tt_translator_kernels(const tt_translator* translator);

/* Version of ONNX Runtime, such as "1.31.1"; "" if the target does not run on it. */
TT_API const char* tt_translator_onnxruntime(const tt_translator* translator);

/* Number of languages that tt_options may name as the source's or the target's: all that a model of
 * several knows, or the one that any other was made for; 0: the bundle does not say which. */
TT_API size_t tt_translator_source_languages(const tt_translator* translator);
TT_API size_t tt_translator_target_languages(const tt_translator* translator);

/* One of them, in alphabetical order, `index` from 0; "" if it is out of range. */
TT_API const char* tt_translator_source_language(const tt_translator* translator, size_t index);
TT_API const char* tt_translator_target_language(const tt_translator* translator, size_t index);

/* Load and totals of a translator. Lines count with each of their segments. */
typedef struct tt_statistics {
  size_t struct_size;
  uint64_t pending;       /* sentences that no batch has taken yet */
  uint64_t running;       /* sentences in batches */
  uint64_t sentences;     /* that were translated */
  uint64_t source_tokens; /* of these */
  uint64_t target_tokens; /* of the best hypothesis of each */
  uint64_t steps;         /* that batches took */
  uint64_t rows;          /* of batches: a step with n sentences counts n */
  double worker_seconds;  /* processor time of the workers' own threads; what else `threads` begins
                             in ONNX Runtime is not counted */
  double graph_seconds;   /* of it, within both graphs: the rest is the runtime's */
} tt_statistics;

/* Sets the first `struct_size` bytes. TT_OPTION_ERROR, as of tt_options_default; TT_FORKED. */
TT_API tt_status tt_translator_statistics(const tt_translator* translator,
                                          tt_statistics* statistics, size_t struct_size);

/* ---- translating ----
 *
 * Sentences of all calls and jobs share batches: those that arrive join the batches that are under
 * way, as soon as these have capacity for them (continuous batching), and callers take turns. What
 * is found for a sentence does not depend on what shares its batch. */

typedef struct tt_result tt_result;

/* Translates lines of text.
 *
 * A line of more tokens than the bundle allows is cut in pieces, at ends of sentences where it has
 * any, and their translations are joined. An empty or blank line has an empty translation.
 *
 * Of a model whose sources begin with the target's language (OPUS-MT), a line may say its own, as
 * ">>deu<< A text.", whatever the options say.
 *
 * options: NULL takes the bundle's defaults. prefixes: NULL, or as many texts as lines, that the
 * translations must begin with. result: to be freed by tt_result_free; NULL after a failure.
 * TT_INPUT_ERROR: lines is NULL and count is not 0. TT_OPTION_ERROR also: a language that the model
 * does not know, or one that it must be told and is not. TT_BACKEND_ERROR, TT_MEMORY_ERROR,
 * TT_CAPACITY_EXCEEDED, TT_FORKED. */
TT_API tt_status tt_translate(const tt_translator* translator, const tt_text* lines, size_t count,
                              const tt_options* options, const tt_text* prefixes,
                              tt_result** result);

/* Translates token sequences, each of which must be within the bundle's limits; otherwise as
 * tt_translate. In the result each source is a line, and each hypothesis of it one piece, without
 * text. Sources and prefixes are of the text alone, and the tokens that say languages are added to
 * them; those of a hypothesis begin with its language's, where the model wants it there.
 * TT_INPUT_ERROR also: a token outside the vocabulary, or a source that is too long. */
TT_API tt_status tt_translate_ids(const tt_translator* translator, const tt_tokens* sources,
                                  size_t count, const tt_options* options,
                                  const tt_tokens* prefixes, tt_result** result);

/* ---- jobs: translating without waiting ---- */

/* Lines that were submitted together. Its functions may be called by any number of threads at once,
 * but for tt_job_free. */
typedef struct tt_job tt_job;

/* Called once when a job has finished, with an error or without, by the thread that finishes it: a
 * worker, or whoever cancels or frees the job or waits until its deadline. It must be short, since
 * a worker that calls it translates nothing meanwhile; it may call any function of the interface
 * but tt_translator_free. */
typedef void (*tt_finished_function)(void* context);

/* Queue of finished jobs, for callers that cannot be called back by any thread: an event loop, or
 * another language. Any thread. */
typedef struct tt_completions tt_completions;

/* completions: to be freed by tt_completions_free; NULL after a failure. TT_MEMORY_ERROR. */
TT_API tt_status tt_completions_new(tt_completions** completions);

/* Waits until a job has finished, at most so many seconds; below 0: until one has. contexts: takes
 * up to `capacity` of the jobs' finished_context, in the order in which they finished. count: set
 * to how many these are, 0 if there was none in time. */
TT_API tt_status tt_completions_wait(tt_completions* completions, double seconds, void** contexts,
                                     size_t capacity, size_t* count);

/* Puts a context among those of finished jobs, to wake up whoever waits. */
TT_API tt_status tt_completions_add(tt_completions* completions, void* context);

/* NULL is fine. Each job that was submitted with it must have been returned by
 * tt_completions_wait. */
TT_API void tt_completions_free(tt_completions* completions);

/* How to translate a job. */
typedef struct tt_submit_options {
  size_t struct_size;
  const tt_options* options; /* NULL: the bundle's defaults */
  uint64_t caller;           /* jobs of one caller share its turns; 0: the job has turns of its own.
                                Any number below 2^63 */
  double timeout;            /* seconds from now, after which the job fails with
                                TT_DEADLINE_EXCEEDED; 0: none */
  tt_finished_function finished;  /* NULL: no callback */
  void* finished_context;         /* handed to finished; it must live until then */
  tt_completions* completions;    /* where finished_context is put, too; NULL: nowhere */
  uint64_t first_line;            /* number of the first line in error messages; 0: 1 */
  const tt_tokens* prefix_tokens; /* prefixes of lines of text as tokens, as many as lines; NULL:
                                     none, or as text */
} tt_submit_options;

/* As tt_options_default. */
TT_API tt_status tt_submit_options_default(tt_submit_options* options, size_t struct_size);

/* Submits lines of text, or token sequences, to be translated as by tt_translate and
 * tt_translate_ids: errors in them or in the options are returned at once, by the same
 * status.
 *
 * options: NULL takes the defaults. job: to be freed by tt_job_free; NULL after a failure, and then
 * `finished` is not called. */
TT_API tt_status tt_submit(const tt_translator* translator, const tt_text* lines, size_t count,
                           const tt_submit_options* options, const tt_text* prefixes, tt_job** job);
TT_API tt_status tt_submit_ids(const tt_translator* translator, const tt_tokens* sources,
                               size_t count, const tt_submit_options* options,
                               const tt_tokens* prefixes, tt_job** job);

/* 1 if the job has finished. Does not wait. */
TT_API int32_t tt_job_finished(const tt_job* job);

/* Waits until the job has finished, at most so many seconds; below 0: until it has. finished: set
 * to 1 if it has, else to 0; may be NULL. TT_FORKED. */
TT_API tt_status tt_job_wait(const tt_job* job, double seconds, int32_t* finished);

/* Drops what is left of a job, unless it has finished: sentences that are pending are never begun,
 * those in batches leave them before the next step. The job has then failed with TT_CANCELLED. */
TT_API tt_status tt_job_cancel(tt_job* job);

/* Waits until the job has finished, and hands over its translations, once. result: to be freed by
 * tt_result_free; NULL after a failure.
 * The job's own error: TT_BACKEND_ERROR, TT_CANCELLED, TT_DEADLINE_EXCEEDED, TT_MEMORY_ERROR.
 * TT_INPUT_ERROR: they were handed over before. */
TT_API tt_status tt_job_result(tt_job* job, tt_result** result);

/* Cancels the job unless it has finished. NULL is fine; so is a translator that was freed before.
 */
TT_API void tt_job_free(tt_job* job);

/* ---- what comes back ----
 *
 * For each line, in the order of the lines, its n best hypotheses, best first (`rank` from 0); of
 * each its pieces: one for nearly all lines, more for one that was cut, none for an empty one. An
 * index that is out of range gives 0, or something empty. */

/* NULL is fine. */
TT_API void tt_result_free(tt_result* result);

/* Number of lines. */
TT_API size_t tt_result_size(const tt_result* result);

/* Number of hypotheses of a line, at least 1. */
TT_API size_t tt_result_hypotheses(const tt_result* result, size_t line);

/* The translation: valid UTF-8, always one line, without its end; followed by a zero. */
TT_API tt_text tt_result_text(const tt_result* result, size_t line, size_t rank);

/* Cumulative log-probability divided by the length penalty, summed over the pieces; higher is
 * better. */
TT_API double tt_result_score(const tt_result* result, size_t line, size_t rank);

/* Number of pieces. */
TT_API size_t tt_result_pieces(const tt_result* result, size_t line, size_t rank);

/* The same score of one piece. */
TT_API double tt_result_piece_score(const tt_result* result, size_t line, size_t rank,
                                    size_t piece);

/* Target token ids of a piece, without the end symbol. */
TT_API tt_tokens tt_result_tokens(const tt_result* result, size_t line, size_t rank, size_t piece);

typedef struct tt_log_probs {
  const double* data;
  size_t size;
} tt_log_probs;

/* Natural-log probability of each generated token of a piece; the last one is the end symbol's,
 * unless the piece is truncated. 0 for tokens that say a language, or the like. */
TT_API tt_log_probs tt_result_token_log_probs(const tt_result* result, size_t line, size_t rank,
                                              size_t piece);

/* 1 if the maximum length came before the piece's end symbol. */
TT_API int32_t tt_result_truncated(const tt_result* result, size_t line, size_t rank, size_t piece);

/* Row after row; a row for each of the token_log_probs, a column for each source token of the piece
 * (those that say languages are some) and one for the source's end symbol, unless the model sees
 * none. */
typedef struct tt_attention {
  const float* data;
  size_t rows, columns;
} tt_attention;

/* Cross-attention of a piece, if asked for. */
TT_API tt_attention tt_result_attention(const tt_result* result, size_t line, size_t rank,
                                        size_t piece);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TRANSLATE_TRT_H_ */
