#include "fake_cuda.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

namespace rt = translate_trt::runtime;

namespace {

using FakeWork = std::function<void()>;

constexpr int kUnwrittenByte = 0xFF;
constexpr std::align_val_t kFakeAlignment{256};  // of cudaMalloc

thread_local int fake_gpu = 0;
thread_local cudaError_t fake_last_error = cudaSuccess;

struct FakeMemory {
  std::size_t size;
  bool pinned;
  int gpu;
  std::string name;
};
std::map<std::uintptr_t, FakeMemory> fake_memory;  // by address

std::string new_name(const char* kind) {
  return kind + std::to_string(rt::fake_cuda().made[kind]++);
}

}  // namespace

// ---- objects ----

struct CUgraph_st {
  std::string name;
  std::vector<FakeWork> work;
  std::set<const void*> owners;
};

struct CUgraphExec_st {
  std::string name;
  std::vector<FakeWork> work;
  std::set<const void*> owners;
};

struct CUstream_st {
  CUstream_st(std::string own_name, int own_gpu) : name(std::move(own_name)), gpu(own_gpu) {}

  std::string name;
  int gpu;
  std::deque<FakeWork> queue;
  std::size_t asked = 0, done = 0;
  std::unique_ptr<CUgraph_st> capture;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  bool is_valid = true;    // whether the capture is valid
  std::thread::id thread;  // that began the capture

  // Runs the work before a position.
  cudaError_t run_until(std::size_t position) {
    try {
      while (done < position) {
        const FakeWork work = std::move(queue.front());
        queue.pop_front();
        ++done;
        work();
      }
    } catch (const std::exception&) {
      rt::fake_cuda().is_lost = true;
      queue.clear();
      done = asked;
      return cudaErrorIllegalAddress;
    }
    return cudaSuccess;
  }

  cudaError_t enqueue(FakeWork work, const void* owner) {
    if (fake_gpu != gpu) rt::violation("work for another GPU than the thread's");
    if (capture) {
      if (!is_valid) return cudaErrorStreamCaptureInvalidated;
      capture->work.push_back(std::move(work));
      if (owner != nullptr) capture->owners.insert(owner);
      return cudaSuccess;
    }
    queue.push_back(std::move(work));
    ++asked;
    if (rt::fake_cuda().eager) static_cast<void>(run_until(asked));
    return cudaSuccess;
  }
};

struct CUevent_st {
  std::string name;
  CUstream_st* stream = nullptr;  // where it was recorded
  std::size_t position = 0;
  bool is_captured = false;
};

namespace {

std::set<CUstream_st*> fake_streams;
std::set<CUevent_st*> fake_events;
std::set<CUgraph_st*> fake_graphs;
std::set<CUgraphExec_st*> fake_executables;

template <class T>
bool is_alive(const std::set<T*>& all, T* object) {
  return all.count(object) > 0;
}

template <class T>
std::string name_of(const std::set<T*>& all, T* object) {
  return is_alive(all, object) ? object->name : "?";
}

std::string name_of(const void* address) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  const auto next = fake_memory.upper_bound(place);
  if (next == fake_memory.begin()) return "?";
  const auto& [begin, memory] = *std::prev(next);
  if (place > begin + memory.size) return "?";
  return memory.name + (place > begin ? "+" + std::to_string(place - begin) : "");
}

const char* name_of(cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return "HostToDevice";
    case cudaMemcpyDeviceToHost:
      return "DeviceToHost";
    case cudaMemcpyDeviceToDevice:
      return "DeviceToDevice";
    default:
      return "?";
  }
}

template <class First, class... Rest>
std::string listed(const First& first, const Rest&... rest) {
  std::string text;
  if constexpr (std::is_arithmetic_v<First>) {
    text = std::to_string(first);
  } else {
    text = first;
  }
  if constexpr (sizeof...(rest) > 0) text += ", " + listed(rest...);
  return text;
}

void record_call(const char* function, const std::string& arguments) {
  rt::FakeCuda& cuda = rt::fake_cuda();
  ++cuda.calls[function];
  cuda.history.push_back(std::string(function) + "(" + arguments + ")");
}

