#define FAKE_CUDA_DRIVER_BUILD
#include "fake_cuda_driver/fake_driver.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>

namespace rt = translate_trt::runtime;
namespace cuda = rt::cuda;

namespace {

constexpr int kUnwrittenByte = 0xFF;
constexpr int kMostGpus = 8;
constexpr std::align_val_t kPinnedAlignment{256};

// Errors of cuda.h.
constexpr cuda::Result kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201,
                       kInvalidHandle = 400, kNotFound = 500, kIllegalAddress = 700,
                       kCaptureInvalidated = 901, kCaptureUnmatched = 903, kCapturedEvent = 907,
                       kCaptureWrongThread = 908;

struct Memory {
  std::size_t size, mapped;  // mapped: 0 for pinned memory
  int gpu;
  std::string name;
  cuda::Stream stream = nullptr;  // that uses it
  bool is_open = true;

  bool pinned() const { return mapped == 0; }
};

// Never destroyed: threads may outlive the library.
auto& memory_at = *new std::map<std::uintptr_t, Memory>();  // by address

std::string new_name(const char* kind) {
  return kind + std::to_string(rt::fake_cuda().made[kind]++);
}

// ---- pages ----

constexpr std::size_t kPage = std::size_t{1} << 16;  // a multiple of every system's

#if defined(_WIN32)
void* map_pages(std::size_t size) {
  return VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void unmap_pages(void* data, std::size_t) { VirtualFree(data, 0, MEM_RELEASE); }

bool protect_pages(void* data, std::size_t size, bool is_open) {
  DWORD before = 0;
  return VirtualProtect(data, size, is_open ? PAGE_READWRITE : PAGE_NOACCESS, &before) != 0;
}
#else
void* map_pages(std::size_t size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void unmap_pages(void* data, std::size_t size) { munmap(data, size); }

bool protect_pages(void* data, std::size_t size, bool is_open) {
  return mprotect(data, size, is_open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
}
#endif

void protect(std::uintptr_t address, Memory& memory, bool is_open) {
  if (memory.pinned() || memory.is_open == is_open) return;
  if (!protect_pages(reinterpret_cast<void*>(address), memory.mapped, is_open)) {
    std::fprintf(stderr, "fake CUDA driver: pages cannot be protected\n");
    std::abort();
  }
  memory.is_open = is_open;
}

}  // namespace

// ---- objects ----

struct CUctx_st {
  int gpu = 0;
};

struct CUgraph_st {
  std::string name;
  std::vector<rt::FakeWork> work;
  std::set<const void*> owners;
};

struct CUgraphExec_st {
  std::string name;
  std::vector<rt::FakeWork> work;
  std::set<const void*> owners;
};

struct CUfunc_st {
  std::string name;
  std::string image;  // of its module
};

struct CUmod_st {
  std::string name;
  std::string image;  // up to its first zero
  bool is_ptx;        // otherwise a cubin, which has every function that is asked for
  std::map<std::string, CUfunc_st> functions = {};
};

namespace {

CUctx_st contexts[kMostGpus];
int retained[kMostGpus] = {};
thread_local std::vector<cuda::Context> current;

}  // namespace

struct CUstream_st {
  CUstream_st(std::string own_name, int own_gpu) : name(std::move(own_name)), gpu(own_gpu) {}

  std::string name;
  int gpu;
  std::deque<rt::FakeWork> queue;
  std::size_t asked = 0, done = 0;
  bool is_open = false;  // the host may access its memory
  std::unique_ptr<CUgraph_st> capture;
  bool is_valid = true;    // whether the capture is valid
  std::thread::id thread;  // that began the capture

  // Runs the work before a position.
  cuda::Result run_until(std::size_t position) {
    if (done >= position) return cuda::kSuccess;
    for (auto& [address, memory] : memory_at) protect(address, memory, true);
    cuda::Result result = cuda::kSuccess;
    try {
      while (done < position) {
        const rt::FakeWork work = std::move(queue.front());
        queue.pop_front();
        ++done;
        work();
      }
    } catch (const std::exception&) {
      rt::fake_cuda().is_lost = true;
      queue.clear();
      done = asked;
      result = kIllegalAddress;
    }
    for (auto& [address, memory] : memory_at) {
      if (memory.stream == nullptr || !memory.stream->is_open) protect(address, memory, false);
    }
    return result;
  }

  // Lets the host access the memory, or no longer.
  void open(bool opens) {
    is_open = opens;
    for (auto& [address, memory] : memory_at) {
      if (memory.stream == this) protect(address, memory, opens);
    }
  }

  cuda::Result enqueue(rt::FakeWork work, const void* owner) {
    if (current.empty()) return kInvalidContext;
    if (rt::current_gpu() != gpu) rt::violation("work for another GPU than the thread's");
    if (is_open) open(false);
    if (capture) {
      if (!is_valid) return kCaptureInvalidated;
      capture->work.push_back(std::move(work));
      if (owner != nullptr) capture->owners.insert(owner);
      return cuda::kSuccess;
    }
    queue.push_back(std::move(work));
    ++asked;
    if (rt::fake_cuda().eager) static_cast<void>(run_until(asked));
    return cuda::kSuccess;
  }
};

struct CUevent_st {
  std::string name;
  CUstream_st* stream = nullptr;  // where it was recorded
  std::size_t position = 0;
  bool is_captured = false;
};

namespace {

auto& streams = *new std::set<CUstream_st*>();
auto& events = *new std::set<CUevent_st*>();
auto& graphs = *new std::set<CUgraph_st*>();
auto& executables = *new std::set<CUgraphExec_st*>();
auto& modules = *new std::set<CUmod_st*>();

template <class T>
bool is_alive(const std::set<T*>& all, T* object) {
  return all.count(object) > 0;
}

template <class T>
std::string name_of(const std::set<T*>& all, T* object) {
  return is_alive(all, object) ? object->name : "?";
}

// The block that a range begins in; null if there is none.
std::pair<const std::uintptr_t, Memory>* block_of(std::uintptr_t place) {
  const auto next = memory_at.upper_bound(place);
  if (next == memory_at.begin()) return nullptr;
  auto& found = *std::prev(next);
  return place - found.first <= found.second.size ? &found : nullptr;
}

std::uintptr_t place_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }
void* at(cuda::Address address) { return reinterpret_cast<void*>(address); }

std::string name_of(const void* address) {
  const auto* block = block_of(place_of(address));
  if (block == nullptr) return "?";
  const std::uintptr_t offset = place_of(address) - block->first;
  return block->second.name + (offset > 0 ? "+" + std::to_string(offset) : "");
}

std::string name_of(cuda::Address address) { return name_of(at(address)); }

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
  rt::FakeCuda& fake = rt::fake_cuda();
  ++fake.calls[function];
  fake.history.push_back(std::string(function) + "(" + arguments + ")");
}

// A function of the driver: is recorded, fails where the test says so, and is serialized.
template <class Call>
cuda::Result driver_call(const char* function, const std::string& arguments, const Call& call) {
  rt::FakeCuda& fake = rt::fake_cuda();
  record_call(function, arguments);
  if (fake.call_count++ == fake.fail_call) return fake.fail_code;
  const auto failing = fake.failing.find(function);
  if (failing != fake.failing.end()) return failing->second;
  return fake.is_lost ? kIllegalAddress : call();
}

// A function that frees, which also works on a lost GPU.
template <class T>
cuda::Result free_call(const char* function, const char* kind, std::set<T*>& all, T* object) {
  record_call(function, name_of(all, object));
  if (all.erase(object) == 0) {
    rt::violation(std::string(function) + " of what is not alive");
    return kInvalidHandle;
  }
  --rt::fake_cuda().alive[kind];
  delete object;
  return cuda::kSuccess;
}

template <class T, class... Arguments>
T* make(const char* kind, std::set<T*>& all, Arguments&&... arguments) {
  T* made = new T{std::forward<Arguments>(arguments)...};
  all.insert(made);
  ++rt::fake_cuda().alive[kind];
  return made;
}

cuda::Result dead_handle(const char* function) {
  rt::violation(std::string(function) + " with a handle that is not alive");
  return kInvalidHandle;
}

// Invalidates the captures that forbid unsafe calls in this thread (cuThreadExchangeStreamCapture-
// Mode); returns whether there are any.
bool forbids_unsafe_calls() {
  bool found = false;
  for (CUstream_st* stream : streams) {
    const bool is_own = stream->thread == std::this_thread::get_id();
    if (!stream->capture || !is_own) continue;
    stream->is_valid = false;
    found = true;
  }
  return found;
}

cuda::Result allocate(void** address, std::size_t size, bool pinned) {
  if (current.empty()) return kInvalidContext;
  if (forbids_unsafe_calls()) return rt::kCaptureUnsupported;
  if (size == 0) return rt::kRefused;
  std::size_t mapped = 0;
  if (pinned) {
    *address = ::operator new(size, kPinnedAlignment);
  } else {
    std::size_t used = 0;
    for (const auto& [begin, memory] : memory_at) {
      if (!memory.pinned() && memory.gpu == rt::current_gpu()) used += memory.size;
    }
    if (used + size > rt::fake_cuda().memory) return cuda::kOutOfMemory;
    mapped = (size + kPage - 1) / kPage * kPage;
    *address = map_pages(mapped);
    if (*address == nullptr) return cuda::kOutOfMemory;
  }
  std::memset(*address, kUnwrittenByte, pinned ? size : mapped);
  const char* kind = pinned ? "pinned" : "memory";
  Memory& made = memory_at[place_of(*address)] = {size, mapped, rt::current_gpu(), new_name(kind)};
  protect(place_of(*address), made, false);
  ++rt::fake_cuda().alive[kind];
  return cuda::kSuccess;
}

cuda::Result free_memory(const char* function, void* address, bool pinned) {
  const std::lock_guard lock(rt::fake_mutex());
  record_call(function, name_of(address));
  if (forbids_unsafe_calls()) {
    rt::violation(std::string(function) + " during a capture");
    return rt::kCaptureUnsupported;
  }
  const auto found = memory_at.find(place_of(address));
  if (found == memory_at.end() || found->second.pinned() != pinned) {
    rt::violation(std::string(function) + " of what is not alive");
    return rt::kRefused;
  }
  const Memory& memory = found->second;
  if (memory.stream != nullptr && !memory.stream->queue.empty()) {
    rt::violation("memory freed while in use");
  }
  if (pinned) {
    ::operator delete(address, kPinnedAlignment);
  } else {
    unmap_pages(address, memory.mapped);
  }
  memory_at.erase(found);
  --rt::fake_cuda().alive[pinned ? "pinned" : "memory"];
  return cuda::kSuccess;
}

// Whether a range is device memory, which the stream now uses.
bool use(const char* what, cuda::Address address, std::size_t size, cuda::Stream stream) {
  if (!rt::check_memory(what, at(address), size, false)) return false;
  Memory& memory = block_of(address)->second;
  if (memory.stream != stream) {
    if (memory.stream != nullptr && !memory.stream->queue.empty()) {
      rt::violation("memory that another stream uses");
    }
    memory.stream = stream;
  }
  return true;
}

// Checked again, since the memory may have been freed.
void copy_device(cuda::Address target, cuda::Address source, std::size_t size) {
  if (!rt::check_memory("a copy is written", at(target), size, false) ||
      !rt::check_memory("a copy is read", at(source), size, false)) {
    throw std::runtime_error("an illegal address");
  }
  if (size > 0 && target < source + size && source < target + size) {
    rt::violation("a copy overlaps itself");
  }
  std::memmove(at(target), at(source), size);
}

// Parameters that are given as one block.
std::vector<std::byte> block_of_parameters(void** extra) {
  const std::byte* begin = nullptr;
  std::size_t size = 0;
  for (; extra != nullptr && *extra != cuda::kParameterEnd; extra += 2) {
    if (*extra == cuda::kParameterBlock) begin = static_cast<const std::byte*>(extra[1]);
    if (*extra == cuda::kParameterBlockSize) size = *static_cast<const std::size_t*>(extra[1]);
  }
  return {begin, begin + size};
}

cuda::Result launch(const char* function, const std::string& more, cuda::Function kernel,
                    const rt::FakeLaunch& launch, cuda::Stream stream) {
  const std::string arguments = listed(kernel->name, launch.grid_x, launch.grid_y, launch.grid_z,
                                       launch.block_x, launch.shared, name_of(streams, stream)) +
                                more;
  return driver_call(function, arguments, [&] {
    if (!is_alive(streams, stream)) return dead_handle(function);
    if (launch.grid_x == 0 || launch.grid_y == 0 || launch.grid_z == 0 || launch.grid_y > 65535 ||
        launch.grid_z > 65535 || launch.block_x == 0 || launch.block_x > 1024 ||
        launch.block_y != 1 || launch.block_z != 1) {
      return rt::kRefused;
    }
    const auto& kernels = rt::fake_cuda().kernels;
    const auto found = kernels.find(kernel->name);
    rt::FakeWork work = [] {};
    if (found != kernels.end()) {
      work = found->second(launch);
    } else if (kernel->name == "copy_kernel") {
      work = rt::copy_kernel_on_host(launch);
    } else if (rt::fake_cuda().other_kernels != nullptr) {
      work = [run = rt::fake_cuda().other_kernels, one = *kernel, launch] {
        const unsigned grid[] = {launch.grid_x, launch.grid_y, launch.grid_z};
        run(one.image.c_str(), one.name.c_str(), grid, launch.block_x, launch.shared,
            launch.parameters.data(), launch.parameters.size());
      };
    }
    return stream->enqueue(std::move(work), nullptr);
  });
}

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace

extern "C" {

// ---- GPUs and contexts ----

FAKE_API cuda::Result cuInit(unsigned int) { return cuda::kSuccess; }

FAKE_API cuda::Result cuGetErrorString(cuda::Result error, const char** text) {
  switch (error) {
    case cuda::kOutOfMemory:
      *text = "out of memory";
      break;
    case kIllegalAddress:
      *text = "an illegal memory access was encountered";
      break;
    case rt::kCaptureUnsupported:
      *text = "operation not permitted when stream is capturing";
      break;
    case kCaptureInvalidated:
      *text = "operation failed due to a previous error during capture";
      break;
    default:
      *text = "some other error";
  }
  return cuda::kSuccess;
}

FAKE_API cuda::Result cuDeviceGetCount(int* count) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuDeviceGetCount", "", [=] {
    *count = rt::fake_cuda().gpus;
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuDeviceGet(cuda::Device* device, int index) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuDeviceGet", listed(index), [=] {
    if (index < 0 || index >= rt::fake_cuda().gpus) return kInvalidDevice;
    *device = index;
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuDeviceGetName(char* name, int size, cuda::Device device) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuDeviceGetName", listed(device), [=] {
    const std::string& text = rt::fake_cuda().name;
    name[text.copy(name, static_cast<std::size_t>(size) - 1)] = '\0';
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuDeviceGetAttribute(int* value, int attribute, cuda::Device device) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuDeviceGetAttribute", listed(attribute, device), [=] {
    const rt::FakeCuda& fake = rt::fake_cuda();
    if (attribute == cuda::kCapabilityMajor) {
      *value = fake.capability_major;
    } else if (attribute == cuda::kCapabilityMinor) {
      *value = fake.capability_minor;
    } else if (attribute == cuda::kMultiprocessors) {
      *value = fake.multiprocessors;
    } else {
      return rt::kRefused;
    }
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuDevicePrimaryCtxRetain(cuda::Context* context, cuda::Device device) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuDevicePrimaryCtxRetain", listed(device), [=] {
    ++retained[device];
    ++rt::fake_cuda().alive["context of a GPU"];
    contexts[device].gpu = device;
    *context = contexts + device;
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuDevicePrimaryCtxRelease_v2(cuda::Device device) {
  const Lock lock(rt::fake_mutex());
  record_call("cuDevicePrimaryCtxRelease", listed(device));
  if (--retained[device] < 0) rt::violation("a context is released more often than retained");
  --rt::fake_cuda().alive["context of a GPU"];
  const auto is_here = [=](const auto& object) { return object.gpu == device; };
  if (retained[device] == 0 &&
      (std::any_of(streams.begin(), streams.end(),
                   [&](const auto* one) { return is_here(*one); }) ||
       std::any_of(memory_at.begin(), memory_at.end(),
                   [&](const auto& one) { return is_here(one.second); }))) {
    rt::violation("a context goes before its streams and memory");
  }
  return cuda::kSuccess;
}

FAKE_API cuda::Result cuCtxSetCurrent(cuda::Context context) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuCtxSetCurrent", listed(context->gpu), [=] {
    if (!current.empty()) current.pop_back();
    current.push_back(context);
    rt::fake_cuda().threads.insert(std::this_thread::get_id());
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuCtxPushCurrent_v2(cuda::Context context) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuCtxPushCurrent", listed(context->gpu), [=] {
    current.push_back(context);
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuCtxPopCurrent_v2(cuda::Context* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return cuda::kSuccess;
}

// ---- streams ----

FAKE_API cuda::Result cuStreamCreate(cuda::Stream* stream, unsigned int flags) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuStreamCreate", listed(flags), [=] {
    if (current.empty()) return kInvalidContext;
    if (flags != cuda::kNonBlocking) rt::violation("a stream that waits for the default one");
    *stream = make("stream", streams, new_name("stream"), rt::current_gpu());
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuStreamDestroy_v2(cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  if (is_alive(streams, stream)) {
    if (!stream->queue.empty()) rt::violation("a stream with work is destroyed");
    if (stream->capture) rt::violation("a stream that captures is destroyed");
    for (auto& [address, memory] : memory_at) {
      if (memory.stream == stream) memory.stream = nullptr;
    }
  }
  return free_call("cuStreamDestroy", "stream", streams, stream);
}

FAKE_API cuda::Result cuStreamSynchronize(cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuStreamSynchronize", name_of(streams, stream), [=] {
    if (current.empty()) return kInvalidContext;
    if (!is_alive(streams, stream)) return dead_handle("cuStreamSynchronize");
    if (stream->capture) stream->is_valid = false;
    if (forbids_unsafe_calls() || stream->capture) return rt::kCaptureUnsupported;
    const cuda::Result result = stream->run_until(stream->asked);
    stream->open(true);
    return result;
  });
}

// ---- captures ----

FAKE_API cuda::Result cuStreamBeginCapture_v2(cuda::Stream stream, int mode) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuStreamBeginCapture", listed(name_of(streams, stream), mode), [=] {
    if (!is_alive(streams, stream)) return dead_handle("cuStreamBeginCapture");
    if (mode != cuda::kThreadLocal) rt::violation("a capture that other threads invalidate");
    if (stream->capture) {
      stream->is_valid = false;
      return rt::kCaptureUnsupported;
    }
    stream->capture = std::make_unique<CUgraph_st>();
    stream->is_valid = true;
    stream->thread = std::this_thread::get_id();
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuStreamEndCapture(cuda::Stream stream, cuda::Graph* graph) {
  const Lock lock(rt::fake_mutex());
  *graph = nullptr;
  std::unique_ptr<CUgraph_st> captured;
  // A call that the test lets fail ends the capture, too, as one that was invalidated.
  if (is_alive(streams, stream) && stream->capture &&
      stream->thread == std::this_thread::get_id()) {
    captured = std::move(stream->capture);
  }
  return driver_call("cuStreamEndCapture", name_of(streams, stream), [&] {
    if (!is_alive(streams, stream)) return dead_handle("cuStreamEndCapture");
    if (stream->capture) return kCaptureWrongThread;
    if (!captured) return kCaptureUnmatched;
    if (!stream->is_valid) return kCaptureInvalidated;
    *graph = make("graph", graphs, new_name("graph"), captured->work, captured->owners);
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuGraphDestroy(cuda::Graph graph) {
  const Lock lock(rt::fake_mutex());
  return free_call("cuGraphDestroy", "graph", graphs, graph);
}

FAKE_API cuda::Result cuGraphInstantiateWithFlags(cuda::GraphExec* executable, cuda::Graph graph,
                                                  unsigned long long flags) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuGraphInstantiateWithFlags", listed(name_of(graphs, graph), flags), [=] {
    if (!is_alive(graphs, graph)) return dead_handle("cuGraphInstantiateWithFlags");
    *executable =
        make("executable", executables, new_name("executable"), graph->work, graph->owners);
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuGraphExecDestroy(cuda::GraphExec executable) {
  const Lock lock(rt::fake_mutex());
  return free_call("cuGraphExecDestroy", "executable", executables, executable);
}

FAKE_API cuda::Result cuGraphLaunch(cuda::GraphExec executable, cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(executables, executable), name_of(streams, stream));
  return driver_call("cuGraphLaunch", arguments, [=] {
    if (!is_alive(executables, executable) || !is_alive(streams, stream)) {
      return dead_handle("cuGraphLaunch");
    }
    return stream->enqueue(
        [work = executable->work] {
          for (const rt::FakeWork& part : work) part();
        },
        nullptr);
  });
}

// ---- events ----

FAKE_API cuda::Result cuEventCreate(cuda::Event* event, unsigned int flags) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuEventCreate", listed(flags), [=] {
    if (current.empty()) return kInvalidContext;
    if (flags != (cuda::kBlockingSync | cuda::kDisableTiming)) rt::violation("an event that spins");
    *event = make("event", events, new_name("event"));
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuEventRecord(cuda::Event event, cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments = listed(name_of(events, event), name_of(streams, stream));
  return driver_call("cuEventRecord", arguments, [=] {
    if (!is_alive(events, event) || !is_alive(streams, stream)) return dead_handle("cuEventRecord");
    event->stream = stream;
    event->position = stream->asked;
    event->is_captured = stream->capture != nullptr;
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuEventSynchronize(cuda::Event event) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuEventSynchronize", name_of(events, event), [=] {
    if (!is_alive(events, event)) return dead_handle("cuEventSynchronize");
    if (event->is_captured) {
      if (is_alive(streams, event->stream)) event->stream->is_valid = false;
      return kCapturedEvent;
    }
    if (forbids_unsafe_calls()) return rt::kCaptureUnsupported;
    if (!is_alive(streams, event->stream)) return cuda::kSuccess;  // never recorded
    return event->stream->run_until(event->position);
  });
}

FAKE_API cuda::Result cuEventDestroy_v2(cuda::Event event) {
  const Lock lock(rt::fake_mutex());
  return free_call("cuEventDestroy", "event", events, event);
}

// ---- memory ----

FAKE_API cuda::Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuMemGetInfo", "", [=] {
    if (current.empty()) return kInvalidContext;
    *free = *total = rt::fake_cuda().memory;
    for (const auto& [address, memory] : memory_at) {
      if (!memory.pinned() && memory.gpu == rt::current_gpu()) *free -= memory.size;
    }
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuMemAlloc_v2(cuda::Address* address, std::size_t size) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuMemAlloc", listed(size), [=] {
    void* data = nullptr;
    const cuda::Result result = allocate(&data, size, false);
    *address = place_of(data);
    return result;
  });
}

