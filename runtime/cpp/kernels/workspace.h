// Scratch memory of the kernels: arenas, and a pool that lends them for a call or a task.
//
// Files that are compiled for special instructions include this one, so that nothing here is
// inline (docs/kernels.md).
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace translate_trt {

// Memory that is allocated array by array and freed as a whole.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialized bytes, aligned to 64, which stay where they are until `reset`.
  void* allocate(std::size_t bytes);

  // Free all arrays, and keep memory for as many.
  void reset() noexcept;

 private:
  struct Free {
    void operator()(void* block) const noexcept;
  };

  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::size_t used_ = 0, size_ = 0;  // bytes of the last block
  std::size_t total_ = 0;            // bytes of all blocks, and of the next if there is none
};

// Arenas for as many calls and tasks as run at the same time.
class WorkspacePool {
 public:
  WorkspacePool();
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  // The pool of all operators of all sessions, freed with the last of them. One pool serves all,
  // so that an operator works in memory that the one before it has left in the cache.
  static std::shared_ptr<WorkspacePool> shared();

  // Any thread. The arena used last comes first.
  Arena& acquire();
  void release(Arena& arena) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<Arena*> free_;
};

// An arena of the pool, as long as this lives.
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
