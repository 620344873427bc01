// Arrays in host or device memory, which graphs read and write in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/device_memory.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Memory of freed large arrays, for reuse by arrays of similar size: mapping new pages costs more
// than copying a batch into them, and so does allocating on a GPU. Not thread-safe.
class BlockPool {
 public:
  struct Block {
    std::byte* data;
    std::size_t capacity;  // bytes
  };

  // device: memory of the blocks; null: host memory.
  explicit BlockPool(std::shared_ptr<DeviceMemory> device = nullptr) : device_(std::move(device)) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns a block of at least that size, with the contents of a freed array or zeros.
  Block acquire(std::size_t bytes);
  void release(Block block);

  DeviceMemory* device() const { return device_.get(); }

 private:
  Block allocate(std::size_t bytes) const;
  void free(Block block) const;

  std::shared_ptr<DeviceMemory> device_;
  std::vector<Block> free_;  // oldest first
};

// An array of zeros. A large array has its own mapping, which uses memory once it is written and is
// returned to the system with the array: caches are resized often and would fragment a heap.
//
// The elements of an array in device memory can only be copied (`copy_blocks`, `clear`).
class Tensor {
 public:
  // blocks: pool that provides the memory of a large array, or of every array on a device, with the
  // contents of earlier arrays. Only arrays of one type may share a pool.
  Tensor(Type type, std::vector<std::int64_t> shape, std::shared_ptr<BlockPool> blocks = nullptr);

  // A view of memory that `owner` keeps alive. device: where the memory is; null: on the host.
  Tensor(Type type, std::vector<std::int64_t> shape, std::byte* data, std::shared_ptr<void> owner,
         DeviceMemory* device = nullptr);

  // A view of `count` rows of another array, starting at `first`.
  Tensor(std::shared_ptr<Tensor> whole, std::int64_t first, std::int64_t count);
  ~Tensor();
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Type type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t axis(std::size_t index) const { return shape_[index]; }
  std::size_t size() const { return size_; }  // elements
  std::size_t bytes() const { return size_ * size_of(type_); }
  std::size_t row_size() const;  // elements per index of the first axis

  DeviceMemory* device() const { return device_; }  // null: the array is in host memory

  // Address of a row of the first axis, in host or device memory.
  std::byte* address(std::int64_t row = 0) const {
    return data_ + row_size() * size_of(type_) * static_cast<std::size_t>(row);
  }

  // Bytes of a row of the first axis of an array in host memory.
  std::byte* bytes_at(std::int64_t row) const {
    check_host();
    return address(row);
  }

  // Elements starting at a row of the first axis of an array in host memory.
  template <class T>
  T* row(std::int64_t row = 0) const {
    check_host();
    return reinterpret_cast<T*>(data_) + row_size() * static_cast<std::size_t>(row);
  }

  // Clears rows of the first axis.
  void clear(std::int64_t row, std::int64_t count = 1) const;

 private:
  void check_host() const {
    if (device_ != nullptr) throw std::logic_error("host access to an array on a device");
  }

  std::shared_ptr<void> owner_;  // owner of the memory of a view; null for an owner
  DeviceMemory* device_ = nullptr;
  Type type_;
  std::vector<std::int64_t> shape_;
  std::size_t size_;
  std::shared_ptr<BlockPool> blocks_;
  std::size_t capacity_ = 0;  // bytes of the mapping, if any
  std::byte* data_;
};

// Copies `rows` blocks of `width` bytes between two arrays that are both in host memory, or both on
// one device. to_at, from_at: addresses in the arrays.
void copy_blocks(const Tensor& to, Blocks to_at, const Tensor& from, Blocks from_at,
                 std::size_t width, std::size_t rows);

using Array = std::shared_ptr<Tensor>;
using Arrays = std::map<std::string, Array>;

}  // namespace translate_trt::runtime
