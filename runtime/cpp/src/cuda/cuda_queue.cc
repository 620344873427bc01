#include "cuda/cuda_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/errors.h"

namespace translate_trt::runtime {

namespace {

constexpr const char* kChooseCpu = "Choose an onnx target to run on the CPU.";

void* pointer_of(std::uint64_t address) { return reinterpret_cast<void*>(address); }

int attribute_of(int gpu, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, gpu), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void check_cuda(cudaError_t code, const char* function) {
  if (code == cudaSuccess) return;
  // Reset the error, which the next caller of cudaGetLastError, such as TensorRT, would get
  // otherwise.
  static_cast<void>(cudaGetLastError());
  if (code == cudaErrorMemoryAllocation) {
    throw backend_error(
        "the GPU is out of memory. Lower workers, or export engines with a smaller --max-batch or "
        "--profiles.");
  }
  throw backend_error(std::string(function) + " failed: " + cudaGetErrorString(code) + ".");
}

void check_gpu(int gpu) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw backend_error("no NVIDIA GPU can be used: " + std::string(cudaGetErrorString(code)) +
                        ". nvidia-smi shows what the driver sees. " + kChooseCpu);
  }
  if (count == 0) throw backend_error(std::string("there is no NVIDIA GPU. ") + kChooseCpu);
  if (gpu >= 0 && gpu < count) return;
  throw backend_error("there is no GPU cuda:" + std::to_string(gpu) + "; this process sees " +
                      std::to_string(count) + ", which begin with cuda:0.");
}

std::string compute_capability(int gpu) {
  return std::to_string(attribute_of(gpu, cudaDevAttrComputeCapabilityMajor)) + "." +
         std::to_string(attribute_of(gpu, cudaDevAttrComputeCapabilityMinor));
}

std::string gpu_name(int gpu) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return properties.name;
}

int multiprocessors(int gpu) { return attribute_of(gpu, cudaDevAttrMultiProcessorCount); }

// Setting and restoring the device in the caller's thread would create a CUDA context, of some
// hundred megabytes, on a GPU that the program may never have used.
void on_gpu(int gpu, const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      check_cuda(cudaSetDevice(gpu), "cudaSetDevice");
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

// ---- the queue ----

CudaQueue::CudaQueue(int gpu) : gpu_(gpu) {
  activate();
  cudaStream_t stream = nullptr;
  // The default stream, and streams that synchronize with it, cannot be captured.
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  stream_.reset(stream);
}

// Members are destroyed before the objects that they use; the stream is last.
CudaQueue::~CudaQueue() { finish(); }

void CudaQueue::finish() {
  if (cudaStreamSynchronize(stream()) != cudaSuccess) static_cast<void>(cudaGetLastError());
  graphs_.clear();
}

void CudaQueue::activate() { check_cuda(cudaSetDevice(gpu_), "cudaSetDevice"); }

void CudaQueue::refuse_capture(const char* function) const {
  if (!capturing_) return;
  throw backend_error(std::string(function) + " is not permitted during a capture.");
}

std::uint64_t CudaQueue::allocate(std::size_t size) {
  refuse_capture("cudaMalloc");
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, std::max<std::size_t>(1, size)), "cudaMalloc");
  CudaOwned<void*, cudaFree> owned(memory);
  memory_.push_back(std::move(owned));
  return reinterpret_cast<std::uint64_t>(memory);
}

void* CudaQueue::pin(std::size_t size) {
  refuse_capture("cudaHostAlloc");
  void* memory = nullptr;
  const cudaError_t code =
      cudaHostAlloc(&memory, std::max<std::size_t>(1, size), cudaHostAllocDefault);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw Error(TT_MEMORY_ERROR, "the host has no " + std::to_string(size) +
                                     " bytes of memory left that can be pinned. Lower workers, or "
                                     "export engines with a smaller --max-batch or --profiles.");
  }
  check_cuda(code, "cudaHostAlloc");
  CudaOwned<void*, cudaFreeHost> owned(memory);
  pinned_.push_back(std::move(owned));
  return memory;
}