FAKE_API cuda::Result cuMemFree_v2(cuda::Address address) {
  return free_memory("cuMemFree", at(address), false);
}

FAKE_API cuda::Result cuMemHostAlloc(void** data, std::size_t size, unsigned int flags) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuMemHostAlloc", listed(size, flags),
                     [=] { return allocate(data, size, true); });
}

FAKE_API cuda::Result cuMemFreeHost(void* data) { return free_memory("cuMemFreeHost", data, true); }

FAKE_API cuda::Result cuMemcpyHtoDAsync_v2(cuda::Address target, const void* source,
                                           std::size_t size, cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(target), name_of(source), size, name_of(streams, stream));
  return driver_call("cuMemcpyHtoDAsync", arguments, [=] {
    if (!is_alive(streams, stream)) return dead_handle("cuMemcpyHtoDAsync");
    if (!use("a copy is written", target, size, stream)) return rt::kRefused;
    rt::fake_cuda().bytes_in += size;
    const auto copy = [=](const void* bytes) {
      if (!rt::check_memory("a copy is written", at(target), size, false)) {
        throw std::runtime_error("an illegal address");
      }
      std::memcpy(at(target), bytes, size);
    };
    if (block_of(place_of(source)) != nullptr) {
      if (!rt::check_memory("a copy is read", source, size, true)) return rt::kRefused;
      return stream->enqueue([=] { copy(source); }, nullptr);
    }
    ++rt::fake_cuda().pageable_copies;
    const auto* bytes = static_cast<const std::byte*>(source);
    return stream->enqueue(
        [copy, kept = std::vector<std::byte>(bytes, bytes + size)] { copy(kept.data()); }, nullptr);
  });
}

