// Workspaces of kernels.

#include <cstdint>
#include <cstring>
#include <thread>

#include "kernel_check.h"

namespace translate_trt {
namespace {

void test_arrays_are_aligned_and_stay() {
  Arena arena;
  std::vector<unsigned char*> arrays;
  for (std::size_t i = 0; i < 40; ++i) {
    const auto bytes = i * i * 37;
    arrays.push_back(static_cast<unsigned char*>(arena.allocate(bytes)));
    CHECK(reinterpret_cast<std::uintptr_t>(arrays[i]) % 64 == 0);
    std::memset(arrays[i], static_cast<int>(i), bytes);
  }
  for (std::size_t i = 0; i < 40; ++i) {
    for (std::size_t k = 0; k < i * i * 37; ++k) CHECK(arrays[i][k] == i);
  }
}

void test_memory_is_used_again() {
  Arena arena;
  arena.allocate(100);
  arena.allocate(1000000);
  arena.reset();
  const auto* first = arena.allocate(500000);
  const auto* second = arena.allocate(500000);
  // One block has the size of the two before.
  CHECK(static_cast<const char*>(second) - static_cast<const char*>(first) == 500032);
  arena.reset();
  CHECK(arena.allocate(1) == first);
}

void test_a_workspace_is_nobody_else_s() {
  WorkspacePool pool;
  const Arena* last = nullptr;
  {
    const Workspace one(pool), other(pool);
    CHECK(&one.arena != &other.arena);
    last = &one.arena;
  }
  const Workspace again(pool);
  CHECK(&again.arena == last);
  TestExecutor executor(TestExecutor::Order::threads);
  const TaskFunction task{
      [](const void* closure, std::size_t index) {
        const Workspace mine(*static_cast<WorkspacePool*>(const_cast<void*>(closure)));
        auto* bytes = static_cast<unsigned char*>(mine.arena.allocate(64));
        std::memset(bytes, static_cast<int>(index), 64);
        std::this_thread::yield();
        for (int i = 0; i < 64; ++i) CHECK(bytes[i] == index % 256);
      },
      &pool};
  executor.run(1000, task);
}

void test_the_shared_pool_ends_with_its_last_user() {
  auto pool = WorkspacePool::shared();
  CHECK(WorkspacePool::shared() == pool);
  const std::weak_ptr<WorkspacePool> watched = pool;
  pool.reset();
  CHECK(watched.expired());
}

}  // namespace

void test_workspace() {
  test_arrays_are_aligned_and_stay();
  test_memory_is_used_again();
  test_a_workspace_is_nobody_else_s();
  test_the_shared_pool_ends_with_its_last_user();
}

}  // namespace translate_trt