// A CUDA function: is recorded, fails where the test says so, and is serialized.
template <class Call>
cudaError_t cuda_call(const char* function, const std::string& arguments, const Call& call) {
  rt::FakeCuda& cuda = rt::fake_cuda();
  record_call(function, arguments);
  const bool is_chosen = cuda.call_count++ == cuda.fail_call;
  const auto failing = cuda.failing.find(function);
  cudaError_t code = is_chosen                       ? cuda.fail_code
                     : failing != cuda.failing.end() ? failing->second
                     : cuda.is_lost                  ? cudaErrorIllegalAddress
                                                     : cudaSuccess;
  if (code == cudaSuccess) code = call();
  if (code != cudaSuccess) fake_last_error = code;
  return code;
}

// A CUDA function that frees, which also works on a lost GPU.
template <class T>
cudaError_t cuda_free_call(const char* function, const char* kind, std::set<T*>& all, T* object) {
  record_call(function, name_of(all, object));
  if (all.erase(object) == 0) {
    rt::violation(std::string(function) + " of what is not alive");
    return fake_last_error = cudaErrorInvalidResourceHandle;
  }
  --rt::fake_cuda().alive[kind];
  delete object;
  return cudaSuccess;
}

cudaError_t dead_handle(const char* function) {
  rt::violation(std::string(function) + " with a handle that is not alive");
  return cudaErrorInvalidResourceHandle;
}

// Invalidates the captures that forbid unsafe calls in this thread
// (cudaThreadExchangeStreamCaptureMode); returns whether there are any.
bool forbids_unsafe_calls() {
  bool found = false;
  for (CUstream_st* stream : fake_streams) {
    const bool is_own = stream->thread == std::this_thread::get_id();
    const bool forbids = stream->mode == cudaStreamCaptureModeGlobal ||
                         (stream->mode == cudaStreamCaptureModeThreadLocal && is_own);
    if (!stream->capture || !forbids) continue;
    stream->is_valid = false;
    found = true;
  }
  return found;
}

cudaError_t fake_allocate(void** memory, std::size_t size, bool pinned) {
  if (forbids_unsafe_calls()) return cudaErrorStreamCaptureUnsupported;
  if (size == 0) {
    *memory = nullptr;
    return cudaSuccess;
  }
  std::size_t used = 0;
  for (const auto& [address, one] : fake_memory) {
    if (!one.pinned && one.gpu == fake_gpu) used += one.size;
  }
  if (!pinned && size > rt::fake_cuda().memory - used) return cudaErrorMemoryAllocation;
  *memory = ::operator new(size, kFakeAlignment);
  std::memset(*memory, kUnwrittenByte, size);
  const char* kind = pinned ? "pinned" : "memory";
  fake_memory[reinterpret_cast<std::uintptr_t>(*memory)] = {size, pinned, fake_gpu, new_name(kind)};
  ++rt::fake_cuda().alive[kind];
  return cudaSuccess;
}

cudaError_t fake_free(const char* function, void* memory, bool pinned) {
  const std::lock_guard lock(rt::fake_mutex());
  record_call(function, name_of(memory));
  if (memory == nullptr) return cudaSuccess;
  if (forbids_unsafe_calls()) {
    rt::violation(std::string(function) + " during a capture");
    return fake_last_error = cudaErrorStreamCaptureUnsupported;
  }
  const auto found = fake_memory.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == fake_memory.end() || found->second.pinned != pinned) {
    rt::violation(std::string(function) + " of what is not alive");
    return fake_last_error = cudaErrorInvalidValue;
  }
  fake_memory.erase(found);
  --rt::fake_cuda().alive[pinned ? "pinned" : "memory"];
  ::operator delete(memory, kFakeAlignment);
  return cudaSuccess;
}

#ifdef TRANSLATE_TRT_COPY_KERNEL
std::map<const void*, std::string>& kernel_names() {
  static std::map<const void*, std::string> names;  // by function
  return names;
}
#endif

bool check_copy(const void* target, const void* source, std::size_t size, cudaMemcpyKind kind) {
  const bool writes =
      rt::check_memory("a copy is written", target, size, kind == cudaMemcpyDeviceToHost);
  return rt::check_memory("a copy is read", source, size, kind == cudaMemcpyHostToDevice) && writes;
}

