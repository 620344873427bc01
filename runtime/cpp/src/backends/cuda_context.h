// The context of a GPU, and handles of CUDA's driver that belong to it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "backends/cuda_driver.h"
#include "bundle/engine_record.h"

namespace translate_trt::runtime {

// Throws a backend error if the GPU does not exist or is not usable.
void check_gpu(int gpu);

// Name, compute capability and size of a GPU.
GpuModel gpu_model(int gpu);

// Retains the primary context of a GPU, which PyTorch, TensorRT and ONNX Runtime in this process
// use as well.
class CudaContext {
 public:
  // Throws a backend error if the GPU does not exist or is not usable. driver: path of CUDA's
  // driver library.
  explicit CudaContext(int gpu, const std::string& driver = cuda_driver_path());
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int gpu() const { return gpu_; }
  const CudaDriver& driver() const { return driver_; }

  // Makes the context current in the calling thread.
  void activate() const;

  // Makes the context current in a scope. The thread may belong to the host program, whose own
  // context returns afterwards.
  class Scope {
   public:
    explicit Scope(const CudaContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CudaDriver& driver_;
  };

  // Runs `work`, which frees handles, in a scope; drops it if the driver has failed for good.
  template <class Work>
  void free(const Work& work) const noexcept {
    if (driver_.push_context(context_) != cuda::kSuccess) return;
    work();
    cuda::Context popped = nullptr;
    static_cast<void>(driver_.pop_context(&popped));
  }

  // Runs `work` in a temporary thread whose current context is this one, and waits for it. The CUDA
  // runtime inside TensorRT, for example, keeps settings of its own in every thread that calls it.
  void in_thread(const std::function<void()>& work) const;

  // Runs `work`, which frees resources and does not throw, in a temporary thread. Falls back to the
  // caller's thread if no thread can be started or the GPU is lost.
  template <class Work>
  void free_in_thread(const Work& work) const noexcept {
    bool done = false;
    try {
      in_thread([&] { work(), done = true; });
    } catch (const std::exception&) {
      if (!done) work();
    }
  }

  // Sets the free and the total memory of the GPU in bytes.
  void read_memory(std::uint64_t* free_bytes, std::uint64_t* total_bytes) const;

 private:
  int gpu_;
  const CudaDriver& driver_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
};

// A handle or address that a function of the driver frees. An error of that function was reported
// by an earlier call.
template <class Handle, auto free>
class CudaOwned {
 public:
  CudaOwned() = default;
  CudaOwned(const CudaDriver& driver, Handle handle) : driver_(&driver), handle_(handle) {}
  CudaOwned(CudaOwned&& other) noexcept
      : driver_(other.driver_), handle_(std::exchange(other.handle_, Handle{})) {}
  CudaOwned& operator=(CudaOwned&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CudaOwned() {
    if (handle_ != Handle{}) static_cast<void>((driver_->*free)(handle_));
  }

  Handle get() const { return handle_; }

 private:
  const CudaDriver* driver_ = nullptr;
  Handle handle_ = {};
};

using OwnedStream = CudaOwned<cuda::Stream, &CudaDriver::destroy_stream>;
using OwnedEvent = CudaOwned<cuda::Event, &CudaDriver::destroy_event>;
using OwnedGraph = CudaOwned<cuda::Graph, &CudaDriver::destroy_graph>;
using OwnedGraphExec = CudaOwned<cuda::GraphExec, &CudaDriver::destroy_executable>;
using OwnedModule = CudaOwned<cuda::Module, &CudaDriver::unload_module>;
using OwnedMemory = CudaOwned<cuda::Address, &CudaDriver::free>;
using OwnedPinned = CudaOwned<void*, &CudaDriver::free_pinned>;

}  // namespace translate_trt::runtime
