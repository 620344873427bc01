#include "core/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bundle/contract.h"
#include "core/sampling.h"

namespace translate_trt::runtime {

namespace {

// A batch is compacted once this share of its rows is idle: compaction copies it, which costs as
// much as several steps.
constexpr double kCompact = 0.25;
// A batch grows, which copies it, once its sentences are so short that this multiple of its rows
// fits.
constexpr double kLarger = 1.5;

}  // namespace

History::History(std::int64_t beams, std::int64_t columns) : beams_(beams), columns_(columns) {}

void History::append(const StepResult& step, std::int64_t row) {
  const auto append = [&](auto& to, const auto& from) {
    const auto first = from.begin() + row * beams_;
    to.insert(to.end(), first, first + beams_);
  };
  append(tokens_, step.tokens);
  append(parents_, step.parents);
  append(log_probs_, step.log_probs);
  for (std::int64_t beam = 0; columns_ > 0 && beam < beams_; ++beam) {
    const auto first = step.attention.begin() + (row * beams_ + beam) * step.source_size;
    attention_.insert(attention_.end(), first, first + columns_);
  }
  ++size_;
}

std::int64_t Capacity::more(std::int64_t tokens) const {
  const std::int64_t width = std::max({longest, tokens, kSmallestCost});
  const std::int64_t whole = std::max<std::int64_t>(batch_tokens / width, 1);
  const bool larger = static_cast<double>(whole) >= static_cast<double>(rows) * kLarger;
  std::int64_t most = larger ? whole : std::min(whole, std::max<std::int64_t>(rows, 1));
  const auto limit =
      batch == nullptr ? std::nullopt : batch->capacity_for(std::max(longest, tokens));
  if (limit) most = std::min(most, *limit);
  // At least one sentence: if it is too long, the batch reports the error.
  return std::max<std::int64_t>(most - running, running > 0 ? 0 : 1);
}

bool History::is_live(std::int64_t beam) const {
  return size_ == 0 ? beam == 0 : std::isfinite(log_prob(size_ - 1, beam));
}

void History::drop(std::int64_t beam) {
  log_probs_[static_cast<std::size_t>((size_ - 1) * beams_ + beam)] =
      -std::numeric_limits<float>::infinity();
}

Tokens History::path(std::int64_t beam) const {
  Tokens tokens(static_cast<std::size_t>(size_));
  for (std::int64_t step = size_ - 1; step >= 0; --step) {
    tokens[static_cast<std::size_t>(step)] = token(step, beam);
    beam = parent(step, beam);
  }
  return tokens;
}

Search::Search(const Backend& backend, const SearchOptions& options, std::int64_t batch_tokens,
               const ModelDescription& model)
    : beams_(options.beam_size),
      batch_tokens_(batch_tokens),
      end_token_(model.end_token),
      vocabulary_size_(model.vocabulary_size),
      attention_(options.return_attention),
      source_end_(model.source_end),
      batch_(backend.batch(options, model.start_token)) {}

Progress Search::advance(SentenceSource& source, const Found& found, const Stepped& stepped) {
  drop(source);
  if (should_admit(source)) {
    retire(batch_->drain(), found);
    if (!admit(source)) return {};
  }
  const auto rows = static_cast<std::int64_t>(rows_.size());
  const StepResults& steps = batch_->step(step_inputs());
  const auto count = static_cast<std::int64_t>(steps.size());
  const Progress made = {count, count * rows};
  if (stepped) stepped(made);
  retire(steps, found);
  return made;
}

Sentences Search::unfinished() const {
  Sentences left;
  for (const auto& [row, running] : rows_) left.push_back(running.sentence);
  left.insert(left.end(), admitting_.begin(), admitting_.end());
  return left;
}

// Removes cancelled sentences from the batch.
void Search::drop(SentenceSource& source) {
  for (auto entry = rows_.begin(); entry != rows_.end();) {
    if (!entry->second.sentence->is_dropped()) {
      ++entry;
      continue;
    }
    batch_->retire(entry->first);
    const SentencePtr sentence = std::move(entry->second.sentence);
    entry = rows_.erase(entry);
    source.release(*sentence);
  }
}

void Search::retire(const StepResults& steps, const Found& found) {
  for (const StepResult& step : steps) retire(step, found);
  if (steps.empty()) return;
  Rows looping;
  for (auto& [row, running] : rows_) {
    if (is_loop_check_due(running) && has_loop(running)) looping.push_back(row);
  }
  if (looping.empty()) return;
  // Steps already enqueued continue the beams: those after the last of them are dropped.
  for (const StepResult& step : batch_->drain()) retire(step, found);
  for (const std::int64_t row : looping) {
    if (const auto entry = rows_.find(row); entry != rows_.end()) drop_loops(entry, found);
  }
}

// Whether the live beams are examined for loops after the last step.
bool Search::is_loop_check_due(Running& running) {
  const std::int64_t size = running.history.size();
  if (!running.guard || size / kLoopCheckSteps == running.checked / kLoopCheckSteps) return false;
  running.checked = size;
  const Sentence& sentence = *running.sentence;
  const auto forced = static_cast<std::int64_t>(sentence.prefix.size());
  return size > std::max<std::int64_t>(forced, sentence.options.min_length);
}

// Whether a live beam repeats one phrase.
bool Search::has_loop(const Running& running) const {
  for (std::int64_t beam = 0; beam < beams_; ++beam) {
    const History& history = running.history;
    if (history.is_live(beam) && running.guard->loop_length(history.path(beam)) > 0) return true;
  }
  return false;
}

// Drops live beams that repeat one phrase, and those that interrupt such a loop; a sentence without
// others is done (rule 11).
void Search::drop_loops(RunningRows::iterator entry, const Found& found) {
  auto& [row, running] = *entry;
  History& history = running.history;
  const std::int64_t length = history.size();
  const double penalty = running.sentence->options.penalty(length);
  std::vector<std::int64_t> live;
  std::vector<Tokens> tokens;
  for (std::int64_t beam = 0; beam < beams_; ++beam) {
    if (!history.is_live(beam)) continue;
    live.push_back(beam);
    tokens.push_back(history.path(beam));
  }
  const Sentence& sentence = *running.sentence;
  const std::vector<bool> leaving =
      running.guard->leaving(tokens, sentence.prefix.size(), !sentence.constraints.empty());
  const bool is_done = std::count(leaving.begin(), leaving.end(), false) == 0 && !live.empty();
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (!leaving[i]) continue;
    if (running.guard->loop_length(tokens[i]) > 0) {
      const auto score = static_cast<float>(history.log_prob(length - 1, live[i]) / penalty);
      running.dropped.push_back({score, length, live[i]});
    }
    history.drop(live[i]);
    if (!is_done) batch_->drop(row, live[i]);
  }
  if (!is_done) return;
  batch_->retire(row);
  finish(entry, found);
}

