// The loop over steps, on a backend that counts, and what is made of its trace.

#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "search.h"
#include "workers.h"

namespace translate_trt::runtime {

namespace {

std::vector<Sentence> sentences_of(const std::vector<std::size_t>& lengths) {
  std::vector<Sentence> sentences;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sentences.push_back({i, Tokens(lengths[i], 5), {}});
  }
  return sentences;
}

Sentences pointers(const std::vector<Sentence>& sentences) {
  Sentences found;
  for (const Sentence& sentence : sentences) found.push_back(&sentence);
  return found;
}

void test_waiting() {
  const auto sentences = sentences_of({3, 20, 5, 20, 9});
  Waiting waiting(pointers(sentences), 1);
  const Sentences first = waiting.take(63);  // three of 21 tokens
  CHECK(first.size() == 3 && first[0]->index == 3 && first[1]->index == 1 && first[2]->index == 4);
  CHECK(waiting.take(63, 3, 21, 3).empty());
  waiting.give_back({first[0]});
  CHECK(waiting.take(1).at(0)->index == 3);
  CHECK(waiting.take(100).size() == 2 && waiting.empty() && waiting.take(100).empty());
  Waiting shared(pointers(sentences), 2);
  CHECK(shared.take(1000).size() == 3);  // its fair part
}

// Sentences of n tokens are done after n steps; their last token is their length.
class CountingBatch : public Batch {
 public:
  explicit CountingBatch(std::atomic<int>& failing) : failing_(failing) {}

  std::int64_t rows() const override { return static_cast<std::int64_t>(left_.size()); }

  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override {
    std::vector<std::int64_t> left, length;
    Rows kept, placed;
    for (const auto row : keep) {
      kept.push_back(static_cast<std::int64_t>(left.size()));
      left.push_back(left_[static_cast<std::size_t>(row)]);
      length.push_back(length_[static_cast<std::size_t>(row)]);
    }
    for (const Tokens& tokens : arriving.tokens) {
      placed.push_back(static_cast<std::int64_t>(left.size()));
      left.push_back(static_cast<std::int64_t>(tokens.size()) - 1);
      length.push_back(left.back());
    }
    left_ = left, length_ = length;
    return {kept, placed};
  }

  StepResult step(const std::vector<std::int64_t>&) override {
    if (failing_.fetch_sub(1) == 1) throw std::runtime_error("out of order");
    StepResult result;
    for (std::size_t row = 0; row < left_.size(); ++row) {
      left_[row] -= left_[row] > 0;
      result.tokens.push_back(length_[row]);
      result.parents.push_back(0);
      result.log_probs.push_back(-1);
      result.done.push_back(left_[row] == 0);
    }
    return result;
  }

  Pool pool(std::int64_t row) const override {
    return {{-1}, {length_[static_cast<std::size_t>(row)] + 1}, {0}};
  }

  void cancel() override {}

 private:
  std::atomic<int>& failing_;
  std::vector<std::int64_t> left_, length_;
};

class CountingBackend : public Backend {
 public:
  explicit CountingBackend(int failing) : failing_(failing) {}

  std::unique_ptr<Batch> batch(const SearchOptions&, std::int64_t) const override {
    return std::make_unique<CountingBatch>(failing_);
  }

 private:
  mutable std::atomic<int> failing_;  // the step of this number fails
};

void test_every_sentence_is_found_once() {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 200; ++i) lengths.push_back(1 + i * 7 % 40);
  const auto sentences = sentences_of(lengths);
  for (const int workers : {1, 3, 8}) {
    for (const int failing : {0, 1, 5}) {
      CountingBackend backend(failing);
      SearchOptions options;
      options.beam_size = 1;
      std::atomic<int> told = 0;
      const auto found = search_all(
          [&] { return std::make_unique<Search>(backend, options, 100, 2, 3); },
          pointers(sentences), sentences.size(), workers, [&](const std::string&) { ++told; });
      CHECK(told == (failing > 0 ? 1 : 0));
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        CHECK(found[i].size() == 1 &&
              found[i][0].tokens == Tokens(lengths[i], static_cast<std::int64_t>(lengths[i])));
      }
    }
  }
}

void test_a_backend_that_fails_for_good() {
  const auto sentences = sentences_of({4, 4, 4});
  class Failing : public CountingBackend {
   public:
    Failing() : CountingBackend(0) {}
    std::unique_ptr<Batch> batch(const SearchOptions&, std::int64_t) const override {
      failing_ = 1;
      return std::make_unique<CountingBatch>(failing_);
    }
    mutable std::atomic<int> failing_ = 1;
  } backend;
  const SearchOptions options;
  const auto search = [&] {
    search_all([&] { return std::make_unique<Search>(backend, options, 100, 2, 3); },
               pointers(sentences), 3, 1, [](const std::string&) {});
  };
  CHECK(contains(thrown(search), "TT_BACKEND_ERROR translation failed twice: out of order"));
}

