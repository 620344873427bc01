#include "workspace.h"

#include <algorithm>
#include <new>
#include <utility>

namespace translate_trt {
namespace {

constexpr std::size_t kAlignment = 64;  // of a cache line, a register, and a row of a tile

}  // namespace

Arena::Arena() = default;

Arena::~Arena() = default;

void Arena::Free::operator()(void* block) const noexcept {
  ::operator delete(block, std::align_val_t{kAlignment});
}

void* Arena::allocate(std::size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || bytes > size_ - used_) {
    // Every new block at least doubles the total.
    const auto size = std::max(bytes, total_);
    std::unique_ptr<void, Free> block(::operator new(size, std::align_val_t{kAlignment}));
    blocks_.push_back(std::move(block));
    total_ = blocks_.size() == 1 ? size : total_ + size;
    size_ = size;
    used_ = 0;
  }
  auto* const array = static_cast<std::byte*>(blocks_.back().get()) + used_;
  used_ += bytes;
  return array;
}

void Arena::reset() noexcept {
  // The next allocation makes one block of the total size.
  if (blocks_.size() > 1) blocks_.clear();
  used_ = 0;
}

WorkspacePool::WorkspacePool() = default;

WorkspacePool::~WorkspacePool() = default;

std::shared_ptr<WorkspacePool> WorkspacePool::shared() {
  static std::mutex mutex;
  static std::weak_ptr<WorkspacePool> in_use;
  const std::lock_guard lock(mutex);
  auto pool = in_use.lock();
  if (pool == nullptr) {
    pool = std::make_shared<WorkspacePool>();
    in_use = pool;
  }
  return pool;
}

Arena& WorkspacePool::acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.reserve(arenas_.size() + 1);  // so that `release` does not allocate
    return *arenas_.emplace_back(std::make_unique<Arena>());
  }
  auto& arena = *free_.back();
  free_.pop_back();
  return arena;
}

void WorkspacePool::release(Arena& arena) noexcept {
  arena.reset();
  const std::lock_guard lock(mutex_);
  free_.push_back(&arena);
}

Workspace::Workspace(WorkspacePool& pool) : arena(pool.acquire()), pool_(pool) {}

Workspace::~Workspace() { pool_.release(arena); }

}  // namespace translate_trt
