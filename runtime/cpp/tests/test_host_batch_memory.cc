// Reuse of blocks of memory, and views of arrays.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "backends/tensor.h"
#include "check.h"

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

}  // namespace

void test_host_batch_memory() {
  test_blocks_serve_again();
  test_blocks_of_like_size_first();
  test_views_of_views_keep_the_owner_alone();
}

}  // namespace translate_trt::runtime
