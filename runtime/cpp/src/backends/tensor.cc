#include "backends/tensor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

constexpr std::size_t kMinMappedBytes = std::size_t{1} << 20;  // larger arrays are mapped
constexpr std::size_t kAlignment = 64;                         // of smaller arrays: a cache line

// Arrays are resized one after another, so one or two free blocks serve all of them.
constexpr std::size_t kMaxFree = 2;
// Maximum capacity of a reused block, relative to the requested bytes.
constexpr std::size_t kMaxSpare = 2;

std::size_t element_count(const std::vector<std::int64_t>& shape) {
  std::size_t size = 1;
  for (const auto axis : shape) {
    if (axis < 0 || __builtin_mul_overflow(size, static_cast<std::size_t>(axis), &size)) {
      throw std::bad_alloc();
    }
  }
  return size;
}

std::byte* allocate_zeros(std::size_t bytes) {
  const std::size_t whole = (bytes / kAlignment + 1) * kAlignment;  // at least one byte
  auto* data = static_cast<std::byte*>(::operator new(whole, std::align_val_t{kAlignment}));
  std::fill_n(data, whole, std::byte{0});
  return data;
}

}  // namespace

BlockPool::~BlockPool() {
  for (const Block& block : free_) free(block);
}

BlockPool::Block BlockPool::allocate(std::size_t bytes) const {
  if (device_ != nullptr) return {device_->allocate(bytes), bytes};
  return {map_pages(bytes), bytes};
}

void BlockPool::free(Block block) const {
  if (device_ != nullptr) {
    device_->release(block.data);
  } else {
    unmap_pages(block.data, block.capacity);
  }
}

BlockPool::Block BlockPool::acquire(std::size_t bytes) {
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    if (block->capacity < bytes || block->capacity / kMaxSpare > bytes) continue;
    const Block taken = *block;
    free_.erase(block);
    return taken;
  }
  if (!free_.empty() && device_ == nullptr) {
    // Reuses the pages of the block; further pages are allocated on first write.
    const Block last = free_.back();
    if (std::byte* data = remap_pages(last.data, last.capacity, bytes)) {
      free_.pop_back();
      return {data, bytes};
    }
  }
  return allocate(bytes);
}

void BlockPool::release(Block block) {
  free_.push_back(block);
  if (free_.size() <= kMaxFree) return;
  free(free_.front());
  free_.erase(free_.begin());
}

Tensor::Tensor(Type type, std::vector<std::int64_t> shape, std::shared_ptr<BlockPool> blocks)
    : type_(type),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      blocks_(std::move(blocks)) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(size_, size_of(type), &bytes)) throw std::bad_alloc();
  if (blocks_ != nullptr) device_ = blocks_->device();
  if (bytes < kMinMappedBytes && device_ == nullptr) {
    data_ = allocate_zeros(bytes);
  } else {
    // A block has at least one byte.
    const BlockPool::Block block = blocks_ ? blocks_->acquire(std::max<std::size_t>(bytes, 1))
                                           : BlockPool::Block{map_pages(bytes), bytes};
    data_ = block.data;
    capacity_ = block.capacity;
  }
}

Tensor::Tensor(Type type, std::vector<std::int64_t> shape, std::byte* data,
               std::shared_ptr<void> owner, DeviceMemory* device)
    : owner_(std::move(owner)),
      device_(device),
      type_(type),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      data_(data) {}

Tensor::Tensor(std::shared_ptr<Tensor> whole, std::int64_t first, std::int64_t count)
    : device_(whole->device_),
      type_(whole->type_),
      shape_(whole->shape_),
      size_(whole->row_size() * static_cast<std::size_t>(count)),
      data_(whole->address(first)) {
  shape_[0] = count;
  // Not a view: a chain of views, one for each change of a batch, would keep them all.
  owner_ = whole->owner_ ? whole->owner_ : std::move(whole);
}

Tensor::~Tensor() {
  if (owner_) return;
  if (capacity_ == 0) {
    ::operator delete(data_, std::align_val_t{kAlignment});
  } else if (blocks_) {
    blocks_->release({data_, capacity_});
  } else {
    unmap_pages(data_, capacity_);
  }
}

void Tensor::clear(std::int64_t row, std::int64_t count) const {
  const std::size_t bytes = row_size() * size_of(type_) * static_cast<std::size_t>(count);
  if (device_ != nullptr) {
    device_->clear(address(row), bytes);
  } else {
    std::memset(address(row), 0, bytes);
  }
}

void copy_blocks(const Tensor& to, Blocks to_at, const Tensor& from, Blocks from_at,
                 std::size_t width, std::size_t rows) {
  if (to.device() != from.device()) {
    throw std::logic_error("a copy between the host and a device within a batch");
  }
  if (to.device() != nullptr) {
    to.device()->copy(to_at, from_at, width, rows);
  } else {
    copy_host_blocks(to_at, from_at, width, rows);
  }
}

std::size_t Tensor::row_size() const {
  return shape_.empty() || shape_[0] == 0 ? size_ : size_ / static_cast<std::size_t>(shape_[0]);
}

}  // namespace translate_trt::runtime
