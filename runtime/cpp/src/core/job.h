// A job: lines that are submitted together, with their sentences and translations.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "core/results.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // nullopt: no deadline

// Created by a `Translator` and run by a `Service`. Thread-safe once it is submitted.
class Job {
 public:
  // Joins the n best hypotheses of the sentences of a line, given by its index, to translations of
  // the line. Called by workers.
  using Join = std::function<Translation(std::size_t, const std::vector<std::vector<Hypothesis>>&)>;

  explicit Job(Join join) : join_(std::move(join)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // ---- before submission ----

  // Appends a line. A line without sentences has the translation of an empty text. The alternatives
  // of an expansion (alternatives.h) become the n best hypotheses of its sentence.
  void add_line(std::vector<Sentence> sentences);

  Deadline deadline;
  // Called by the service once the job has finished; must not throw.
  std::function<void()> on_finish;

  // ---- for the service ----

  // The sentences to search first, without repeats of others; each pointer keeps the job alive.
  static std::vector<std::shared_ptr<Sentence>> sentences(const std::shared_ptr<Job>& job);

  // Stores the hypotheses of a sentence and of its repeats. `last` tells whether these were the
  // job's last ones, and `next` has the sentences that are to be searched now.
  struct Progress {
    bool last = false;
    std::vector<std::shared_ptr<Sentence>> next = {};
  };
  static Progress store(const std::shared_ptr<Job>& job, const Sentence& sentence,
                        std::vector<Hypothesis> hypotheses);

  // Finishes the job with an error, or with translations if null. Returns false if it had finished
  // before.
  bool finish(const Error* error);

  // Whether none of the sentences has to be translated any more.
  bool is_finished() const { return dropped_.load(std::memory_order_acquire); }

  // ---- for waiting threads ----

  // Waits until the job has finished or the deadline has passed; returns whether it has finished.
  bool wait(Deadline until);

  // The translations of a finished job, by line. Throws the job's error.
  std::vector<Translation>& translations();

 private:
  struct Line {
    std::size_t first, count;  // range of its sentences
    std::atomic<std::size_t> left;
  };

  static void store_one(const std::shared_ptr<Job>& job, const Sentence& sentence,
                        std::vector<Hypothesis> hypotheses, Progress& progress);
  void append(std::size_t line, std::unique_ptr<Sentence> sentence);
  void own(Sentence& sentence, std::size_t index);
  // Counts sentences of a line as finished; returns whether they were the job's last ones.
  bool finish_sentences(std::size_t line, std::size_t count);
  void join(std::size_t line);

  Join join_;
  // An expansion is followed by its completions, which are null until it has been searched.
  std::vector<std::unique_ptr<Sentence>> sentences_;
  std::vector<std::size_t> line_of_;  // by sentence
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<std::vector<Hypothesis>> found_;  // by sentence; each is written by one worker
  std::vector<Translation> translations_;
  std::atomic<std::size_t> lines_left_ = 0;
  std::atomic<bool> dropped_ = false;  // see Sentence::dropped

  std::mutex mutex_;  // guards the members below
  std::condition_variable finished_;
  bool is_done_ = false;
  tt_status status_ = TT_OK;
  std::string message_;  // not an `Error`, whose copies share their text across threads
};

}  // namespace translate_trt::runtime
