#include "core/job.h"

#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/alternatives.h"
#include "core/search_cache.h"

namespace translate_trt::runtime {

namespace {

// Number of sentences that may follow an expansion.
std::size_t most_completions(const Sentence& sentence) {
  return sentence.completion ? static_cast<std::size_t>(sentence.completion->alternatives) : 0;
}

// Leaves the first of the sentences whose searches are equal, with the others as its repeats.
std::vector<std::shared_ptr<Sentence>> without_repeats(
    std::vector<std::shared_ptr<Sentence>> sentences) {
  if (sentences.size() < 2) return sentences;
  // By the hashes of their keys: the keys of a million lines would take much memory.
  std::unordered_map<std::size_t, Sentence*> firsts;
  std::vector<std::shared_ptr<Sentence>> found;
  for (auto& one : sentences) {
    const std::string key = search_key(*one);
    const auto [first, is_new] = firsts.emplace(std::hash<std::string>()(key), one.get());
    if (!is_new && search_key(*first->second) == key) {
      first->second->repeats.push_back(one.get());
    } else {
      found.push_back(std::move(one));
    }
  }
  return found;
}

}  // namespace

void Job::add_line(std::vector<Sentence> sentences) {
  const std::size_t line = lines_.size(), first = sentences_.size();
  for (Sentence& sentence : sentences) {
    const std::size_t following = most_completions(sentence);
    append(line, std::make_unique<Sentence>(std::move(sentence)));
    for (std::size_t i = 0; i < following; ++i) append(line, nullptr);
  }
  const std::size_t count = sentences_.size() - first;
  lines_.push_back(std::unique_ptr<Line>(new Line{first, count, {count}}));
  found_.resize(sentences_.size());
  translations_.emplace_back();
  if (count == 0) {
    join(line);
  } else {
    ++lines_left_;
  }
}

void Job::append(std::size_t line, std::unique_ptr<Sentence> sentence) {
  if (sentence != nullptr) own(*sentence, sentences_.size());
  sentences_.push_back(std::move(sentence));
  line_of_.push_back(line);
}

void Job::own(Sentence& sentence, std::size_t index) {
  sentence.index = index;
  sentence.job = this;
  sentence.dropped = &dropped_;
}

std::vector<std::shared_ptr<Sentence>> Job::sentences(const std::shared_ptr<Job>& job) {
  std::vector<std::shared_ptr<Sentence>> found;
  found.reserve(job->sentences_.size());
  for (const auto& sentence : job->sentences_) {
    if (sentence != nullptr) found.emplace_back(job, sentence.get());
  }
  return without_repeats(std::move(found));
}

Job::Progress Job::store(const std::shared_ptr<Job>& job, const Sentence& sentence,
                         std::vector<Hypothesis> hypotheses) {
  Progress progress;
  for (const Sentence* repeat : sentence.repeats) store_one(job, *repeat, hypotheses, progress);
  store_one(job, sentence, std::move(hypotheses), progress);
  progress.next = without_repeats(std::move(progress.next));
  return progress;
}

void Job::store_one(const std::shared_ptr<Job>& job, const Sentence& sentence,
                    std::vector<Hypothesis> hypotheses, Progress& progress) {
  const std::size_t line = job->line_of_[sentence.index];
  std::size_t finished = 1;
  if (sentence.completion) {
    std::size_t index = sentence.index;
    for (Sentence& next : completions(sentence, hypotheses)) {
      auto& made = job->sentences_[++index] = std::make_unique<Sentence>(std::move(next));
      job->own(*made, index);
      progress.next.emplace_back(job, made.get());
    }
    finished += most_completions(sentence) - (index - sentence.index);
  } else {
    job->found_[sentence.index] = best_completion(sentence, std::move(hypotheses));
  }
  progress.last = job->finish_sentences(line, finished) || progress.last;
}

bool Job::finish_sentences(std::size_t line, std::size_t count) {
  if (lines_[line]->left.fetch_sub(count) > count) return false;
  join(line);
  return lines_left_.fetch_sub(1) == 1;
}

void Job::join(std::size_t line) {
  const std::size_t end = lines_[line]->first + lines_[line]->count;
  std::vector<std::vector<Hypothesis>> parts;
  for (std::size_t i = lines_[line]->first; i < end; ++i) {
    std::vector<Hypothesis> part = std::move(found_[i]);
    for (std::size_t left = most_completions(*sentences_[i]); left > 0; --left) {
      std::vector<Hypothesis>& best = found_[++i];
      if (!best.empty()) part.push_back(std::move(best.front()));
    }
    parts.push_back(std::move(part));
  }
  translations_[line] = join_(line, parts);
}

bool Job::finish(const Error* error) {
  {
    const std::lock_guard lock(mutex_);
    if (is_done_) return false;
    is_done_ = true;
    if (error != nullptr) {
      status_ = error->status();
      message_ = error->what();
    }
    dropped_.store(true, std::memory_order_release);
  }
  finished_.notify_all();
  return true;
}

bool Job::wait(Deadline until) {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return is_done_; };
  if (until) return finished_.wait_until(lock, *until, is_done);
  finished_.wait(lock, is_done);
  return true;
}

std::vector<Translation>& Job::translations() {
  const std::lock_guard lock(mutex_);
  if (status_ != TT_OK) throw Error(status_, message_);
  return translations_;
}

}  // namespace translate_trt::runtime
