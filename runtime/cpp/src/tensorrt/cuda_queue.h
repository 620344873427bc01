// A stream of a GPU, and memory that belongs to it (runtime/backends/cuda.py). Only the CUDA
// runtime is called.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace translate_trt::runtime {

// A backend error that says which call failed and why, unless it succeeded.
void check_cuda(cudaError_t code, const char* function);

// Refuses a GPU that is not there, or that no driver makes usable. A backend error.
void check_gpu(int gpu);

// Such as "8.6".
std::string compute_capability(int gpu);

// Runs `work` in a thread of its own on that GPU, and waits for it. Each thread has a current GPU;
// that of the caller, a thread of somebody else's program, stays as it is.
void on_gpu(int gpu, const std::function<void()>& work);

// Hands a pointer to a function of CUDA that frees it.
template <auto function>
struct CudaFree {
  template <class T>
  void operator()(T* handle) const {
    // What fails now has failed before.
    static_cast<void>(function(handle));
  }
};

template <class Handle, auto function>
using CudaOwned = std::unique_ptr<std::remove_pointer_t<Handle>, CudaFree<function>>;

// By one thread at a time, on which the GPU is current; the destructor by any.
class CudaQueue {
 public:
  // Makes the GPU the current one of the calling thread.
  explicit CudaQueue(int gpu);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  // Functions of translate_trt/device.h, whose failures are errors.
  void activate();
  std::uint64_t allocate(std::size_t size);
  void* pin(std::size_t size);
  void copy_in(std::uint64_t target, const void* source, std::size_t size);
  void copy_out(void* target, std::uint64_t source, std::size_t size);
  void copy(std::uint64_t target, std::uint64_t source, std::size_t width, std::size_t height,
            std::size_t target_pitch, std::size_t source_pitch);
  void fill(std::uint64_t target, int value, std::size_t size);
  cudaEvent_t record();
  void wait(cudaEvent_t event);
  void begin_capture();
  // What was captured, to be replayed.
  cudaGraphExec_t end_capture();
  // Forgets what was captured, of which nothing runs.
  void discard_capture();
  void replay(cudaGraphExec_t graph);

  bool capturing() const { return capturing_; }
  cudaStream_t stream() const { return stream_.get(); }
  int gpu() const { return gpu_; }

  // Waits for all work and frees the graphs, which must go before the contexts whose work they
  // hold. A second call does nothing.
  void finish();

 private:
  int gpu_;
  bool capturing_ = false;
  CudaOwned<cudaStream_t, cudaStreamDestroy> stream_;
  std::vector<CudaOwned<void*, cudaFreeHost>> pinned_;
  std::vector<CudaOwned<void*, cudaFree>> memory_;
  std::vector<CudaOwned<cudaEvent_t, cudaEventDestroy>> events_;
  std::vector<cudaEvent_t> spare_events_;
  std::vector<CudaOwned<cudaGraphExec_t, cudaGraphExecDestroy>> graphs_;
};

}  // namespace translate_trt::runtime