void test_sentences_have_options_of_their_own() {
  auto sentences = sentences_of({4, 4, 4});
  SearchOptions options, own;
  options.beam_size = own.beam_size = 1;
  options.max_length = 3, own.max_length = 4;
  options.length_penalty = 1, options.length_penalty_form = TT_LENGTH_PENALTY_LENGTH;
  own.length_penalty = 0;
  sentences[1].options = &own;
  // Their pools are empty, so that hypotheses are what is cut off at a sentence's own limit.
  class Empty : public CountingBatch {
   public:
    using CountingBatch::CountingBatch;
    std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override {
      for (std::size_t i = 0; i < arriving.size(); ++i) {
        told.emplace_back(arriving.max_lengths[i], arriving.options[i]);
      }
      return CountingBatch::update(keep, arriving);
    }
    Pool pool(std::int64_t) const override {
      return {{-std::numeric_limits<float>::infinity()}, {0}, {0}};
    }
    std::vector<std::pair<std::int64_t, const SearchOptions*>> told;
  };
  class Backends : public CountingBackend {
   public:
    Backends() : CountingBackend(0) {}
    std::unique_ptr<Batch> batch(const SearchOptions&, std::int64_t) const override {
      auto made = std::make_unique<Empty>(never_);
      last = made.get();
      return made;
    }
    mutable std::atomic<int> never_ = 0;
    mutable Empty* last = nullptr;
  } backend;
  Search search(backend, options, 100, 2, 3);
  Waiting waiting(pointers(sentences), 1);
  std::vector<double> scores(3);
  const std::atomic<bool> stop = false;
  const auto keep = [&](const Sentence& one, const std::vector<Hypothesis>& found) {
    CHECK(found.size() == 1 && found[0].truncated);
    scores[one.index] = found.at(0).score;
  };
  search.run(waiting, keep, stop);
  CHECK(scores == std::vector<double>({-0.25, -1, -0.25}));  // of a log-probability of -1
  std::size_t owned = 0;
  for (const auto& [most, theirs] : backend.last->told) {
    owned += theirs == &own;
    CHECK(most == (theirs == &own ? 4 : 3));
  }
  CHECK(owned == 1 && backend.last->told.size() == 3);
}

// ---- from a trace to hypotheses ----

void test_hypotheses() {
  // Two beams: 7 8 (beam 0 all along), and 9 10, whose second token continues beam 1 of the first.
  Trace trace;
  trace.steps = {{{7, 9}, {0, 0}, {-1.0f, -2.0f}, {0}, {}, 0},
                 {{10, 8}, {1, 0}, {-2.5f, -3.0f}, {1}, {}, 0}};
  const Sentence sentence = {0, {5}, {}};
  SearchOptions options;
  options.beam_size = 2, options.num_hypotheses = 2, options.max_length = 2;
  options.length_penalty = 0;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  // One ended after its first token, 9, with a log-probability of -2.75.
  const Pool pool = {{-2.75f, kNone}, {2, 0}, {1, 0}};
  const auto found = hypotheses(sentence, SentenceTrace(trace, 0, 0, 2), pool, options);
  CHECK(found.size() == 2);
  CHECK(found[0].tokens == Tokens({9, 10}) && found[0].truncated && found[0].score == -2.5);
  CHECK(found[0].token_log_probs == std::vector<double>({-2.0, -0.5}));
  CHECK(found[1].tokens == Tokens({9}) && !found[1].truncated);
  CHECK(found[1].token_log_probs == std::vector<double>({-2.0, -0.75}));
}

void test_a_sentence_without_any_hypothesis() {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity()}) {
    Trace trace;
    trace.steps = {{{7, 9}, {0, 0}, {value, value}, {1}, {}, 0}};
    const Sentence sentence = {0, {5}, {}};
    SearchOptions options;
    options.beam_size = 2, options.max_length = 1;
    const Pool pool = {{value, value}, {0, 0}, {0, 0}};
    CHECK(contains(
        thrown([&] { hypotheses(sentence, SentenceTrace(trace, 0, 0, 2), pool, options); }),
        "TT_BACKEND_ERROR the model produced no finite probabilities for a sentence of 1 source"));
  }
}

}  // namespace

void test_search() {
  test_waiting();
  test_every_sentence_is_found_once();
  test_a_backend_that_fails_for_good();
  test_sentences_have_options_of_their_own();
  test_hypotheses();
  test_a_sentence_without_any_hypothesis();
}

}  // namespace translate_trt::runtime
