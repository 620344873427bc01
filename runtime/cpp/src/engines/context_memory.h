// Memory of stream contexts.
#pragma once

#include <cstdint>

#include "engines/stream_context.h"

namespace translate_trt::runtime {

// Bytes that a stream context allocates.
struct ContextMemory {
  std::uint64_t device = 0, pinned = 0;
};

// Measures a stream context without a device: its constructor runs on functions that only count.
ContextMemory context_memory(const Contract& contract, const EngineSettings& settings);

// Memory of a device in bytes.
struct GpuMemory {
  std::uint64_t free = 0, total = 0;
};

}  // namespace translate_trt::runtime
