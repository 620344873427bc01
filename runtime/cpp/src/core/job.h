// A job: lines that are submitted together, their sentences and their translations.
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

#include "core/errors.h"
#include "core/results.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // nothing: none

// Made by `Translator`, run by a `Service`. Any thread, once it was submitted.
class Job {
 public:
  // The n best translations of a line from those of its sentences, in order; run by a worker.
  using Join = std::function<Translation(const std::vector<std::vector<Hypothesis>>&)>;

  explicit Job(Join join) : join_(std::move(join)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // ---- before it is submitted ----

  // Appends a line; without sentences its translation is that of an empty text.
  void add_line(std::vector<Sentence> sentences);

  Deadline deadline;
  // Called once, by the thread that finishes the job; never throws.
  std::function<void()> on_finish;

  // ---- by the service ----

  // The sentences, which keep the job alive.
  static std::vector<std::shared_ptr<Sentence>> sentences(const std::shared_ptr<Job>& job);

  // Keeps what was found for a sentence; true: it was the last.
  bool found(const Sentence& sentence, std::vector<Hypothesis> hypotheses);

  // Ends the job, with an error or (null) with translations; false: it had ended before.
  bool finish(const Error* error);

  // True once no sentence of it has to be translated any more.
  bool is_finished() const { return dropped_.load(std::memory_order_acquire); }

  // ---- by those who wait ----

  // Waits until the job has finished or that time has come; true: it has finished.
  bool wait(Deadline until);

  // Once it has finished: the translations, line by line. Throws the job's error.
  std::vector<Translation>& translations();

 private:
  struct Line {
    std::size_t first, count;  // of its sentences
    std::atomic<std::size_t> left;
  };

  void join(std::size_t line);

  Join join_;
  std::vector<std::unique_ptr<Sentence>> sentences_;
  std::vector<std::size_t> line_of_;  // of each sentence
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<std::vector<Hypothesis>> found_;  // of each sentence; each is written by one worker
  std::vector<Translation> translations_;
  std::atomic<std::size_t> lines_left_ = 0;
  std::atomic<bool> dropped_ = false;  // see Sentence::dropped

  std::mutex mutex_;  // of what follows
  std::condition_variable finished_;
  bool is_done_ = false;
  tt_status status_ = TT_OK;
  std::string message_;  // of an error; no `Error`, whose text its copies share across threads
};

}  // namespace translate_trt::runtime
