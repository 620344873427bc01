// One kernel for many small copies within device memory. Admitting sentences to a batch copies
// hundreds of rows, and a call of the driver for each takes longer than the copies.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define TRANSLATE_TRT_DEVICE __device__
#else
#define TRANSLATE_TRT_DEVICE  // compiled for the host by tests
#endif

namespace translate_trt::runtime {

// Copies `height` rows of `width` bytes. Pitches are distances in bytes between starts of rows.
struct CopyTask {
  std::uint64_t target, source;
  std::uint64_t width, height;
  std::uint64_t target_pitch, source_pitch;
};

// Tasks of a launch. They are a parameter of the kernel, which may have 4 KiB.
inline constexpr unsigned kCopyTasks = 80;
struct CopyTasks {
  CopyTask tasks[kCopyTasks];
};
static_assert(sizeof(CopyTasks) <= 4096, "a kernel's parameters have 4 KiB");

// A block per task and `kCopyBlocks` of its rows; the threads copy a row together.
inline constexpr unsigned kCopyBlocks = 8, kCopyThreads = 128;

// ---- the work of a thread ----

struct alignas(16) CopyUnit {
  std::uint64_t halves[2];
};

template <class Unit>
TRANSLATE_TRT_DEVICE void copy_units(const CopyTask& task, unsigned block, unsigned thread) {
  for (std::uint64_t row = block; row < task.height; row += kCopyBlocks) {
    auto* target = reinterpret_cast<Unit*>(task.target + row * task.target_pitch);
    const auto* source = reinterpret_cast<const Unit*>(task.source + row * task.source_pitch);
    for (std::uint64_t i = thread; i < task.width / sizeof(Unit); i += kCopyThreads) {
      target[i] = source[i];
    }
  }
}

// Copies the share of a thread, in the largest units that addresses, width and pitches permit.
TRANSLATE_TRT_DEVICE inline void copy_share(const CopyTask& task, unsigned block, unsigned thread) {
  const std::uint64_t bits =
      task.target | task.source | task.width | task.target_pitch | task.source_pitch;
  if (bits % sizeof(CopyUnit) == 0) {
    copy_units<CopyUnit>(task, block, thread);
  } else if (bits % sizeof(std::uint64_t) == 0) {
    copy_units<std::uint64_t>(task, block, thread);
  } else if (bits % sizeof(std::uint32_t) == 0) {
    copy_units<std::uint32_t>(task, block, thread);
  } else {
    copy_units<unsigned char>(task, block, thread);
  }
}

}  // namespace translate_trt::runtime
