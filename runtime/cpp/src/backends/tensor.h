// Arrays of the host that the graphs read and write where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bundle/contract.h"

namespace translate_trt::runtime {

// Memory of large arrays that are gone, for others of like size: pages of the system cost more to
// get than what a batch then copies into them. Not thread-safe.
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

  // A block of at least so many bytes; they hold what an array left, or zeros.
  Block acquire(std::size_t bytes);
  void release(Block block);

 private:
  std::vector<Block> free_;  // oldest first
};

// An array of zeros. A large one has pages of its own, which take up memory once they are written
// and go back to the system with the array: caches change their sizes all the time, and on a heap
// they would leave holes that the next ones do not fit into.
class Tensor {
 public:
  // blocks: where the memory of a large array comes from and goes to. It then holds what other
  // arrays left there, so only arrays of one type may share them.
  Tensor(Type type, std::vector<std::int64_t> shape, std::shared_ptr<BlockPool> blocks = nullptr);

  // `count` rows of another one, from `first` on, in its memory.
  Tensor(std::shared_ptr<Tensor> whole, std::int64_t first, std::int64_t count);
  ~Tensor();
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Type type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t axis(std::size_t index) const { return shape_[index]; }
  std::size_t size() const { return size_; }  // elements
  std::size_t bytes() const { return size_ * size_of(type_); }
  std::size_t row_size() const;  // elements of a row of the first axis

  std::byte* bytes_at(std::int64_t row) const {
    return data_ + row_size() * size_of(type_) * static_cast<std::size_t>(row);
  }

  // Elements from that row of the first axis on.
  template <class T>
  T* row(std::int64_t row = 0) const {
    return reinterpret_cast<T*>(data_) + row_size() * static_cast<std::size_t>(row);
  }

 private:
  std::shared_ptr<Tensor> whole_;  // whose memory it is; none: its own
  Type type_;
  std::vector<std::int64_t> shape_;
  std::size_t size_;
  std::shared_ptr<BlockPool> blocks_;
  std::size_t capacity_ = 0;  // bytes, if the pages are its own
  std::byte* data_;
};

using Array = std::shared_ptr<Tensor>;
using Arrays = std::map<std::string, Array>;

}  // namespace translate_trt::runtime