FAKE_API cuda::Result cuMemcpyDtoHAsync_v2(void* target, cuda::Address source, std::size_t size,
                                           cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(target), name_of(source), size, name_of(streams, stream));
  return driver_call("cuMemcpyDtoHAsync", arguments, [=] {
    if (!is_alive(streams, stream)) return dead_handle("cuMemcpyDtoHAsync");
    if (!use("a copy is read", source, size, stream)) return rt::kRefused;
    if (block_of(place_of(target)) == nullptr) {
      ++rt::fake_cuda().pageable_copies;
    } else if (!rt::check_memory("a copy is written", target, size, true)) {
      return rt::kRefused;
    }
    rt::fake_cuda().bytes_out += size;
    // Value for reads before the copy has run.
    std::memset(target, kUnwrittenByte, size);
    return stream->enqueue(
        [=] {
          if (!rt::check_memory("a copy is read", at(source), size, false)) {
            throw std::runtime_error("an illegal address");
          }
          std::memcpy(target, at(source), size);
        },
        nullptr);
  });
}

FAKE_API cuda::Result cuMemcpyDtoDAsync_v2(cuda::Address target, cuda::Address source,
                                           std::size_t size, cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(target), name_of(source), size, name_of(streams, stream));
  return driver_call("cuMemcpyDtoDAsync", arguments, [=] {
    if (!is_alive(streams, stream)) return dead_handle("cuMemcpyDtoDAsync");
    if (!use("a copy is written", target, size, stream) ||
        !use("a copy is read", source, size, stream)) {
      return rt::kRefused;
    }
    return stream->enqueue([=] { copy_device(target, source, size); }, nullptr);
  });
}