// Removes a finished sentence and reports its hypotheses; returns the next entry.
Search::RunningRows::iterator Search::finish(RunningRows::iterator entry, const Found& found) {
  auto& [row, running] = *entry;
  Pool pool = batch_->pool(row);
  for (const Dropped& one : running.dropped) {
    pool.scores.push_back(one.score);
    pool.lengths.push_back(one.length);
    pool.parents.push_back(one.beam);
    pool.truncated.push_back(1);
  }
  auto best = hypotheses(*running.sentence, running.history, pool, source_end_,
                         running.guard ? &*running.guard : nullptr);
  const SentencePtr sentence = std::move(running.sentence);
  entry = rows_.erase(entry);
  found(sentence, std::move(best));
  return entry;
}

// Appends a step to the histories and retires finished sentences.
void Search::retire(const StepResult& step, const Found& found) {
  for (auto entry = rows_.begin(); entry != rows_.end();) {
    auto& [row, running] = *entry;
    running.history.append(step, row);
    if (!step.done[static_cast<std::size_t>(row)]) {
      ++entry;
      continue;
    }
    entry = finish(entry, found);
  }
}

bool Search::should_admit(SentenceSource& source) const {
  const auto idle = static_cast<double>(size_ - static_cast<std::int64_t>(rows_.size()));
  return idle >= static_cast<double>(size_) * kCompact || source.should_join(capacity(), size_);
}

Capacity Search::capacity() const {
  std::int64_t longest = 0;
  for (const auto& [row, running] : rows_) {
    longest = std::max(longest, running.sentence->length() + 1);
  }
  return {batch_tokens_, static_cast<std::int64_t>(rows_.size()), longest, batch_->rows(),
          batch_.get()};
}

// Admits pending sentences to idle rows, or compacts the batch; false if no sentence is left.
bool Search::admit(SentenceSource& source) {
  admitting_ = source.take(capacity());
  if (admitting_.empty() && rows_.empty()) return false;
  Rows keep;
  for (const auto& [row, running] : rows_) keep.push_back(row);
  size_ = static_cast<std::int64_t>(rows_.size() + admitting_.size());
  const auto [kept, placed] = batch_->update(keep, sources(admitting_));
  RunningRows rows;
  for (std::size_t i = 0; i < keep.size(); ++i) rows.emplace(kept[i], std::move(rows_.at(keep[i])));
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const std::int64_t columns = admitting_[i]->length() + (source_end_ ? 1 : 0);
    const SearchOptions& options = admitting_[i]->options;
    std::optional<LoopGuard> guard;
    if (options.loop_guard) guard.emplace(admitting_[i]->tokens);
    const std::uint64_t state = options.samples() ? noise_state(options, admitting_[i]->tokens) : 0;
    rows.emplace(placed[i],
                 Running{admitting_[i], History(beams_, attention_ ? columns : 0), guard, state});
  }
  rows_ = std::move(rows);
  admitting_.clear();
  return true;
}