// Checked again, since the memory may have been freed.
void fake_copy(void* target, const void* source, std::size_t size, cudaMemcpyKind kind) {
  if (!check_copy(target, source, size, kind)) throw std::runtime_error("an illegal address");
  const auto* to = static_cast<const char*>(target);
  const auto* from = static_cast<const char*>(source);
  if (size > 0 && to < from + size && from < to + size) rt::violation("a copy overlaps itself");
  std::memmove(target, source, size);
}

}  // namespace

// ---- the runtime ----

extern "C" {

cudaError_t cudaGetLastError(void) { return std::exchange(fake_last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "some other error";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaGetDeviceCount", "", [=] {
    *count = rt::fake_cuda().gpus;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaDeviceGetAttribute", listed(static_cast<int>(attribute), device), [=] {
    const rt::FakeCuda& cuda = rt::fake_cuda();
    if (device >= cuda.gpus) return cudaErrorInvalidDevice;
    if (attribute == cudaDevAttrComputeCapabilityMajor) {
      *value = cuda.capability_major;
    } else if (attribute == cudaDevAttrComputeCapabilityMinor) {
      *value = cuda.capability_minor;
    } else if (attribute == cudaDevAttrMultiProcessorCount) {
      *value = cuda.multiprocessors;
    } else {
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaGetDeviceProperties", listed(device), [=] {
    const rt::FakeCuda& cuda = rt::fake_cuda();
    if (device >= cuda.gpus) return cudaErrorInvalidDevice;
    *properties = {};
    cuda.name.copy(properties->name, sizeof(properties->name) - 1);
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaSetDevice", listed(device), [=] {
    if (device >= rt::fake_cuda().gpus) return cudaErrorInvalidDevice;
    fake_gpu = device;
    rt::fake_cuda().threads.insert(std::this_thread::get_id());
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaMemGetInfo", "", [=] {
    *free = *total = rt::fake_cuda().memory;
    for (const auto& [address, one] : fake_memory) {
      if (!one.pinned && one.gpu == fake_gpu) *free -= one.size;
    }
    return cudaSuccess;
  });
}

// ---- streams ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaStreamCreateWithFlags", listed(flags), [=] {
    if (flags != cudaStreamNonBlocking) rt::violation("a stream that waits for the default one");
    *stream = new CUstream_st(new_name("stream"), fake_gpu);
    fake_streams.insert(*stream);
    ++rt::fake_cuda().alive["stream"];
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  if (is_alive(fake_streams, stream)) {
    if (!stream->queue.empty()) rt::violation("a stream with work is destroyed");
    if (stream->capture) rt::violation("a stream that captures is destroyed");
  }
  return cuda_free_call("cudaStreamDestroy", "stream", fake_streams, stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaStreamSynchronize", name_of(fake_streams, stream), [=] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaStreamSynchronize");
    if (stream->capture) stream->is_valid = false;
    if (forbids_unsafe_calls() || stream->capture) return cudaErrorStreamCaptureUnsupported;
    return stream->run_until(stream->asked);
  });
}