FAKE_API cuda::Result cuMemcpy2DAsync_v2(const cuda::Copy2d* copy, cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(copy->target), copy->target_pitch, name_of(copy->source), copy->source_pitch,
             copy->width, copy->height, name_of(streams, stream));
  return driver_call("cuMemcpy2DAsync", arguments, [=, one = *copy] {
    if (!is_alive(streams, stream)) return dead_handle("cuMemcpy2DAsync");
    if (one.source_type != cuda::kDeviceMemory || one.target_type != cuda::kDeviceMemory ||
        one.width > one.target_pitch || one.width > one.source_pitch) {
      return rt::kRefused;
    }
    for (std::size_t row = 0; row < one.height; ++row) {
      if (!use("a copy is written", one.target + row * one.target_pitch, one.width, stream) ||
          !use("a copy is read", one.source + row * one.source_pitch, one.width, stream)) {
        return rt::kRefused;
      }
    }
    return stream->enqueue(
        [=] {
          for (std::size_t row = 0; row < one.height; ++row) {
            copy_device(one.target + row * one.target_pitch, one.source + row * one.source_pitch,
                        one.width);
          }
        },
        nullptr);
  });
}

FAKE_API cuda::Result cuMemsetD8Async(cuda::Address target, unsigned char value, std::size_t size,
                                      cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  const std::string arguments =
      listed(name_of(target), static_cast<int>(value), size, name_of(streams, stream));
  return driver_call("cuMemsetD8Async", arguments, [=] {
    if (!is_alive(streams, stream)) return dead_handle("cuMemsetD8Async");
    if (!use("a fill", target, size, stream)) return rt::kRefused;
    return stream->enqueue(
        [=] {
          if (!rt::check_memory("a fill", at(target), size, false)) {
            throw std::runtime_error("an illegal address");
          }
          std::memset(at(target), value, size);
        },
        nullptr);
  });
}

