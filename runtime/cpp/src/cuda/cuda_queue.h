// A CUDA stream and its memory (runtime/backends/cuda.py), using only the CUDA runtime API.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/copy_kernel.h"

namespace translate_trt::runtime {

// Throws a backend error, which names the function and the reason, unless the code is a success.
void check_cuda(cudaError_t code, const char* function);

// Throws a backend error if the GPU does not exist or is not usable.
void check_gpu(int gpu);

// Compute capability of a GPU, such as "8.6".
std::string compute_capability(int gpu);

// Name of a GPU, such as "NVIDIA H100 PCIe".
std::string gpu_name(int gpu);

// Number of streaming multiprocessors of a GPU.
int multiprocessors(int gpu);

// Sets the free and the total memory of a GPU in bytes. The caller's current GPU does not change.
void read_gpu_memory(int gpu, std::uint64_t* free_bytes, std::uint64_t* total_bytes);

// Runs `work` on a GPU in a temporary thread and waits for it. The caller's current GPU, which
// belongs to the host program, does not change.
void on_gpu(int gpu, const std::function<void()>& work);

// Runs `work`, which frees resources and does not throw, on the GPU. Falls back to the caller's
// thread if no thread can be started or the GPU is lost.
template <class Work>
void free_on_gpu(int gpu, const Work& work) noexcept {
  bool done = false;
  try {
    on_gpu(gpu, [&] { work(), done = true; });
  } catch (const std::exception&) {
    if (!done) work();
  }
}

// Deleter that calls a CUDA function.
template <auto function>
struct CudaFree {
  template <class T>
  void operator()(T* handle) const {
    // An error here was reported by an earlier call. Reset it, as check_cuda does.
    if (function(handle) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }
};

template <class Handle, auto function>
using CudaOwned = std::unique_ptr<std::remove_pointer_t<Handle>, CudaFree<function>>;

// Used by one thread at a time, in which the GPU is current; any other thread may call the
// destructor.
//
// A capture ends in the thread that began it. CUDA invalidates a capture whose thread allocates,
// frees or waits, so these functions throw instead, and no member is freed before the destructor.
class CudaQueue {
 public:
  // Makes the GPU current in the calling thread.
  explicit CudaQueue(int gpu);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  // The functions of translate_trt/device.h; failures are thrown.
  void activate();
  std::uint64_t allocate(std::size_t size);
  void* pin(std::size_t size);
  void copy_in(std::uint64_t target, const void* source, std::size_t size);
  void copy_out(void* target, std::uint64_t source, std::size_t size);
  // Small copies are collected, and launched together before any other work.
  void copy(std::uint64_t target, std::uint64_t source, std::size_t width, std::size_t height,
            std::size_t target_pitch, std::size_t source_pitch);
  void fill(std::uint64_t target, int value, std::size_t size);
  cudaEvent_t record();
  void wait(cudaEvent_t event);
  void begin_capture();
  // Ends the capture and returns the executable graph.
  cudaGraphExec_t end_capture();
  // Ends the capture and discards it.
  void discard_capture();
  void replay(cudaGraphExec_t graph);

  // Launches the collected copies. Work of others on the stream needs this call before it.
  void flush();

  // Bytes of device memory that are free, on the whole GPU.
  std::size_t free_memory();

  bool capturing() const { return capturing_; }
  cudaStream_t stream() const { return stream_.get(); }
  int gpu() const { return gpu_; }

  // Waits for all work and frees the graphs, which must happen before their execution contexts are
  // freed. A second call has no effect.
  void finish();

 private:
  void refuse_capture(const char* function) const;
  void copy_now(const CopyTask& task);
  bool depends_on_pending(const CopyTask& task) const;

  int gpu_;
  bool capturing_ = false;
  CopyTasks pending_ = {};
  unsigned pending_count_ = 0;
  CudaOwned<cudaStream_t, cudaStreamDestroy> stream_;
  std::vector<CudaOwned<void*, cudaFreeHost>> pinned_;
  std::vector<CudaOwned<void*, cudaFree>> memory_;
  std::vector<CudaOwned<cudaEvent_t, cudaEventDestroy>> events_;
  std::vector<cudaEvent_t> spare_events_;
  std::vector<CudaOwned<cudaGraphExec_t, cudaGraphExecDestroy>> graphs_;
};

}  // namespace translate_trt::runtime
