// Moving of rows between the arrays of a host batch.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "backends/host_batch.h"
#include "check.h"
#include "decoder_shape.h"

namespace translate_trt::runtime {

namespace {

// Fake graphs that trace moves: the encoder writes token ids to the cross-attention keys, and the
// step writes them to its cache slot.
class TracingGraphs : public Graphs {
 public:
  void encode(const Arrays& inputs, const Arrays& outputs) override {
    const Tensor& ids = *inputs.at("source_ids");
    const Tensor& lengths = *inputs.at("source_lengths");
    const Tensor& bias = *outputs.at("source_bias");
    const Tensor& key = *outputs.at("cross_key_0");
    for (std::int64_t row = 0; row < ids.axis(0); ++row) {
      for (std::int64_t place = 0; place < ids.axis(1); ++place) {
        const bool is_there = place < lengths.row<std::int64_t>(row)[0];
        bias.row<float>(row)[place] = is_there ? 0 : kMasked;
        key.row<std::uint16_t>(row)[place] =
            static_cast<std::uint16_t>(ids.row<std::int64_t>(row)[place]);
      }
    }
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return [inputs, outputs] {
      const std::int64_t rows = inputs.at("tokens")->axis(0),
                         slots = inputs.at("ancestry")->axis(2);
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto slot = inputs.at("slots")->row<std::int64_t>(row)[0];
        const auto position = inputs.at("positions")->row<std::int64_t>(row)[0];
        outputs.at("next_positions")->row<std::int64_t>(row)[0] = position + 1;
        inputs.at("self_key_0")->row<std::uint16_t>(row)[slot] =
            static_cast<std::uint16_t>(100 + position);
        float* ancestry = outputs.at("next_ancestry")->row<float>(row);
        std::copy_n(inputs.at("ancestry")->row<float>(row), slots, ancestry);
        ancestry[slot] = 0;
        outputs.at("next_slots")->row<std::int64_t>(row)[0] = slot + 1;
        outputs.at("full")->row<char>(row)[0] = slot + 1 >= slots;
        outputs.at("next_done")->row<char>(row)[0] = 0;
        // The slots of the past must hold the written values in order.
        std::int64_t next = 0;
        for (std::int64_t s = 0; s < slots; ++s) {
          if (ancestry[s] != 0) continue;
          if (inputs.at("self_key_0")->row<std::uint16_t>(row)[s] != 100 + next) {
            throw std::logic_error("lost");
          }
          ++next;
        }
        if (next != position + 1) throw std::logic_error("shifted");
        const auto first = inputs.at("cross_key_0")->row<std::uint16_t>(row)[0];
        outputs.at("next_tokens")->row<std::int64_t>(row)[0] = first;
      }
    };
  }
};

void test_rows_keep_what_is_theirs() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.cache_type = Type::kFloat16;
  SearchOptions options;
  options.beam_size = 1;
  HostBatch batch(std::make_unique<TracingGraphs>(), shape, options, 2, ArrayPlace{nullptr, {0}});
  const auto source = [](std::int64_t token, std::size_t size) { return Tokens(size, token); };
  batch.update({}, {{source(11, 9), source(12, 4), source(13, 3)}, {90, 90, 90}});
  for (int i = 0; i < 40; ++i) batch.step({});  // grows twice
  auto [kept, placed] = batch.update({0, 2}, {{source(14, 5)}, {90}});
  CHECK(kept == Rows({0, 2}) && placed == Rows({1}));  // the vacated row
  CHECK(batch.step({}).front().tokens == Rows({11, 14, 13}));
  std::tie(kept, placed) = batch.update({1, 2}, {{source(15, 30), source(16, 2)}, {90, 90}});
  CHECK(kept == Rows({0, 1}) && placed == Rows({2, 3}) && batch.rows() == 4);
  for (int i = 0; i < 30; ++i) CHECK(batch.step({}).front().tokens == Rows({14, 13, 15, 16}));
  std::tie(kept, placed) = batch.update({1}, {});
  CHECK(batch.step({}).front().tokens == Rows({13}) && batch.rows() == 1);
}