void CudaQueue::copy_in(std::uint64_t target, const void* source, std::size_t size) {
  check_cuda(cudaMemcpyAsync(pointer_of(target), source, size, cudaMemcpyHostToDevice, stream()),
             "cudaMemcpyAsync");
}

void CudaQueue::copy_out(void* target, std::uint64_t source, std::size_t size) {
  check_cuda(cudaMemcpyAsync(target, pointer_of(source), size, cudaMemcpyDeviceToHost, stream()),
             "cudaMemcpyAsync");
}

void CudaQueue::copy(std::uint64_t target, std::uint64_t source, std::size_t width,
                     std::size_t height, std::size_t target_pitch, std::size_t source_pitch) {
  if (height == 1 || (width == target_pitch && width == source_pitch)) {
    check_cuda(cudaMemcpyAsync(pointer_of(target), pointer_of(source), width * height,
                               cudaMemcpyDeviceToDevice, stream()),
               "cudaMemcpyAsync");
    return;
  }
  check_cuda(cudaMemcpy2DAsync(pointer_of(target), target_pitch, pointer_of(source), source_pitch,
                               width, height, cudaMemcpyDeviceToDevice, stream()),
             "cudaMemcpy2DAsync");
}

void CudaQueue::fill(std::uint64_t target, int value, std::size_t size) {
  check_cuda(cudaMemsetAsync(pointer_of(target), value, size, stream()), "cudaMemsetAsync");
}

cudaEvent_t CudaQueue::record() {
  // An event of a capture cannot be waited for.
  refuse_capture("cudaEventRecord");
  if (spare_events_.empty()) {
    cudaEvent_t made = nullptr;
    // Blocking sync: waiting threads sleep, since the device already has its next round.
    check_cuda(cudaEventCreateWithFlags(&made, cudaEventBlockingSync | cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
    CudaOwned<cudaEvent_t, cudaEventDestroy> owned(made);
    spare_events_.reserve(events_.size() + 1);  // so that `wait` does not allocate
    events_.push_back(std::move(owned));
    spare_events_.push_back(made);
  }
  const cudaEvent_t event = spare_events_.back();
  check_cuda(cudaEventRecord(event, stream()), "cudaEventRecord");
  spare_events_.pop_back();
  return event;
}

void CudaQueue::wait(cudaEvent_t event) {
  refuse_capture("cudaEventSynchronize");
  spare_events_.push_back(event);  // it is recorded again only after this call
  check_cuda(cudaEventSynchronize(event), "cudaEventSynchronize");
}

void CudaQueue::begin_capture() {
  // Thread-local: calls of other threads do not invalidate the capture.
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  capturing_ = true;
}

cudaGraphExec_t CudaQueue::end_capture() {
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  check_cuda(cudaStreamEndCapture(stream(), &captured), "cudaStreamEndCapture");
  const CudaOwned<cudaGraph_t, cudaGraphDestroy> graph(captured);
  cudaGraphExec_t executable = nullptr;
  // This function has the same signature in CUDA 11.4, 12 and 13.
  check_cuda(cudaGraphInstantiateWithFlags(&executable, captured, 0),
             "cudaGraphInstantiateWithFlags");
  CudaOwned<cudaGraphExec_t, cudaGraphExecDestroy> owned(executable);
  graphs_.push_back(std::move(owned));
  return executable;
}

void CudaQueue::discard_capture() {
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream(), &captured));
  if (captured != nullptr) static_cast<void>(cudaGraphDestroy(captured));
  static_cast<void>(cudaGetLastError());
}

std::size_t CudaQueue::free_memory() {
  refuse_capture("cudaMemGetInfo");
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

void CudaQueue::replay(cudaGraphExec_t graph) {
  check_cuda(cudaGraphLaunch(graph, stream()), "cudaGraphLaunch");
}

}  // namespace translate_trt::runtime
