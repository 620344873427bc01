// Reuse of memory by arrays and rows: old contents must not be visible.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "backends/host_batch.h"
#include "check.h"
#include "decoder_shape.h"
#include "device_graphs.h"

namespace translate_trt::runtime {

namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

void test_blocks_serve_again() {
  BlockPool blocks;
  const BlockPool::Block first = blocks.acquire(2 * kMegabyte);
  std::fill_n(first.data, first.capacity, std::byte{7});
  blocks.release(first);
  const BlockPool::Block smaller = blocks.acquire(kMegabyte);
  CHECK(smaller.data == first.data && smaller.capacity == 2 * kMegabyte);
  blocks.release(smaller);
  const BlockPool::Block larger = blocks.acquire(5 * kMegabyte);
  CHECK(larger.capacity == 5 * kMegabyte);
#if defined(__linux__)  // reuses the pages of the first
  CHECK(larger.data[2 * kMegabyte - 1] == std::byte{7});
#endif
  CHECK(larger.data[2 * kMegabyte] == std::byte{0} &&
        larger.data[5 * kMegabyte - 1] == std::byte{0});
  blocks.release(larger);
  const BlockPool::Block small = blocks.acquire(kMegabyte);  // does not take the block of five
  CHECK(small.capacity <= 2 * kMegabyte && small.data[0] == std::byte{7});
  blocks.release(small);
}

void test_blocks_of_like_size_first() {
  BlockPool blocks;
  const BlockPool::Block small = blocks.acquire(kMegabyte), large = blocks.acquire(4 * kMegabyte);
  CHECK(small.data != large.data);
  blocks.release(small);
  blocks.release(large);
  CHECK(blocks.acquire(kMegabyte).data == small.data);
  CHECK(blocks.acquire(3 * kMegabyte).data == large.data);
  blocks.release(small);
  blocks.release(large);
}

void test_views_of_views_keep_the_owner_alone() {
  auto owner = std::make_shared<Tensor>(Type::kInt64, std::vector<std::int64_t>{4, 2});
  owner->row<std::int64_t>(2)[1] = 7;
  auto view = std::make_shared<Tensor>(owner, 1, 3);
  const std::weak_ptr<Tensor> before = view;
  view = std::make_shared<Tensor>(view, 1, 2);
  CHECK(before.expired());
  CHECK(owner.use_count() == 2);
  owner.reset();
  CHECK(view->row<std::int64_t>()[1] == 7 && view->row_size() == 2);
}

constexpr std::int64_t kNanSource = 13;

bool is_nan_row(const Tensor& array, std::int64_t row) {
  const float* first = array.row<float>(row);
  return std::any_of(first, first + array.row_size(), [](float one) { return std::isnan(one); });
}

// Fake graphs of one beam in which a sentence of `kNanSource` fills its state with NaN.
class NanGraphs : public Graphs {
 public:
  explicit NanGraphs(const bool& is_full) : is_full_(is_full) {}

  void encode(const Arrays& inputs, const Arrays& outputs) override {
    const Tensor &ids = *inputs.at("source_ids"), &bias = *outputs.at("source_bias");
    for (std::int64_t row = 0; row < ids.axis(0); ++row) {
      const bool is_nan = ids.row<std::int64_t>(row)[0] == kNanSource;
      const std::int64_t length = inputs.at("source_lengths")->row<std::int64_t>(row)[0];
      for (std::int64_t place = 0; place < ids.axis(1); ++place) {
        bias.row<float>(row)[place] = place < length ? 0 : kMasked;
      }
      for (const char* name : {"cross_key_0", "cross_value_0"}) {
        fill(*outputs.at(name), row, is_nan);
      }
    }
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return [this, inputs, outputs] {
      for (std::int64_t row = 0; row < inputs.at("tokens")->axis(0); ++row) {
        const bool is_idle = inputs.at("done")->row<char>(row)[0] != 0;
        bool is_nan = false;
        for (const char* name : {"cross_key_0", "cross_value_0", "self_key_0", "self_value_0"}) {
          is_nan = is_nan || is_nan_row(*inputs.at(name), row);
        }
        CHECK(!(is_idle && is_nan));
        if (is_nan) {
          for (const char* name : {"self_key_0", "self_value_0"}) fill(*inputs.at(name), row, true);
        }
        for (const char* name : {"tokens", "positions", "done", "slots"}) {
          const Tensor &from = *inputs.at(name), &to = *outputs.at(std::string(kNext) + name);
          std::copy_n(from.bytes_at(row), from.row_size() * size_of(from.type()), to.bytes_at(row));
        }
        outputs.at("next_log_probs")->row<float>(row)[0] =
            is_nan ? std::numeric_limits<float>::quiet_NaN() : 0;
        std::copy_n(inputs.at("ancestry")->row<float>(row), inputs.at("ancestry")->axis(2),
                    outputs.at("next_ancestry")->row<float>(row));
        outputs.at("full")->row<char>(row)[0] = is_full_;
      }
    };
  }

