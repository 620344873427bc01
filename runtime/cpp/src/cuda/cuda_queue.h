// A CUDA stream and its memory, using only CUDA's driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/cuda_context.h"
#include "cuda/copy_kernel.h"

namespace translate_trt::runtime {

// Used by one thread at a time, in which its context is current; any other thread may call the
// destructor.
//
// A capture ends in the thread that began it. CUDA invalidates a capture whose thread allocates,
// frees or waits, so these functions throw instead, and no member is freed before the destructor.
class CudaQueue {
 public:
  // Makes the context current in the calling thread.
  explicit CudaQueue(std::shared_ptr<const CudaContext> context);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  // The functions of translate_trt/device.h; failures are thrown.
  void activate();
  std::uint64_t allocate(std::size_t size);
  void* pin(std::size_t size);
  void copy_in(std::uint64_t target, const void* source, std::size_t size);
  void copy_out(void* target, std::uint64_t source, std::size_t size);
  // Small copies are collected, and launched together before any other work. They are made one by
  // one if the driver cannot compile the kernel, as in containers without its PTX compiler.
  void copy(std::uint64_t target, std::uint64_t source, std::size_t width, std::size_t height,
            std::size_t target_pitch, std::size_t source_pitch);
  void fill(std::uint64_t target, int value, std::size_t size);
  cuda::Event record();
  void wait(cuda::Event event);
  void begin_capture();
  // Ends the capture and returns the executable graph.
  cuda::GraphExec end_capture();
  // Ends the capture and discards it.
  void discard_capture();
  void replay(cuda::GraphExec graph);

  // Launches the collected copies. Work of others on the stream needs this call before it.
  void flush();

  // Bytes of device memory that are free, on the whole GPU.
  std::size_t free_memory();

  bool capturing() const { return capturing_; }
  cuda::Stream stream() const { return stream_.get(); }
  const std::shared_ptr<const CudaContext>& context() const { return context_; }

  // Waits for all work and frees the graphs, which must happen before their execution contexts are
  // freed. A second call has no effect.
  void finish();

 private:
  void refuse_capture(const char* function) const;
  bool depends_on_pending(const CopyTask& task) const;

  std::shared_ptr<const CudaContext> context_;
  const CudaDriver& driver_;
  bool capturing_ = false;
  CopyTasks pending_ = {};
  unsigned pending_count_ = 0;
  OwnedModule module_;
  cuda::Function copy_kernel_ = nullptr;  // null: there is none
  OwnedStream stream_;
  std::vector<OwnedPinned> pinned_;
  std::vector<OwnedMemory> memory_;
  std::vector<OwnedEvent> events_;
  std::vector<cuda::Event> spare_events_;
  std::vector<OwnedGraphExec> graphs_;
};

}  // namespace translate_trt::runtime
