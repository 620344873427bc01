#include "cuda/cuda_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

constexpr const char* kChooseCpu = "Choose an onnx target to run on the CPU.";
constexpr const char* kUseLess =
    "Lower workers, or export engines with a smaller --max-batch or --profiles.";

// Wider rows are copied by the runtime, at the speed of the memory; the kernel would use one block
// for a row.
constexpr std::size_t kWidestRow = 64 * 1024;

void* pointer_of(std::uint64_t address) { return reinterpret_cast<void*>(address); }

int attribute_of(int gpu, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, gpu), "cudaDeviceGetAttribute");
  return value;
}

// The bytes from the first row to the last one.
std::uint64_t extent(const CopyTask& task, std::uint64_t pitch) {
  return (task.height - 1) * pitch + task.width;
}

bool overlaps(std::uint64_t first, std::uint64_t size, std::uint64_t second,
              std::uint64_t second_size) {
  return first < second + second_size && second < first + size;
}

}  // namespace

void check_cuda(cudaError_t code, const char* function) {
  if (code == cudaSuccess) return;
  // Reset the error, which the next caller of cudaGetLastError, such as TensorRT, would get
  // otherwise.
  static_cast<void>(cudaGetLastError());
  if (code == cudaErrorMemoryAllocation) {
    throw backend_error(std::string("the GPU is out of memory. ") + kUseLess);
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

void read_gpu_memory(int gpu, std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  on_gpu(gpu, [=] {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    *free_bytes = free, *total_bytes = total;
  });
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
  pending_count_ = 0;
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
  const cudaError_t code = cudaMalloc(&memory, std::max<std::size_t>(1, size));
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw backend_error("the GPU is out of memory: " + std::to_string(size) +
                        " bytes are needed, and " + std::to_string(free_memory()) + " are free. " +
                        kUseLess);
  }
  check_cuda(code, "cudaMalloc");
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
                                     " bytes of memory left that can be pinned. " + kUseLess);
  }
  check_cuda(code, "cudaHostAlloc");
  CudaOwned<void*, cudaFreeHost> owned(memory);
  pinned_.push_back(std::move(owned));
  return memory;
}

void CudaQueue::copy_in(std::uint64_t target, const void* source, std::size_t size) {
  flush();
  check_cuda(cudaMemcpyAsync(pointer_of(target), source, size, cudaMemcpyHostToDevice, stream()),
             "cudaMemcpyAsync");
}

void CudaQueue::copy_out(void* target, std::uint64_t source, std::size_t size) {
  flush();
  check_cuda(cudaMemcpyAsync(target, pointer_of(source), size, cudaMemcpyDeviceToHost, stream()),
             "cudaMemcpyAsync");
}

void CudaQueue::copy(std::uint64_t target, std::uint64_t source, std::size_t width,
                     std::size_t height, std::size_t target_pitch, std::size_t source_pitch) {
  if (width == 0 || height == 0) return;
  CopyTask task = {target, source, width, height, target_pitch, source_pitch};
  if (height == 1 || (width == target_pitch && width == source_pitch)) {
    task = {target, source, width * height, 1, 0, 0};
  }
  if (!kHasCopyKernel || task.width > kWidestRow) {
    flush();
    copy_now(task);
    return;
  }
  if (depends_on_pending(task)) flush();
  pending_.tasks[pending_count_++] = task;
  if (pending_count_ == kCopyTasks) flush();
}

void CudaQueue::copy_now(const CopyTask& task) {
  void *target = pointer_of(task.target), *source = pointer_of(task.source);
  if (task.height == 1) {
    check_cuda(cudaMemcpyAsync(target, source, task.width, cudaMemcpyDeviceToDevice, stream()),
               "cudaMemcpyAsync");
    return;
  }
  check_cuda(cudaMemcpy2DAsync(target, task.target_pitch, source, task.source_pitch, task.width,
                               task.height, cudaMemcpyDeviceToDevice, stream()),
             "cudaMemcpy2DAsync");
}

// Whether a task must run after a collected one.
bool CudaQueue::depends_on_pending(const CopyTask& task) const {
  const std::uint64_t written = extent(task, task.target_pitch);
  const std::uint64_t read = extent(task, task.source_pitch);
  return std::any_of(pending_.tasks, pending_.tasks + pending_count_, [&](const CopyTask& other) {
    const std::uint64_t other_written = extent(other, other.target_pitch);
    return overlaps(task.target, written, other.target, other_written) ||
           overlaps(task.source, read, other.target, other_written) ||
           overlaps(task.target, written, other.source, extent(other, other.source_pitch));
  });
}

void CudaQueue::flush() {
  const unsigned count = std::exchange(pending_count_, 0);
  if constexpr (kHasCopyKernel) {
    if (count > 0) check_cuda(launch_copies(pending_, count, stream()), "cudaLaunchKernel");
  }
}

void CudaQueue::fill(std::uint64_t target, int value, std::size_t size) {
  flush();
  check_cuda(cudaMemsetAsync(pointer_of(target), value, size, stream()), "cudaMemsetAsync");
}

cudaEvent_t CudaQueue::record() {
  // An event of a capture cannot be waited for.
  refuse_capture("cudaEventRecord");
  flush();
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
  flush();
  // Thread-local: calls of other threads do not invalidate the capture.
  check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  capturing_ = true;
}

cudaGraphExec_t CudaQueue::end_capture() {
  try {
    flush();
  } catch (const Error&) {
    discard_capture();
    throw;
  }
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
  pending_count_ = 0;
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
  flush();
  check_cuda(cudaGraphLaunch(graph, stream()), "cudaGraphLaunch");
}

}  // namespace translate_trt::runtime