// ---- captures ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(fake_streams, stream), static_cast<int>(mode));
  return cuda_call("cudaStreamBeginCapture", arguments, [=] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaStreamBeginCapture");
    if (stream->capture) {
      stream->is_valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
    stream->capture = std::make_unique<CUgraph_st>();
    stream->mode = mode;
    stream->is_valid = true;
    stream->thread = std::this_thread::get_id();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(rt::fake_mutex());
  *graph = nullptr;
  std::unique_ptr<CUgraph_st> captured;
  // A call that the test lets fail ends the capture, too, as one that was invalidated.
  if (is_alive(fake_streams, stream) && stream->capture &&
      (stream->mode == cudaStreamCaptureModeRelaxed ||
       stream->thread == std::this_thread::get_id())) {
    captured = std::move(stream->capture);
  }
  return cuda_call("cudaStreamEndCapture", name_of(fake_streams, stream), [&] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaStreamEndCapture");
    if (stream->capture) return cudaErrorStreamCaptureWrongThread;
    if (!captured) return cudaErrorStreamCaptureUnmatched;
    if (!stream->is_valid) return cudaErrorStreamCaptureInvalidated;
    captured->name = new_name("graph");
    *graph = captured.release();
    fake_graphs.insert(*graph);
    ++rt::fake_cuda().alive["graph"];
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(fake_graphs, graph), flags);
  return cuda_call("cudaGraphInstantiateWithFlags", arguments, [=] {
    if (!is_alive(fake_graphs, graph)) return dead_handle("cudaGraphInstantiateWithFlags");
    *executable = new CUgraphExec_st{new_name("executable"), graph->work, graph->owners};
    fake_executables.insert(*executable);
    ++rt::fake_cuda().alive["executable"];
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_free_call("cudaGraphDestroy", "graph", fake_graphs, graph);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_free_call("cudaGraphExecDestroy", "executable", fake_executables, executable);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(fake_executables, executable), name_of(fake_streams, stream));
  return cuda_call("cudaGraphLaunch", arguments, [=] {
    if (!is_alive(fake_executables, executable) || !is_alive(fake_streams, stream)) {
      return dead_handle("cudaGraphLaunch");
    }
    return stream->enqueue(
        [work = executable->work] {
          for (const FakeWork& part : work) part();
        },
        nullptr);
  });
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaEventCreateWithFlags", listed(flags), [=] {
    if (flags != (cudaEventBlockingSync | cudaEventDisableTiming)) {
      rt::violation("an event that spins");
    }
    *event = new CUevent_st;
    (*event)->name = new_name("event");
    fake_events.insert(*event);
    ++rt::fake_cuda().alive["event"];
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(fake_events, event), name_of(fake_streams, stream));
  return cuda_call("cudaEventRecord", arguments, [=] {
    if (!is_alive(fake_events, event) || !is_alive(fake_streams, stream)) {
      return dead_handle("cudaEventRecord");
    }
    event->stream = stream;
    event->position = stream->asked;
    event->is_captured = stream->capture != nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaEventSynchronize", name_of(fake_events, event), [=] {
    if (!is_alive(fake_events, event)) return dead_handle("cudaEventSynchronize");
    if (event->is_captured) {
      if (is_alive(fake_streams, event->stream)) event->stream->is_valid = false;
      return cudaErrorCapturedEvent;
    }
    if (forbids_unsafe_calls()) return cudaErrorStreamCaptureUnsupported;
    if (!is_alive(fake_streams, event->stream)) return cudaSuccess;  // never recorded
    return event->stream->run_until(event->position);
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_free_call("cudaEventDestroy", "event", fake_events, event);
}

// ---- memory ----

cudaError_t cudaMalloc(void** memory, size_t size) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaMalloc", listed(size), [=] { return fake_allocate(memory, size, false); });
}

cudaError_t cudaFree(void* memory) { return fake_free("cudaFree", memory, false); }

cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned int flags) {
  const std::lock_guard lock(rt::fake_mutex());
  return cuda_call("cudaHostAlloc", listed(size, flags),
                   [=] { return fake_allocate(memory, size, true); });
}

cudaError_t cudaFreeHost(void* memory) { return fake_free("cudaFreeHost", memory, true); }

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(target), name_of(source), size, name_of(kind), name_of(fake_streams, stream));
  return cuda_call("cudaMemcpyAsync", arguments, [=] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaMemcpyAsync");
    if (!check_copy(target, source, size, kind)) return cudaErrorInvalidValue;
    // Value for reads before the copy has run.
    if (kind == cudaMemcpyDeviceToHost) std::memset(target, kUnwrittenByte, size);
    return stream->enqueue([=] { fake_copy(target, source, size, kind); }, nullptr);
  });
}

cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(target), target_pitch, name_of(source), source_pitch,
                                       width, height, name_of(kind), name_of(fake_streams, stream));
  return cuda_call("cudaMemcpy2DAsync", arguments, [=] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaMemcpy2DAsync");
    if (width > target_pitch || width > source_pitch) return cudaErrorInvalidValue;
    const auto each_row = [=](const auto& copy) {
      for (std::size_t row = 0; row < height; ++row) {
        if (!copy(static_cast<char*>(target) + row * target_pitch,
                  static_cast<const char*>(source) + row * source_pitch)) {
          return false;
        }
      }
      return true;
    };
    if (!each_row([=](void* to, const void* from) { return check_copy(to, from, width, kind); })) {
      return cudaErrorInvalidValue;
    }
    return stream->enqueue(
        [=] {
          each_row(
              [=](void* to, const void* from) { return fake_copy(to, from, width, kind), true; });
        },
        nullptr);
  });
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t size, cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(target), value, size, name_of(fake_streams, stream));
  return cuda_call("cudaMemsetAsync", arguments, [=] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaMemsetAsync");
    if (!rt::check_memory("a fill", target, size, false)) return cudaErrorInvalidValue;
    return stream->enqueue(
        [=] {
          if (!rt::check_memory("a fill", target, size, false)) {
            throw std::runtime_error("an illegal address");
          }
          std::memset(target, value, size);
        },
        nullptr);
  });
}

#ifdef TRANSLATE_TRT_COPY_KERNEL

// ---- kernels ----

// Code that nvcc generates registers the kernels of a library when it is loaded.
// NOLINTBEGIN(bugprone-reserved-identifier): the names are nvcc's.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  kernel_names()[function] = name;
}

// The <<<>>> of a kernel, which the library does not use.
#if CUDART_VERSION >= 12000
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
#endif
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) { return 1; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
  return cudaErrorNotSupported;
}
// NOLINTEND(bugprone-reserved-identifier)

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
  const std::lock_guard lock(rt::fake_mutex());
  const auto& names = kernel_names();
  const auto registered = names.find(function);
  const bool is_known =
      registered != names.end() && registered->second.find("copy_kernel") != std::string::npos;
  const std::string text = listed(is_known ? "copy_kernel" : "?", grid.x, grid.y, block.x, shared,
                                  name_of(fake_streams, stream));
  return cuda_call("cudaLaunchKernel", text, [=] {
    if (!is_alive(fake_streams, stream)) return dead_handle("cudaLaunchKernel");
    if (!is_known) return cudaErrorInvalidDeviceFunction;
    if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || grid.z != 1 || block.y != 1 ||
        block.z != 1 || block.x == 0 || block.x > 1024) {
      return cudaErrorInvalidConfiguration;
    }
    return stream->enqueue(rt::copy_kernel_on_host(grid.x, grid.y, block.x, arguments), nullptr);
  });
}

#endif  // TRANSLATE_TRT_COPY_KERNEL

}  // extern "C"

// ---- for tests and libraries that use CUDA ----

namespace translate_trt::runtime {

int FakeCuda::left() const {
  int sum = 0;
  for (const auto& [kind, count] : alive) sum += count;
  return sum;
}

std::vector<std::string> FakeCuda::take_history() { return std::exchange(history, {}); }

FakeCuda& fake_cuda() {
  static FakeCuda cuda;
  return cuda;
}

std::recursive_mutex& fake_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

void violation(const std::string& what) { fake_cuda().violations.push_back(what); }

bool check_memory(const std::string& what, const void* address, std::size_t size, bool pinned) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  const auto next = fake_memory.upper_bound(place);
  if (next != fake_memory.begin()) {
    const auto& [begin, memory] = *std::prev(next);
    const bool fits = place - begin <= memory.size && size <= memory.size - (place - begin);
    if (fits && memory.pinned == pinned) return true;
  }
  violation(what + " beyond " + (pinned ? "pinned memory" : "the GPU's memory"));
  return false;
}

int current_gpu() { return fake_gpu; }
int gpu_of(cudaStream_t stream) { return stream->gpu; }
bool is_capturing(cudaStream_t stream) { return stream->capture != nullptr; }

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* owner) {
  return stream->enqueue(std::move(work), owner);
}

bool is_in_a_graph(const void* owner) {
  return std::any_of(fake_executables.begin(), fake_executables.end(),
                     [=](const CUgraphExec_st* graph) { return graph->owners.count(owner) > 0; });
}

}  // namespace translate_trt::runtime