// ---- kernels ----

FAKE_API cuda::Result cuModuleLoadData(cuda::Module* module, const void* image) {
  const Lock lock(rt::fake_mutex());
  const std::string text(static_cast<const char*>(image));
  const bool is_ptx = text.find(".version ") != std::string::npos;
  return driver_call("cuModuleLoadData", is_ptx ? "ptx" : text.substr(0, 40), [&] {
    if (current.empty()) return kInvalidContext;
    if (forbids_unsafe_calls()) return rt::kCaptureUnsupported;
    if (text.empty()) return kInvalidImage;
    *module = make("module", modules, new_name("module"), text, is_ptx);
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuModuleUnload(cuda::Module module) {
  const Lock lock(rt::fake_mutex());
  return free_call("cuModuleUnload", "module", modules, module);
}

FAKE_API cuda::Result cuModuleGetFunction(cuda::Function* function, cuda::Module module,
                                          const char* name) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuModuleGetFunction", listed(name_of(modules, module), name), [=] {
    if (!is_alive(modules, module)) return dead_handle("cuModuleGetFunction");
    const std::string entry = ".entry " + std::string(name) + "(";
    if (module->is_ptx && module->image.find(entry) == std::string::npos) return kNotFound;
    *function = &module->functions[name];
    **function = {name, module->image};
    return cuda::kSuccess;
  });
}

