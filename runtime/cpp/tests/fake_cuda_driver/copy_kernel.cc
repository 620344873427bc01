// The copy kernel on the host: the function that each thread of the GPU runs, in all threads.

#include <cstdint>
#include <stdexcept>

#include "cuda/copy_kernel.h"
#include "fake_cuda_driver/fake_driver.h"

namespace translate_trt::runtime {

namespace {

bool is_within_memory(const CopyTask& task) {
  bool is_valid = true;
  for (std::uint64_t row = 0; row < task.height; ++row) {
    auto* target = reinterpret_cast<void*>(task.target + row * task.target_pitch);
    auto* source = reinterpret_cast<void*>(task.source + row * task.source_pitch);
    is_valid = check_memory("the copy kernel writes", target, task.width, false) &&
               check_memory("the copy kernel reads", source, task.width, false) && is_valid;
  }
  return is_valid;
}

// Whether rows that a task writes have bytes of rows that another one reads or writes.
bool depends(const CopyTask& writer, const CopyTask& other) {
  for (std::uint64_t row = 0; row < writer.height; ++row) {
    const std::uint64_t begin = writer.target + row * writer.target_pitch;
    for (std::uint64_t next = 0; next < other.height; ++next) {
      for (const std::uint64_t place :
           {other.target + next * other.target_pitch, other.source + next * other.source_pitch}) {
        if (begin < place + other.width && place < begin + writer.width) return true;
      }
    }
  }
  return false;
}

}  // namespace

FakeWork copy_kernel_on_host(const FakeLaunch& launch) {
  const unsigned tasks = launch.grid_x;
  if (tasks > kCopyTasks || launch.grid_y != kCopyBlocks || launch.grid_z != 1 ||
      launch.block_x != kCopyThreads || launch.block_y != 1 || launch.block_z != 1) {
    violation("a launch of the copy kernel with another grid");
  }
  return [=, all = *static_cast<const CopyTasks*>(launch.arguments[0])] {
    for (unsigned x = 0; x < tasks; ++x) {
      if (!is_within_memory(all.tasks[x])) throw std::runtime_error("an illegal address");
      for (unsigned other = 0; other < tasks; ++other) {
        if (other != x && depends(all.tasks[x], all.tasks[other])) {
          violation("copies of one launch depend on one another");
        }
      }
    }
    // The order of blocks and threads is any: this is the opposite of the usual one.
    for (unsigned x = tasks; x-- > 0;) {
      for (unsigned y = kCopyBlocks; y-- > 0;) {
        for (unsigned thread = kCopyThreads; thread-- > 0;) copy_share(all.tasks[x], y, thread);
      }
    }
  };
}

}  // namespace translate_trt::runtime
