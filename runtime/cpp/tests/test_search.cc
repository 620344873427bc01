// The decoding loop on a fake batch, and the back-trace of histories.

#include <limits>
#include <memory>
#include <vector>

#include "bundle/contract.h"
#include "check.h"
#include "core/search.h"
#include "counting_backend.h"

namespace translate_trt::runtime {

namespace {

// A source that returns as many sentences as fit.
class List : public SentenceSource {
 public:
  explicit List(const std::vector<Sentence>& sentences) {
    for (const Sentence& one : sentences) left_.push_back(std::make_shared<const Sentence>(one));
  }

  bool should_join(const Capacity& capacity, std::int64_t size) override {
    return !left_.empty() && capacity.running < size;
  }

  Sentences take(const Capacity& capacity) override {
    Sentences taken;
    while (!left_.empty() &&
           static_cast<std::int64_t>(taken.size()) < capacity.more(left_.back()->length() + 1)) {
      taken.push_back(left_.back());
      left_.pop_back();
    }
    return taken;
  }

  void release(const Sentence& sentence) override { released.push_back(sentence.index); }

  std::vector<std::size_t> released;

 private:
  Sentences left_;
};

void test_capacity() {
  CHECK((Capacity{63}.more(21)) == 3);
  CHECK((Capacity{63, 3, 21, 3}.more(4)) == 0);
  CHECK((Capacity{63, 1, 21, 3}.more(4)) == 2);
  CHECK((Capacity{10}.more(400)) == 1);  // runs alone
  CHECK((Capacity{10, 1, 4, 1}.more(400)) == 0);
  CHECK((Capacity{64}.more(2)) == 8);           // each counts as 8 tokens
  CHECK((Capacity{64, 0, 0, 6}.more(8)) == 6);  // 8 rows are not enough to copy 6
  CHECK((Capacity{64, 0, 0, 5}.more(8)) == 8);
}

void test_sentences_have_options_of_their_own() {
  auto sentences = sentences_of({4, 4, 4});
  SearchOptions options;
  options.beam_size = 1, options.max_length = 3;
  options.length_penalty = 1, options.length_penalty_form = LengthPenaltyForm::kLength;
  for (Sentence& one : sentences) one.options = options;
  sentences[1].options.max_length = 4, sentences[1].options.length_penalty = 0;
  class Watching : public CountingBatch {
   public:
    explicit Watching(std::vector<std::int64_t>& limits) : limits_(limits) {}
    std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override {
      for (std::size_t i = 0; i < arriving.size(); ++i) {
        CHECK(arriving.options[i]->max_length == arriving.max_lengths[i]);
        limits_.push_back(arriving.max_lengths[i]);
      }
      return CountingBatch::update(keep, arriving);
    }

   private:
    std::vector<std::int64_t>& limits_;
  };
  std::vector<std::int64_t> limits;
  const CountingBackend backend([&] { return std::make_unique<Watching>(limits); });
  Search search(backend, options, 100, kModel);
  List list(sentences);
  std::vector<double> ends(3);  // log-probabilities of the end symbol
  const auto keep = [&](const SentencePtr& one, const std::vector<Hypothesis>& found) {
    CHECK(found.size() == 1 && found[0].score == -1);
    ends[one->index] = found[0].token_log_probs.back();
  };
  while (search.advance(list, keep).steps > 0) {
  }
  // With a log-probability of -1, a score of -1 means five tokens or no penalty.
  CHECK(ends == std::vector<double>({-4, 0, -4}));
  CHECK(limits == std::vector<std::int64_t>({3, 4, 3}));
}

void test_dropped_sentences_leave_before_the_next_step() {
  auto sentences = sentences_of({9, 3, 9});
  std::atomic<bool> dropped = false;
  sentences[0].dropped = sentences[2].dropped = &dropped;
  const CountingBackend backend([] { return std::make_unique<CountingBatch>(); });
  SearchOptions options;
  options.beam_size = 1;
  Search search(backend, options, 100, kModel);
  List list(sentences);
  std::vector<std::size_t> finished;
  const auto keep = [&](const SentencePtr& one, const std::vector<Hypothesis>&) {
    finished.push_back(one->index);
  };
  CHECK(search.advance(list, keep).rows == 3 && search.unfinished().size() == 3);
  dropped = true;
  CHECK(search.advance(list, keep).rows == 1 && search.unfinished().size() == 1);
  CHECK(list.released == std::vector<std::size_t>({2, 0}));
  CHECK(search.advance(list, keep).rows == 1 && finished == std::vector<std::size_t>({1}));
  CHECK(search.advance(list, keep).rows == 0);
}

// A batch of several steps at a time, which can be full.
class AheadBatch : public CountingBatch {
 public:
  struct Record {
    std::size_t calls = 0;  // of `step`
    bool refuse = false;    // fail the next update
  };

  AheadBatch(Record& record, std::size_t ahead) : record_(record), ahead_(ahead) {}

  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override {
    if (record_.refuse) throw backend_error("no room");
    return CountingBatch::update(keep, arriving);
  }