FAKE_API cuda::Result cuFuncSetAttribute(cuda::Function function, int attribute, int value) {
  const Lock lock(rt::fake_mutex());
  return driver_call("cuFuncSetAttribute", listed(function->name, attribute, value),
                     [] { return cuda::kSuccess; });
}

FAKE_API cuda::Result cuLaunchKernel(cuda::Function function, unsigned int grid_x,
                                     unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                     unsigned int block_y, unsigned int block_z,
                                     unsigned int shared, cuda::Stream stream, void** arguments,
                                     void** extra) {
  const Lock lock(rt::fake_mutex());
  return launch("cuLaunchKernel", "", function,
                {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, arguments,
                 block_of_parameters(extra)},
                stream);
}

FAKE_API cuda::Result cuLaunchKernelEx(const cuda::LaunchConfig* config, cuda::Function function,
                                       void** arguments, void** extra) {
  const Lock lock(rt::fake_mutex());
  std::string more;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    more += ", " + std::to_string(config->attributes[i].id) + "=" +
            std::to_string(config->attributes[i].value.number);
  }
  return launch("cuLaunchKernelEx", more, function,
                {config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y,
                 config->block_z, config->shared, arguments, block_of_parameters(extra)},
                config->stream);
}

}  // extern "C"

// ---- for tests and libraries that use CUDA ----