 private:
  static void fill(const Tensor& array, std::int64_t row, bool is_nan) {
    std::fill_n(array.row<float>(row), array.row_size(),
                is_nan ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
  }

  const bool& is_full_;  // whether all rows report full slots
};

struct NanBatch {
  NanBatch(std::int64_t spare_slots, Place place)
      : batch(placed(std::make_unique<NanGraphs>(is_full), place),
              DecoderShape{1, 1, 1, 1, false, {}}, greedy(), 2, array_place(place, spare_slots)) {}

  static SearchOptions greedy() {
    SearchOptions options;
    options.beam_size = 1;
    return options;
  }

  // Creates sentences with these numbers of tokens; negative numbers create NaN sentences.
  void update(const Rows& keep, const std::vector<int>& sizes) {
    static const SearchOptions options = greedy();
    Sources sources;
    sources.options.assign(sizes.size(), &options);
    for (const int size : sizes) {
      const std::int64_t token = size < 0 ? kNanSource : 5;
      sources.tokens.push_back(Tokens(static_cast<std::size_t>(std::abs(size)), token));
      sources.max_lengths.push_back(90);
    }
    batch.update(keep, sources);
  }

  Rows nan_rows() {
    const StepResult& result = batch.step({}).front();
    Rows rows;
    for (std::int64_t row = 0; row < batch.rows(); ++row) {
      if (std::isnan(result.log_probs[static_cast<std::size_t>(row)])) rows.push_back(row);
    }
    return rows;
  }

  bool is_full = false;
  HostBatch batch;
};

// spare_slots: determines whether caches are mapped.
void test_what_became_nan_stays_alone(std::int64_t spare_slots, Place place) {
  NanBatch one(spare_slots, place);
  one.update({}, {8, -8, 8, -8});
  CHECK(one.nan_rows() == Rows({1, 3}));
  one.update({0, 2, 3}, {8});  // the vacated row
  CHECK(one.nan_rows() == Rows({3}));
  one.is_full = true;
  CHECK(one.nan_rows() == Rows({3}));  // then caches grow
  one.is_full = false;
  CHECK(one.nan_rows() == Rows({3}));
  one.update({}, {8, -8, 8, 8, 8, 8, 8, 8});
  CHECK(one.nan_rows() == Rows({1}));
  one.update({1}, {8, 8, 8, 8});  // moves to the front, and another takes its row
  CHECK(one.nan_rows() == Rows({0}));
  one.update({0, 1}, {20, 20, 20, 20, 20, 20, 20});  // other arrays
  CHECK(one.nan_rows() == Rows({0}));
  one.update({0, 6, 7}, {});  // shorter ones
  CHECK(one.nan_rows() == Rows({0}));
  one.update({1, 2}, {3, 3, 3, 3, 3});
  CHECK(one.nan_rows().empty());
  one.update({0}, {-8, -3, -3, -3, -3, -3, -3});
  CHECK(one.nan_rows().size() == 7);
  one.update({}, {5, 5, 5, 5, 5});
  CHECK(one.nan_rows().empty());
}

}  // namespace

void test_host_batch_memory() {
  test_blocks_serve_again();
  test_blocks_of_like_size_first();
  test_views_of_views_keep_the_owner_alone();
  test_what_became_nan_stays_alone(0, Place::kHost);
  test_what_became_nan_stays_alone(200000, Place::kHost);
  test_what_became_nan_stays_alone(0, Place::kDevice);
}

}  // namespace translate_trt::runtime
