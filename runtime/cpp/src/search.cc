#include "search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "contract.h"

namespace translate_trt::runtime {

namespace {

// Places are filled with waiting sentences once this share of a batch is idle; once nobody waits
// they are closed up, which copies the batch and so is done less often.
constexpr double kIdle = 0.1;
constexpr double kIdleAtTheEnd = 0.25;
// A batch is made larger, which copies it, once its sentences are so short that so many times its
// rows fit.
constexpr double kLarger = 1.5;

// What was in the old rows of an array, in the new ones, of `size` altogether.
template <class T>
void rearrange(std::vector<T>& array, const Rows& before, const Rows& after, std::int64_t rows,
               std::int64_t size) {
  if (array.empty()) return;
  const std::size_t row = array.size() / static_cast<std::size_t>(rows);
  std::vector<T> moved(row * static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::copy_n(array.begin() + before[i] * static_cast<std::int64_t>(row), row,
                moved.begin() + after[i] * static_cast<std::int64_t>(row));
  }
  array = std::move(moved);
}

// Sentences that were not there yet have rows that nobody will ask this step for.
void rearrange(StepResult& step, const Rows& before, const Rows& after, std::int64_t size) {
  const auto rows = static_cast<std::int64_t>(step.done.size());
  rearrange(step.tokens, before, after, rows, size);
  rearrange(step.parents, before, after, rows, size);
  rearrange(step.log_probs, before, after, rows, size);
  rearrange(step.attention, before, after, rows, size);
  rearrange(step.done, before, after, rows, size);
}

}  // namespace

// ---- waiting ----

Waiting::Waiting(Sentences sentences, int workers)
    : sentences_(std::move(sentences)), workers_(workers) {
  sort();
}

void Waiting::sort() {
  std::stable_sort(sentences_.begin(), sentences_.end(), [](const auto* one, const auto* other) {
    return one->tokens.size() < other->tokens.size();
  });
}

bool Waiting::empty() const {
  const std::lock_guard lock(mutex_);
  return sentences_.empty();
}

Sentences Waiting::take(std::int64_t batch_tokens, std::int64_t beside, std::int64_t longest,
                        std::int64_t rows) {
  const std::lock_guard lock(mutex_);
  if (sentences_.empty()) return {};
  const std::int64_t width = std::max({longest, sentences_.back()->length() + 1, kSmallestCost});
  const std::int64_t whole = std::max<std::int64_t>(batch_tokens / width, 1);
  const bool larger = static_cast<double>(whole) >= static_cast<double>(rows) * kLarger;
  const std::int64_t most = larger ? whole : std::min(whole, std::max<std::int64_t>(rows, 1));
  // What is left is shared out, so that no worker ends long before the others.
  const auto left = static_cast<std::int64_t>(sentences_.size());
  const std::int64_t fair = (left + beside + workers_ - 1) / workers_ - beside;
  const std::int64_t least = beside > 0 ? 0 : 1;
  const std::int64_t count = std::max(std::min(most - beside, fair), least);
  Sentences taken(sentences_.rbegin(), sentences_.rbegin() + count);
  sentences_.resize(sentences_.size() - static_cast<std::size_t>(count));
  return taken;
}

void Waiting::give_back(const Sentences& sentences) {
  const std::lock_guard lock(mutex_);
  sentences_.insert(sentences_.end(), sentences.begin(), sentences.end());
  sort();
}

// ---- the loop ----

void Trace::forget(std::int64_t before) {
  steps.erase(steps.begin(), steps.begin() + (before - first));
  first = before;
}

Search::Search(const Backend& backend, const SearchOptions& options, std::int64_t batch_tokens,
               std::int64_t start_token, std::int64_t end_token, bool source_end)
    : options_(options),
      batch_tokens_(batch_tokens),
      end_token_(end_token),
      source_end_(source_end),
      batch_(backend.batch(options, start_token)) {}

void Search::run(Waiting& waiting, const Found& found, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    if (has_idle_places(waiting) && !fill(waiting)) return;
    take_in(batch_->step(forced()), found);
  }
}

Sentences Search::unfinished() const {
  Sentences left;
  for (const auto& [row, running] : rows_) left.push_back(running.sentence);
  left.insert(left.end(), taken_.begin(), taken_.end());
  return left;
}

// Keeps what a step found, and lets go of the sentences that it ends.
void Search::take_in(StepResult result, const Found& found) {
  trace_.steps.push_back(std::move(result));
  const std::vector<char>& done = trace_.steps.back().done;
  for (auto place = rows_.begin(); place != rows_.end();) {
    const auto& [row, running] = *place;
    if (!done[static_cast<std::size_t>(row)]) {
      ++place;
      continue;
    }
    const SentenceTrace trace(trace_, row, running.begin, options_.beam_size);
    const Sentence& sentence = *running.sentence;
    found(sentence, hypotheses(sentence, trace, batch_->pool(row), options_of(sentence),
                               source_end_));
    place = rows_.erase(place);
  }
}

bool Search::has_idle_places(const Waiting& waiting) const {
  const double share = waiting.empty() ? kIdleAtTheEnd : kIdle;
  return static_cast<double>(rows_.size()) <= static_cast<double>(size_) * (1 - share);
}

// Gives idle places to waiting sentences, or closes them up; false: there is none at all.
bool Search::fill(Waiting& waiting) {
  std::int64_t longest = 0, first = std::numeric_limits<std::int64_t>::max();
  Rows keep;
  for (const auto& [row, running] : rows_) {
    longest = std::max(longest, running.sentence->length() + 1);
    first = std::min(first, running.begin);
    keep.push_back(row);
  }
  const auto running = static_cast<std::int64_t>(rows_.size()), before = batch_->rows();
  taken_ = waiting.take(batch_tokens_, running, longest, before);
  if (taken_.empty() && rows_.empty()) return false;
  size_ = running + static_cast<std::int64_t>(taken_.size());
  const auto [kept, placed] = batch_->update(keep, sources(taken_));
  trace_.forget(std::min(first, trace_.end()));
  if (kept != keep || batch_->rows() != before) {
    for (StepResult& step : trace_.steps) rearrange(step, keep, kept, batch_->rows());
  }
  std::map<std::int64_t, Running> rows;
  for (std::size_t i = 0; i < keep.size(); ++i) rows[kept[i]] = rows_.at(keep[i]);
  for (std::size_t i = 0; i < placed.size(); ++i) rows[placed[i]] = {taken_[i], trace_.end()};
  rows_ = std::move(rows);
  taken_.clear();
  return true;
}

const SearchOptions& Search::options_of(const Sentence& sentence) const {
  return sentence.options == nullptr ? options_ : *sentence.options;
}

Sources Search::sources(const Sentences& sentences) const {
  Sources sources;
  for (const Sentence* sentence : sentences) {
    sources.tokens.push_back(sentence->tokens);
    sources.tokens.back().push_back(end_token_);
    sources.max_lengths.push_back(options_of(*sentence).max_length_for(sentence->length()));
    sources.options.push_back(sentence->options);
  }
  return sources;
}

// The forced token of each row at its position, or none; empty: all are free.
std::vector<std::int64_t> Search::forced() const {
  std::vector<std::int64_t> tokens;
  for (const auto& [row, running] : rows_) {
    const auto position = static_cast<std::size_t>(trace_.end() - running.begin);
    if (position >= running.sentence->prefix.size()) continue;
    if (tokens.empty()) tokens.assign(static_cast<std::size_t>(batch_->rows()), kFree);
    tokens[static_cast<std::size_t>(row)] = running.sentence->prefix[position];
  }
  return tokens;
}

}  // namespace translate_trt::runtime
