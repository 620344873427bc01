// Host arrays, which graphs read and write in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bundle/contract.h"

namespace translate_trt::runtime {

// Memory of freed large arrays, for reuse by arrays of similar size: mapping new pages costs more
// than copying a batch into them. Not thread-safe.
class BlockPool {
 public:
  struct Block {
    std::byte* data;
    std::size_t capacity;  // bytes
  };

  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns a block of at least that size, with the contents of a freed array or zeros.
  Block acquire(std::size_t bytes);
  void release(Block block);

 private:
  std::vector<Block> free_;  // oldest first
};

// An array of zeros. A large array has its own mapping, which uses memory once it is written and is
// returned to the system with the array: caches are resized often and would fragment a heap.
class Tensor {
 public:
  // blocks: pool that provides the memory of a large array, with the contents of earlier arrays.
  // Only arrays of one type may share a pool.
  Tensor(Type type, std::vector<std::int64_t> shape, std::shared_ptr<BlockPool> blocks = nullptr);

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

  std::byte* bytes_at(std::int64_t row) const {
    return data_ + row_size() * size_of(type_) * static_cast<std::size_t>(row);
  }

  // Elements starting at a row of the first axis.
  template <class T>
  T* row(std::int64_t row = 0) const {
    return reinterpret_cast<T*>(data_) + row_size() * static_cast<std::size_t>(row);
  }

 private:
  std::shared_ptr<Tensor> whole_;  // array that this one is a view of; null for an owner
  Type type_;
  std::vector<std::int64_t> shape_;
  std::size_t size_;
  std::shared_ptr<BlockPool> blocks_;
  std::size_t capacity_ = 0;  // bytes of the mapping, if any
  std::byte* data_;
};

using Array = std::shared_ptr<Tensor>;
using Arrays = std::map<std::string, Array>;

}  // namespace translate_trt::runtime