// Rows at the end move into vacated rows, and new ones are appended.
void test_a_batch_shrinks_in_its_arrays() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.cache_type = Type::kFloat16;
  SearchOptions options;
  options.beam_size = 1;
  HostBatch batch(std::make_unique<TracingGraphs>(), shape, options, 2, ArrayPlace{nullptr, {64}});
  Sources sources;
  for (std::int64_t token = 11; token < 17; ++token) {
    sources.tokens.push_back(Tokens(5, token));
    sources.max_lengths.push_back(90);
  }
  batch.update({}, sources);
  for (int i = 0; i < 5; ++i) batch.step({});
  auto [kept, placed] = batch.update({0, 4, 5}, {});
  CHECK(kept == Rows({0, 1, 2}) && placed.empty() && batch.rows() == 3);
  CHECK(batch.step({}).front().tokens == Rows({11, 15, 16}));
  std::tie(kept, placed) = batch.update({1, 2}, {});
  CHECK(kept == Rows({1, 0}) && batch.rows() == 2);
  for (int i = 0; i < 40; ++i) CHECK(batch.step({}).front().tokens == Rows({16, 15}));
}

// Fake graphs whose beam drops its first tokens from its past, like a beam that continues another,
// and whose next token takes the lowest free slot.
class ForgettingGraphs : public TracingGraphs {
 public:
  static constexpr std::int64_t kForgotten = 5;
  explicit ForgettingGraphs(std::vector<std::int64_t>& slots) : slots_(slots) {}

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return [this, inputs, outputs] {
      const Tensor& ancestry = *inputs.at("ancestry");
      const std::int64_t places = ancestry.axis(2);
      slots_.clear();
      for (std::int64_t row = 0; row < ancestry.axis(0); ++row) {
        const auto slot = inputs.at("slots")->row<std::int64_t>(row)[0];
        const auto position = inputs.at("positions")->row<std::int64_t>(row)[0];
        slots_.push_back(slot);
        inputs.at("self_key_0")->row<std::uint16_t>(row)[slot] =
            static_cast<std::uint16_t>(100 + position);
        float* next = outputs.at("next_ancestry")->row<float>(row);
        std::copy_n(ancestry.row<float>(row), places, next);
        next[slot] = 0;
        if (position == kForgotten) std::fill_n(next, kForgotten, kMasked);
        std::int64_t free = 0;
        while (free < places && next[free] == 0) ++free;
        outputs.at("full")->row<char>(row)[0] = free == places;
        outputs.at("next_slots")->row<std::int64_t>(row)[0] = free == places ? 0 : free;
        outputs.at("next_positions")->row<std::int64_t>(row)[0] = position + 1;
        outputs.at("next_done")->row<char>(row)[0] = 0;
      }
    };
  }

 private:
  std::vector<std::int64_t>& slots_;
};

void test_slots_keep_their_places() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.cache_type = Type::kFloat16;
  SearchOptions options;
  options.beam_size = 1;
  const auto expected = [](std::int64_t step) {
    // Slots 0 to 5, then the freed ones, then new ones.
    const auto kForgotten = ForgettingGraphs::kForgotten;
    if (step <= kForgotten) return step;
    return step <= 2 * kForgotten ? step - kForgotten - 1 : step - kForgotten;
  };
  std::vector<std::int64_t> slots;
  HostBatch batch(std::make_unique<ForgettingGraphs>(slots), shape, options, 2,
                  ArrayPlace{nullptr, {0}});
  batch.update({}, {{Tokens(4, 11), Tokens(4, 12)}, {90, 90}});
  for (std::int64_t step = 0; step < 60; ++step) {
    if (step == 8) batch.update({1}, {{Tokens(9, 13), Tokens(2, 14)}, {90, 90}});  // moves
    if (step == 25) batch.update({0, 2}, {});
    batch.step({});  // grows sometimes
    CHECK(slots[0] == expected(step));
    if (step >= 8) CHECK(slots[1] == expected(step - 8));
  }
}

