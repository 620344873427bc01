// The loop over steps on a batch that counts, and what is made of a history.

#include <limits>
#include <memory>
#include <vector>

#include "check.h"
#include "counting_backend.h"
#include "search.h"

namespace translate_trt::runtime {

namespace {

// Gives what it has, as much as fits.
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
  CHECK((Capacity{10}.more(400)) == 1);  // it runs alone
  CHECK((Capacity{10, 1, 4, 1}.more(400)) == 0);
  CHECK((Capacity{64}.more(2)) == 8);           // each counts as 8 tokens
  CHECK((Capacity{64, 0, 0, 6}.more(8)) == 6);  // 8 rows are not enough to copy 6
  CHECK((Capacity{64, 0, 0, 5}.more(8)) == 8);
}

void test_sentences_have_options_of_their_own() {
  auto sentences = sentences_of({4, 4, 4});
  SearchOptions options;
  options.beam_size = 1, options.max_length = 3;
  options.length_penalty = 1, options.length_penalty_form = TT_LENGTH_PENALTY_LENGTH;
  for (Sentence& one : sentences) one.options = options;
  sentences[1].options.max_length = 4, sentences[1].options.length_penalty = 0;
  // Their pools are empty, so that hypotheses are what is cut off at a sentence's own limit.
  class Empty : public CountingBatch {
   public:
    explicit Empty(std::vector<std::int64_t>& limits) : limits_(limits) {}
    std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override {
      for (std::size_t i = 0; i < arriving.size(); ++i) {
        CHECK(arriving.options[i]->max_length == arriving.max_lengths[i]);
        limits_.push_back(arriving.max_lengths[i]);
      }
      return CountingBatch::update(keep, arriving);
    }
    Pool pool(std::int64_t) const override {
      return {{-std::numeric_limits<float>::infinity()}, {0}, {0}};
    }

   private:
    std::vector<std::int64_t>& limits_;
  };
  std::vector<std::int64_t> limits;
  const CountingBackend backend([&] { return std::make_unique<Empty>(limits); });
  Search search(backend, options, 100, 2, 3);
  List list(sentences);
  std::vector<double> scores(3);
  const auto keep = [&](const SentencePtr& one, const std::vector<Hypothesis>& found) {
    CHECK(found.size() == 1 && found[0].truncated);
    scores[one->index] = found.at(0).score;
  };
  while (search.advance(list, keep).steps > 0) {
  }
  CHECK(scores == std::vector<double>({-0.25, -1, -0.25}));  // of a log-probability of -1
  CHECK(limits == std::vector<std::int64_t>({3, 4, 3}));
}

void test_dropped_sentences_leave_before_the_next_step() {
  auto sentences = sentences_of({9, 3, 9});
  std::atomic<bool> dropped = false;
  sentences[0].dropped = sentences[2].dropped = &dropped;
  const CountingBackend backend([] { return std::make_unique<CountingBatch>(); });
  SearchOptions options;
  options.beam_size = 1;
  Search search(backend, options, 100, 2, 3);
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

// ---- from a history to hypotheses ----

void test_hypotheses() {
  // Two beams: 7 8 (beam 0 all along), and 9 10, whose second token continues beam 1 of the first.
  // They are in row 0 of the first step, and in row 1 of the second.
  History history(2, 2);
  history.append({{7, 9}, {0, 0}, {-1.0f, -2.0f}, {0}, {0.5f, 0.25f, 0, 0.75f, 0.125f, 0}, 3}, 0);
  history.append(
      {{1, 1, 10, 8}, {1, 1, 1, 0}, {0, 0, -2.5f, -3.0f}, {0, 1}, {9, 9, 9, 9, 1, 2, 3, 4}, 2}, 1);
  Sentence sentence = {0, {5}, {}, {}};
  SearchOptions& options = sentence.options;
  options.beam_size = 2, options.num_hypotheses = 2, options.max_length = 2;
  options.length_penalty = 0, options.return_attention = true;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  // One ended after its first token, 9, with a log-probability of -2.75.
  const Pool pool = {{-2.75f, kNone}, {2, 0}, {1, 0}};
  const auto found = hypotheses(sentence, history, pool);
  CHECK(found.size() == 2);
  CHECK(found[0].tokens == Tokens({9, 10}) && found[0].truncated && found[0].score == -2.5);
  CHECK(found[0].token_log_probs == std::vector<double>({-2.0, -0.5}));
  CHECK(found[0].attention == std::vector<float>({0.5f, 0.25f, 3, 4}));
  CHECK(found[1].tokens == Tokens({9}) && !found[1].truncated);
  CHECK(found[1].token_log_probs == std::vector<double>({-2.0, -0.75}));
}

void test_a_sentence_without_any_hypothesis() {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    History history(2);
    history.append({{7, 9}, {0, 0}, {value, value}, {1}, {}, 0}, 0);
    Sentence sentence = {0, {5}, {}, {}};
    sentence.options.beam_size = 2, sentence.options.max_length = 1;
    const Pool pool = {{value, value}, {0, 0}, {0, 0}};
    CHECK(hypotheses(sentence, history, pool).empty());
    CHECK(contains(no_hypothesis(sentence).what(), "for a sentence of 1 source tokens"));
  }
}

}  // namespace

void test_search() {
  test_capacity();
  test_sentences_have_options_of_their_own();
  test_dropped_sentences_leave_before_the_next_step();
  test_hypotheses();
  test_a_sentence_without_any_hypothesis();
}

}  // namespace translate_trt::runtime