namespace translate_trt::runtime {

FakeCuda& fake_cuda() {
  static auto* const fake = new FakeCuda();
  return *fake;
}

std::recursive_mutex& fake_mutex() {
  static auto* const mutex = new std::recursive_mutex();
  return *mutex;
}

void violation(const std::string& what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what.c_str());
  fake_cuda().violations.push_back(what);
}

bool check_memory(const std::string& what, const void* address, std::size_t size, bool pinned) {
  const auto* block = block_of(place_of(address));
  const bool fits = block != nullptr && block->second.pinned() == pinned &&
                    size <= block->second.size - (place_of(address) - block->first);
  if (!fits) violation(what + " beyond " + (pinned ? "pinned memory" : "the GPU's memory"));
  return fits;
}

int current_gpu() { return current.empty() ? 0 : current.back()->gpu; }
int gpu_of(cuda::Stream stream) { return stream->gpu; }
bool is_capturing(cuda::Stream stream) { return stream->capture != nullptr; }

cuda::Result enqueue(cuda::Stream stream, FakeWork work, const void* owner) {
  return stream->enqueue(std::move(work), owner);
}

bool is_in_a_graph(const void* owner) {
  return std::any_of(executables.begin(), executables.end(),
                     [=](const CUgraphExec_st* graph) { return graph->owners.count(owner) > 0; });
}

}  // namespace translate_trt::runtime
