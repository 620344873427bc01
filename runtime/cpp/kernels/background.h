// Work that a GEMM does beside its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace translate_trt {

// Weights to prefetch, in lines of 64 bytes.
struct Prefetch {
  const std::int8_t* weights;
  std::size_t lines;
};

constexpr Prefetch kNoPrefetch = {nullptr, 0};

// Work beside a tile: tasks 0, ..., tasks - 1, in this order, which only kernels with tile
// registers run. Pass it by reference: copying fields that were just written one by one waits until
// all earlier stores are done.
struct Background {
  Prefetch prefetch;
  TaskFunction task;
  std::size_t tasks;
};

}  // namespace translate_trt