  const StepResults& step(const StepInputs& inputs) override {
    ++record_.calls;
    results_.clear();
    for (std::size_t i = 0; i < (inputs.are_for_one_step() ? 1 : ahead_); ++i) {
      results_.push_back(CountingBatch::step(inputs).front());
    }
    return results_;
  }

 private:
  Record& record_;
  std::size_t ahead_;
  StepResults results_;
};

// A batch may not run ahead: a repeated n-gram of the next step is not known yet.
void test_steps_whose_inputs_depend_on_the_last_results_are_single() {
  for (const bool bans : {false, true}) {
    auto sentences = sentences_of({8, 4});
    if (bans) sentences[1].options.no_repeat_ngram_size = 2;
    AheadBatch::Record record;
    const CountingBackend backend([&] { return std::make_unique<AheadBatch>(record, 4); });
    SearchOptions options;
    options.beam_size = 1;
    Search search(backend, options, 100, kModel);
    List list(sentences);
    std::vector<std::size_t> sizes(2);
    const auto keep = [&](const SentencePtr& one, const std::vector<Hypothesis>& found) {
      sizes[one->index] = found.front().tokens.size();
    };
    while (search.advance(list, keep).steps > 0) {
    }
    // Four steps at a time once the other sentence has left the batch.
    CHECK(record.calls == (bans ? 4 + 1 : 2));
    CHECK(sizes == std::vector<std::size_t>({8, 4}));
  }
}

void test_sentences_on_their_way_into_a_batch_are_not_lost() {
  AheadBatch::Record record;
  const CountingBackend backend([&] { return std::make_unique<AheadBatch>(record, 1); });
  SearchOptions options;
  options.beam_size = 1;
  Search search(backend, options, 20, kModel);
  List list(sentences_of({1, 6, 9}));
  const auto ignore = [](const SentencePtr&, const std::vector<Hypothesis>&) {};
  search.advance(list, ignore);
  CHECK(search.unfinished().size() == 2);
  record.refuse = true;
  std::string error;
  for (int i = 0; error.empty() && i < 9; ++i) {
    error = thrown([&] { search.advance(list, ignore); });
  }
  CHECK(error == "TT_BACKEND_ERROR no room");
  CHECK(search.unfinished().back()->index == 0);
}

// ---- back-trace ----

// The n best hypotheses after one step, from the log-probabilities of its two live beams.
std::vector<Hypothesis> after_a_step(const std::vector<float>& live, const Pool& pool,
                                     double length_penalty = 0) {
  History history(2);
  history.append({{7, 9}, {0, 0}, live, {1}, {}, 0}, 0);
  Sentence sentence = {0, {5}, {}, {}};
  sentence.options.beam_size = sentence.options.num_hypotheses = 2;
  sentence.options.length_penalty = length_penalty;
  sentence.options.length_penalty_form = LengthPenaltyForm::kLength;
  return hypotheses(sentence, history, pool);
}

void test_what_was_cut_off() {
  // The second is the truncated beam 0; the first ended at once.
  const auto found = [](float ended, float cut_off) {
    return after_a_step({-1, -2}, {{ended, cut_off}, {1, 1}, {0, 0}, {false, true}});
  };
  // A finished hypothesis comes first, whatever its score.
  for (const auto& both : {found(-3, -2), found(-2, -3), found(-3, -3)}) {
    CHECK(both.size() == 2 && !both[0].truncated && both[0].tokens.empty());
    CHECK(both[1].truncated && both[1].tokens == Tokens({7}));
  }
  const auto only = found(-std::numeric_limits<float>::infinity(), -3);
  CHECK(only.size() == 1 && only[0].truncated);
}

void test_the_log_probability_of_the_end_is_the_score_without_its_penalty() {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const Pool pool = {{-2, kNone}, {2, 0}, {1, 0}, {false, false}};  // after 9, beam 1
  const auto found = after_a_step({-1, -3}, pool, 1.0);
  CHECK(found.front().tokens == Tokens({9}) && found.front().score == -2);
  CHECK(found.front().token_log_probs == std::vector<double>({-3.0, -1.0}));
}

void test_a_sentence_without_any_hypothesis() {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    History history(2);
    history.append({{7, 9}, {0, 0}, {value, value}, {1}, {}, 0}, 0);
    Sentence sentence = {0, {5}, {}, {}};
    sentence.options.beam_size = 2;
    const Pool pool = {{value, value}, {0, 0}, {0, 0}, {false, false}};
    CHECK(hypotheses(sentence, history, pool).empty());
    CHECK(contains(no_hypothesis(sentence).what(), "for a sentence of 1 source tokens"));
  }
}

}  // namespace

void test_search() {
  test_capacity();
  test_sentences_have_options_of_their_own();
  test_dropped_sentences_leave_before_the_next_step();
  test_steps_whose_inputs_depend_on_the_last_results_are_single();
  test_sentences_on_their_way_into_a_batch_are_not_lost();
  test_what_was_cut_off();
  test_the_log_probability_of_the_end_is_the_score_without_its_penalty();
  test_a_sentence_without_any_hypothesis();
}

}  // namespace translate_trt::runtime
