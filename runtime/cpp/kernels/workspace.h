// Workspaces of the kernels: arenas, and a pool that lends them to calls and tasks.
//
// Files that are compiled for special instructions include this header, so it must not contain
// inline functions (docs/kernels.md).
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace translate_trt {

// An arena: arrays are allocated one by one and freed together.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Allocates uninitialized bytes, aligned to 64 bytes and valid until `reset`.
  void* allocate(std::size_t bytes);

  // Frees all arrays and keeps their memory for reuse.
  void reset() noexcept;

 private:
  struct Free {
    void operator()(void* block) const noexcept;
  };

  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::size_t used_ = 0, size_ = 0;  // bytes of the last block
  std::size_t total_ = 0;  // bytes of all blocks; size of the next one if blocks_ is empty
};

// A pool with an arena for every call and task that runs at the same time.
class WorkspacePool {
 public:
  WorkspacePool();
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  // The pool that all operators of all sessions share, freed with the last of them. Sharing lets an
  // operator reuse memory that the previous one has left in the CPU cache.
  static std::shared_ptr<WorkspacePool> shared();

  // Returns the arena that was used last. Thread-safe.
  Arena& acquire();
  void release(Arena& arena) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<Arena*> free_;
};

// Borrows an arena from a pool during its lifetime.
class Workspace {
 public:
  explicit Workspace(WorkspacePool& pool);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  Arena& arena;

 private:
  WorkspacePool& pool_;
};

}  // namespace translate_trt
