// Sizes and contents of the arrays that a host batch passes to its graphs.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "checked_batch.h"

namespace translate_trt::runtime {

namespace {

using Calls = std::vector<std::vector<std::int64_t>>;

// Options with which no sentence ends before its maximum length.
SearchOptions steady(int beams) {
  SearchOptions options;
  options.beam_size = beams;
  options.min_length = 1000;
  return options;
}

bool is_zero(const std::byte* data, std::size_t size) {
  return std::all_of(data, data + size, [](std::byte one) { return one == std::byte{0}; });
}

// Whether a range of the third axis is zero in all rows.
bool is_zero(const Tensor& tensor, std::int64_t first, std::int64_t last) {
  const std::size_t size = static_cast<std::size_t>(tensor.axis(3)) * size_of(tensor.type());
  bool found = true;
  for (std::int64_t i = 0; i < tensor.axis(0) * tensor.axis(1); ++i) {
    const auto place = static_cast<std::size_t>(i * tensor.axis(2) + first);
    found = found && is_zero(tensor.bytes_at(0) + place * size,
                             static_cast<std::size_t>(last - first) * size);
  }
  return found;
}

bool is_masked_from(const Arrays& inputs, std::int64_t row, std::int64_t length) {
  const Tensor& bias = *inputs.at("source_bias");
  bool found = true;
  for (std::int64_t place = 0; place < bias.axis(3); ++place) {
    found = found && bias.row<float>(row)[place] == (place < length ? 0 : kMasked);
  }
  return found;
}

void test_new_tensors_are_zeros() {
  for (const std::int64_t size : {100, 1 << 20}) {
    for (int i = 0; i < 3; ++i) {  // later ones reuse written memory
      const Tensor tensor(Type::kFloat32, {size, 1});
      CHECK(is_zero(tensor.bytes_at(0), tensor.bytes()));
      std::memset(tensor.bytes_at(0), 0xFF, tensor.bytes());
    }
  }
}

void test_source_positions() {
  {
    CheckedBatch alone(digest_shape(), steady(2));
    alone.update({}, alone.arrivals({5}));
    alone.step();
    CHECK(alone.source_size() == 5);
  }
  CheckedBatch batch(digest_shape(), steady(2));
  batch.update({}, batch.arrivals({8, 3}));
  batch.step(2);
  CHECK(batch.source_size() == 8);
  batch.update({0, 1}, batch.arrivals({9}));
  batch.step(2);
  CHECK(batch.source_size() == 16 && is_masked_from(batch.log.inputs, 1, 3));
  batch.update({0, 1, 2}, batch.arrivals({20}));
  batch.step(2);
  CHECK(batch.source_size() == 24 && is_masked_from(batch.log.inputs, 2, 9));
  batch.update({0, 1, 2}, {});  // up to 8 surplus positions are kept
  batch.step(2);
  CHECK(batch.source_size() == 24 && batch.rows() == 3);
  batch.update({0, 1}, {});
  batch.step(2);
  CHECK(batch.source_size() == 8);
  batch.update({1}, {});  // 3 tokens
  batch.step(2);
  CHECK(batch.source_size() == 8);
  batch.update({0}, batch.arrivals({30}));
  batch.step(2);
  CHECK(batch.source_size() == 32 && is_masked_from(batch.log.inputs, 0, 3));
  batch.update({0}, {});
  batch.step(2);
  CHECK(batch.source_size() == 3);
}

void test_groups_of_the_encoder() {
  CheckedBatch batch(digest_shape(), steady(1));
  std::vector<std::size_t> sizes = {100, 100, 57, 300};
  sizes.insert(sizes.end(), 26, 10);
  batch.update({}, batch.arrivals(sizes));
  CHECK(batch.log.encoded == Calls({{2, 100}, {1, 57}, {1, 300}, {25, 10}, {1, 10}}));
  batch.step(2);

  // Sentences as long as the arrays, in contiguous and in scattered rows.
  CheckedBatch other(digest_shape(), steady(1));
  other.update({}, other.arrivals({64, 64, 64, 64, 64, 64, 64, 64}));
  CHECK(other.log.encoded == Calls({{4, 64}, {4, 64}}));
  other.step(2);
  other.log.encoded.clear();
  CHECK(other.update({0, 2, 3, 6}, other.arrivals({64, 64, 64, 64})).second == Rows({1, 4, 5, 7}));
  CHECK(other.log.encoded == Calls({{4, 64}}));
  other.step(2);
  other.log.encoded.clear();
  CHECK(other.update({0, 1, 2}, other.arrivals({5, 64, 64, 64, 64})).second ==
        Rows({3, 4, 5, 6, 7}));
  CHECK(other.log.encoded == Calls({{4, 64}, {1, 64}}));
  other.step(2);
}

// Whether arrivals reuse rows and arrays, if these of eight sentences leave.
bool stays_in_its_rows(const Rows& keep, std::size_t arriving, std::size_t size = 8) {
  CheckedBatch batch(digest_shape(), steady(2));
  batch.update({}, batch.arrivals(std::vector<std::size_t>(8, 8)));
  batch.step(3);
  const std::int64_t binds = batch.log.binds;
  const auto [kept, placed] =
      batch.update(keep, batch.arrivals(std::vector<std::size_t>(arriving, size)));
  batch.step(3);  // rows without a sentence must be idle
  const bool stays = batch.log.binds == binds;
  CHECK(batch.rows() == (stays ? 8 : static_cast<std::int64_t>(keep.size() + arriving)));
  if (!stays) return false;
  CHECK(kept == keep);
  batch.update(batch.live(), {});  // then move to new arrays
  batch.step(3);
  CHECK(batch.rows() == static_cast<std::int64_t>(keep.size() + arriving));
  return true;
}

void test_a_quarter_of_the_rows_may_stay_idle() {
  CHECK(stays_in_its_rows({0, 2, 4, 5, 7}, 3));
  CHECK(stays_in_its_rows({1, 2, 3, 4, 6}, 1));   // two idle rows of eight
  CHECK(!stays_in_its_rows({1, 2, 4, 6}, 1));     // three
  CHECK(!stays_in_its_rows({0, 2, 4, 5, 7}, 0));  // no arrivals
  CHECK(!stays_in_its_rows({0, 2, 4, 5, 7}, 4));  // more sentences than rows
  CHECK(!stays_in_its_rows({0, 2, 4, 5, 7}, 3, 9));
  CHECK(stays_in_its_rows({}, 8));
  CHECK(stays_in_its_rows({}, 6));
  CHECK(!stays_in_its_rows({}, 5));
}

void test_spare_slots_and_growth() {
  for (const std::int64_t spare : {0, 64}) {
    CheckedBatch batch(digest_shape(), steady(2), spare);
    std::vector<Arrival> arriving = batch.arrivals({6, 7, 3});
    arriving[2].max_length = 3;  // then its row is idle and reports that it is full
    batch.update({}, arriving);
    std::int64_t expected = spare == 0 ? 16 : 80, growths = 0;
    for (int step = 0; step < 88; ++step) {
      batch.step();
      const std::int64_t used = std::max(batch.sentence(0).slots().rbegin()->first,
                                         batch.sentence(1).slots().rbegin()->first) +
                                1;
      CHECK(used <= batch.slots());
      if (batch.slots() != expected) {
        ++growths;
        CHECK(used > expected);  // not earlier than necessary
        expected += 16 + (spare == 0 ? 0 : 64);
        CHECK(batch.slots() == expected);
      }
    }
    CHECK(spare == 0 ? growths >= 4 : growths == 1);
    CHECK(batch.log.binds == 2 * (1 + growths));  // arrays change only when they grow
  }
}

void test_slots_of_those_that_left_are_given_back() {
  const auto slots_after = [](int steps) {
    CheckedBatch batch(digest_shape(), steady(1));
    batch.update({}, batch.arrivals({8}));
    batch.step(steps);
    batch.update({0}, batch.arrivals({8}));
    batch.step();
    batch.update({1}, {});
    batch.step(3);
    return batch.slots();
  };
  CHECK(slots_after(14) == 16);
  CHECK(slots_after(20) == 32);  // not worth a copy
  CHECK(slots_after(40) == 16);
}

void test_memory_is_given_back() {
  CheckedBatch batch(digest_shape(), steady(2));
  batch.log.keep_inputs = false;
  const auto expired = [](const auto& one) { return one.expired(); };
  const auto is_gone = [&](const std::vector<std::weak_ptr<Tensor>>& arrays) {
    return !arrays.empty() && std::all_of(arrays.begin(), arrays.end(), expired);
  };
  batch.update({}, batch.arrivals({8, 30, 8, 8}));
  batch.step(3);
  std::vector<std::weak_ptr<Tensor>> past = batch.log.bound;
  batch.update({0, 1, 3}, {});  // a view of the same arrays
  batch.step(3);
  CHECK(!is_gone(past));
  batch.update({0, 2}, {});  // encoder outputs move to narrower arrays
  CHECK(std::any_of(past.begin(), past.end(), expired) && !is_gone(past));
  batch.step(3);
  past = batch.log.bound;
  CHECK(!is_gone(past));
  batch.step(20);  // they grow
  CHECK(std::count_if(past.begin(), past.end(), [](const auto& one) { return one.expired(); }) > 0);
  batch.update({}, {});
  CHECK(is_gone(past) && is_gone(batch.log.bound));
  batch.update({}, batch.arrivals({8, 8, 8, 8}));
  batch.step();
  past = batch.log.bound;
  batch.update({}, batch.arrivals({8}));  // the old arrays are larger than necessary
  CHECK(is_gone(past));
  batch.step();
  batch.update({}, {});
  CHECK(is_gone(batch.log.bound));
}

// In a new batch, masked values must be zero: a real step multiplies them by zero.
void test_what_was_never_written_is_zeros() {
  for (const Type type : {Type::kFloat32, Type::kFloat16}) {
    DecoderShape shape = digest_shape();
    shape.form.cache_type = type;
    const Contract contract = shape;
    CheckedBatch batch(shape, steady(2), 16);
    batch.log.on_step = [&](const Arrays& inputs) {
      std::int64_t written = 0;
      for (const std::int64_t row : batch.live()) {
        const auto& slots = batch.sentence(row).slots();
        if (!slots.empty()) written = std::max(written, slots.rbegin()->first + 1);
      }
      for (const TensorSpec& spec : contract.caches()) {
        const Tensor& cache = *inputs.at(spec.name);
        CHECK(is_zero(cache, written, cache.axis(2)));
      }
      for (const TensorSpec& spec : vectors(contract.encoder_outputs)) {
        CHECK(is_zero(*inputs.at(spec.name), 5, 8));  // the encoder wrote 5 positions
      }
    };
    batch.update({}, batch.arrivals({5, 3}));
    batch.step(60);
    CHECK(batch.slots() > 32);
  }
}

}  // namespace

void test_host_batch_arrays() {
  test_new_tensors_are_zeros();
  test_source_positions();
  test_groups_of_the_encoder();
  test_a_quarter_of_the_rows_may_stay_idle();
  test_spare_slots_and_growth();
  test_slots_of_those_that_left_are_given_back();
  test_memory_is_given_back();
  test_what_was_never_written_is_zeros();
}

}  // namespace translate_trt::runtime