// Fake graphs that only record the request of a step.
class WatchingGraphs : public TracingGraphs {
 public:
  explicit WatchingGraphs(Arrays& seen) : seen_(seen) {}
  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return [this, inputs, step = TracingGraphs::bind(inputs, outputs)] {
      seen_ = inputs;
      step();
    };
  }

 private:
  Arrays& seen_;
};

void test_rows_have_options_of_their_own() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.cache_type = Type::kFloat16;
  SearchOptions options, own;
  options.beam_size = own.beam_size = 1;
  own.length_penalty = 2, own.length_penalty_form = LengthPenaltyForm::kLength;
  own.num_hypotheses = 4, own.early_stopping = true, own.min_length = 3;
  Arrays seen;
  HostBatch batch(std::make_unique<WatchingGraphs>(seen), shape, options, 2,
                  ArrayPlace{nullptr, {0}});
  const auto has = [&](std::int64_t row, const SearchOptions& expected, std::int64_t most) {
    return seen.at("length_penalty_alpha")->row<float>(row)[0] ==
               static_cast<float>(expected.length_penalty) &&
           seen.at("length_penalty_beta")->row<float>(row)[0] ==
               static_cast<float>(expected.length_penalty_beta()) &&
           seen.at("num_hypotheses")->row<std::int64_t>(row)[0] == expected.num_hypotheses &&
           seen.at("early_stopping")->row<bool>(row)[0] == expected.early_stopping &&
           seen.at("min_lengths")->row<std::int64_t>(row)[0] == expected.min_length &&
           seen.at("max_lengths")->row<std::int64_t>(row)[0] == most;
  };
  const Tokens source = {11, 3};
  batch.update({}, {{source, source, source}, {7, 8, 9}, {nullptr, &own, &options}});
  batch.step({});
  CHECK(has(0, options, 7) && has(1, own, 8) && has(2, options, 9));
  batch.update({1}, {{source}, {6}});  // the request moves with its row
  batch.step({});
  CHECK(has(0, own, 8) && has(1, options, 6));
  batch.update({1}, {{source}, {5}, {&own}});  // the vacated row
  batch.step({});
  CHECK(batch.rows() == 2 && has(0, own, 5) && has(1, options, 6));
}

void test_options_that_no_row_has_add_no_columns() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.cache_type = Type::kFloat16;
  Contract contract = shape;
  contract.request.push_back({kMarkedTokens, Type::kInt64, {kN, kK, kB}});
  contract.request.push_back({kMarkedFactors, Type::kFloat32, {kN, kK, kB}});
  SearchOptions options;
  options.beam_size = 1;
  Arrays seen;
  HostBatch batch(std::make_unique<WatchingGraphs>(seen), contract, options, 2,
                  ArrayPlace{nullptr, {0}});
  const auto columns = [&] { return seen.at(kMarkedTokens)->axis(2); };
  batch.update({}, {{{11, 3}, {12, 3}}, {7, 8}});
  batch.step({});
  CHECK(columns() == 0);
  StepInputs inputs;
  inputs.marked = {1, {5, 6}, {2, 3}};
  batch.step(inputs);
  CHECK(columns() == 1 && seen.at(kMarkedTokens)->row<std::int64_t>(1)[0] == 6);
  batch.step({});
  CHECK(columns() == 0);
}

}  // namespace

void test_host_batch() {
  test_rows_keep_what_is_theirs();
  test_a_batch_shrinks_in_its_arrays();
  test_slots_keep_their_places();
  test_rows_have_options_of_their_own();
  test_options_that_no_row_has_add_no_columns();
}

}  // namespace translate_trt::runtime
