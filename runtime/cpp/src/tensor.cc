#include "tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace translate_trt::runtime {

namespace {

constexpr std::size_t kOwnPages = std::size_t{1} << 20;  // bytes from which on pages are its own
constexpr std::size_t kAlignment = 64;  // of smaller ones: a line of the processor's cache

std::size_t product(const std::vector<std::int64_t>& shape) {
  std::size_t size = 1;
  for (const auto axis : shape) {
    if (axis < 0 || __builtin_mul_overflow(size, static_cast<std::size_t>(axis), &size)) {
      throw std::bad_alloc();
    }
  }
  return size;
}

std::byte* allocate(std::size_t bytes) {
  void* data = nullptr;
  if (bytes >= kOwnPages) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
  } else {
    const std::size_t whole = (bytes / kAlignment + 1) * kAlignment;  // at least one byte
    data = std::aligned_alloc(kAlignment, whole);
    if (data == nullptr) throw std::bad_alloc();
    std::fill_n(static_cast<std::byte*>(data), whole, std::byte{0});
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

Tensor::Tensor(Type type, std::vector<std::int64_t> shape)
    : type_(type), shape_(std::move(shape)), size_(product(shape_)) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(size_, size_of(type), &bytes)) throw std::bad_alloc();
  data_ = allocate(bytes);
}

Tensor::Tensor(std::shared_ptr<Tensor> whole, std::int64_t first, std::int64_t count)
    : whole_(std::move(whole)),
      type_(whole_->type_),
      shape_(whole_->shape_),
      size_(whole_->row_size() * static_cast<std::size_t>(count)),
      data_(whole_->bytes_at(first)) {
  shape_[0] = count;
}

Tensor::~Tensor() {
  if (whole_) return;
  if (bytes() >= kOwnPages) {
    munmap(data_, bytes());
  } else {
    std::free(data_);
  }
}

std::size_t Tensor::row_size() const {
  return shape_.empty() || shape_[0] == 0 ? size_ : size_ / static_cast<std::size_t>(shape_[0]);
}

}  // namespace translate_trt::runtime
