#include "core/job.h"

#include <utility>

namespace translate_trt::runtime {

void Job::add_line(std::vector<Sentence> sentences) {
  const std::size_t line = lines_.size();
  lines_.push_back(
      std::unique_ptr<Line>(new Line{sentences_.size(), sentences.size(), {sentences.size()}}));
  for (Sentence& sentence : sentences) {
    sentence.index = sentences_.size();
    sentence.job = this;
    sentence.dropped = &dropped_;
    sentences_.push_back(std::make_unique<Sentence>(std::move(sentence)));
    line_of_.push_back(line);
  }
  found_.resize(sentences_.size());
  translations_.emplace_back();
  if (lines_.back()->count == 0) {
    join(line);
  } else {
    ++lines_left_;
  }
}

std::vector<std::shared_ptr<Sentence>> Job::sentences(const std::shared_ptr<Job>& job) {
  std::vector<std::shared_ptr<Sentence>> found;
  found.reserve(job->sentences_.size());
  for (const auto& sentence : job->sentences_) found.emplace_back(job, sentence.get());
  return found;
}

bool Job::found(const Sentence& sentence, std::vector<Hypothesis> hypotheses) {
  found_[sentence.index] = std::move(hypotheses);
  const std::size_t line = line_of_[sentence.index];
  if (lines_[line]->left.fetch_sub(1) > 1) return false;
  join(line);
  return lines_left_.fetch_sub(1) == 1;
}

void Job::join(std::size_t line) {
  const auto first =
      std::make_move_iterator(found_.begin()) + static_cast<std::ptrdiff_t>(lines_[line]->first);
  translations_[line] = join_({first, first + static_cast<std::ptrdiff_t>(lines_[line]->count)});
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
  if (on_finish) on_finish();
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