Sources Search::sources(const Sentences& sentences) const {
  Sources sources;
  for (const SentencePtr& sentence : sentences) {
    sources.tokens.push_back(sentence->tokens);
    sources.tokens.back().push_back(end_token_);
    sources.max_lengths.push_back(sentence->options.max_length_for(sentence->length()));
    sources.options.push_back(&sentence->options);
  }
  return sources;
}

StepInputs Search::step_inputs() const {
  Readings read = readings();
  MarkedTokens marks = marked(read);
  const bool depends = !read.empty() || changes_tokens();
  return {forced(), std::move(marks), noise(), progress(std::move(read)), depends};
}

// Whether a sentence has penalties, banned tokens or sampling.
bool Search::changes_tokens() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const auto& row) {
    const SearchOptions& options = row.second.sentence->options;
    return options.marks_tokens() || options.samples();
  });
}

// Tokens of the live hypotheses: one before the first step.
std::vector<Tokens> Search::live_tokens(const History& history) const {
  std::vector<Tokens> tokens;
  for (std::int64_t beam = 0; beam < (history.size() > 0 ? beams_ : 1); ++beam) {
    tokens.push_back(history.path(beam));
  }
  return tokens;
}

// What the beams have of their constraints (rule 15), in rows where one of them lacks some.
Search::Readings Search::readings() const {
  Readings found;
  for (const auto& [row, running] : rows_) {
    const Sentence& sentence = *running.sentence;
    // An expansion only finds the tokens of alternatives.
    if (sentence.constraints.empty() || sentence.completion) continue;
    if (running.history.size() < static_cast<std::int64_t>(sentence.prefix.size())) continue;
    std::vector<Reading> readings;
    bool is_open = false;
    for (const Tokens& tokens : live_tokens(running.history)) {
      readings.emplace_back(sentence.constraints);
      readings.back().read(tokens);
      const auto beam = static_cast<std::int64_t>(readings.size()) - 1;
      is_open = is_open || (running.history.is_live(beam) && readings.back().is_open());
    }
    if (is_open) found.emplace(row, std::move(readings));
  }
  return found;
}

// The progress of the beams with their constraints.
ConstraintProgress Search::progress(Readings readings) const {
  ProgressBuilder progress(batch_->rows(), beams_);
  for (auto& [row, own] : readings) {
    progress.add(row, different_tokens(rows_.at(row).sentence->constraints), std::move(own));
  }
  return progress.build();
}

// The marked tokens of all beams (rule 13). Rows with a forced token have none: it is their only
// candidate. Beams that lack a constraint may not end.
MarkedTokens Search::marked(const Readings& readings) const {
  MarkBuilder marks(batch_->rows(), beams_);
  for (const auto& [row, running] : rows_) {
    const Sentence& sentence = *running.sentence;
    const auto read = readings.find(row);
    const bool is_constrained = read != readings.end();
    if (!sentence.options.marks_tokens() && !is_constrained) continue;
    if (running.history.size() < static_cast<std::int64_t>(sentence.prefix.size())) continue;
    const std::int64_t beams = running.history.size() > 0 ? beams_ : 1;
    for (std::int64_t beam = 0; beam < beams; ++beam) {
      Marks found;
      if (sentence.options.marks_tokens()) found = marks_of(sentence, running.history.path(beam));
      const bool may_end =
          !is_constrained || !read->second[static_cast<std::size_t>(beam)].is_open();
      if (!may_end) found[end_token_] = kBanned;
      marks.add(row, beam, std::move(found));
    }
  }
  return marks.build();
}

// The noise of sentences whose next token is drawn (rule 14).
SamplingNoise Search::noise() const {
  NoiseBuilder noise(batch_->rows(), vocabulary_size_);
  for (const auto& [row, running] : rows_) {
    const Sentence& sentence = *running.sentence;
    const std::int64_t position = running.history.size();
    const bool is_forced = position < static_cast<std::int64_t>(sentence.prefix.size());
    if (sentence.options.samples() && !is_forced) {
      noise.add(row, sentence.options, running.noise_state, position);
    }
  }
  return noise.build();
}

// The forced token of each row at its position or kFree; empty if all rows are free.
std::vector<std::int64_t> Search::forced() const {
  std::vector<std::int64_t> tokens;
  for (const auto& [row, running] : rows_) {
    const auto position = static_cast<std::size_t>(running.history.size());
    if (position >= running.sentence->prefix.size()) continue;
    if (tokens.empty()) tokens.assign(static_cast<std::size_t>(batch_->rows()), kFree);
    tokens[static_cast<std::size_t>(row)] = running.sentence->prefix[position];
  }
  return tokens;
}

}  // namespace translate_trt::runtime
