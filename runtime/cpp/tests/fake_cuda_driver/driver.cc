// A fake of CUDA's driver library, whose device memory is host memory that only its own copies, and
// graphs that run while a stream is idle, can reach: any other access is a segmentation fault.
//
// Work of a stream runs when it is waited for; memory starts with bytes that are NaN in every type;
// page-locked memory is read when a copy runs, and other host memory when it is enqueued. Memory
// belongs to the stream that first uses it. After a stream was waited for, its memory is open until
// its next call, as the CPU provider of ONNX Runtime, which stands for the GPU's, needs it.

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "backends/cuda_driver.h"
#include "fake_cuda_driver/fake_driver.h"

namespace {

namespace cuda = translate_trt::runtime::cuda;

constexpr cuda::Result kInvalidValue = 1, kNoContext = 201, kNotSupported = 801;
constexpr int kDevices = 2;

struct Block {
  std::size_t size = 0, mapped = 0;
  cuda::Stream stream = nullptr;  // that uses it
};

struct Queue {
  std::vector<std::function<void()>> work;
  bool is_open = false;
};

// Never destroyed: threads may outlive the library.
std::mutex& mutex = *new std::mutex();
std::map<cuda::Address, Block>& blocks = *new std::map<cuda::Address, Block>();
std::map<cuda::Stream, Queue>& queues = *new std::map<cuda::Stream, Queue>();
std::map<const std::byte*, std::size_t>& pinned = *new std::map<const std::byte*, std::size_t>();
int contexts[kDevices] = {};
FakeDriverCounts counts = {};
std::size_t memory_limit = 0;
thread_local std::vector<cuda::Context> current;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what);
  std::abort();
}

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

void protect(cuda::Stream stream, bool is_open) {
  for (const auto& [address, block] : blocks) {
    if (block.stream != stream) continue;
    if (!protect_pages(reinterpret_cast<void*>(address), block.mapped, is_open)) fail("protection");
  }
  queues.at(stream).is_open = is_open;
}

// The block of a range of bytes.
Block& block_of(cuda::Address address, std::size_t size) {
  auto found = blocks.upper_bound(address);
  if (found == blocks.begin()) fail("an address before all blocks");
  --found;
  if (address + size > found->first + found->second.size) fail("an access out of bounds");
  return found->second;
}

// Claims a range for a stream.
void use(cuda::Address address, std::size_t size, cuda::Stream stream) {
  Block& block = block_of(address, size);
  if (block.stream == nullptr) block.stream = stream;
  if (block.stream != stream) fail("memory of another stream");
}

bool is_pinned(const void* data) {
  auto found = pinned.upper_bound(static_cast<const std::byte*>(data));
  if (found == pinned.begin()) return false;
  --found;
  return static_cast<const std::byte*>(data) < found->first + found->second;
}

cuda::Result enqueue(cuda::Stream stream, std::function<void()> work) {
  if (current.empty()) return kNoContext;
  Queue& queue = queues.at(stream);
  if (queue.is_open) protect(stream, false);
  queue.work.push_back(std::move(work));
  return cuda::kSuccess;
}

void run(cuda::Stream stream) {
  protect(stream, true);
  for (const auto& work : queues.at(stream).work) work();
  queues.at(stream).work.clear();
}

void* at(cuda::Address address) { return reinterpret_cast<void*>(address); }

using Lock = std::lock_guard<std::mutex>;

}  // namespace

extern "C" {

FakeDriverCounts fake_driver_counts() {
  const Lock lock(mutex);
  FakeDriverCounts now = counts;
  now.blocks = static_cast<int>(blocks.size());
  now.pinned = static_cast<int>(pinned.size());
  now.streams = static_cast<int>(queues.size());
  now.contexts = contexts[0] + contexts[1];
  return now;
}

void fake_driver_limit(std::size_t bytes) { memory_limit = bytes; }

cuda::Result cuInit(unsigned int) { return cuda::kSuccess; }

cuda::Result cuDeviceGetCount(int* count) {
  *count = kDevices;
  return cuda::kSuccess;
}

cuda::Result cuDeviceGet(cuda::Device* device, int index) {
  if (index < 0 || index >= kDevices) return kInvalidValue;
  *device = index;
  return cuda::kSuccess;
}

cuda::Result cuDevicePrimaryCtxRetain(cuda::Context* context, cuda::Device device) {
  const Lock lock(mutex);
  ++contexts[device];
  *context = reinterpret_cast<cuda::Context>(contexts + device);
  return cuda::kSuccess;
}

cuda::Result cuDevicePrimaryCtxRelease_v2(cuda::Device device) {
  const Lock lock(mutex);
  return --contexts[device] < 0 ? kNoContext : cuda::kSuccess;
}

cuda::Result cuCtxPushCurrent_v2(cuda::Context context) {
  current.push_back(context);
  return cuda::kSuccess;
}

cuda::Result cuCtxPopCurrent_v2(cuda::Context* context) {
  if (current.empty()) return kNoContext;
  *context = current.back();
  current.pop_back();
  return cuda::kSuccess;
}

cuda::Result cuStreamCreate(cuda::Stream* stream, unsigned int flags) {
  const Lock lock(mutex);
  if (current.empty()) return kNoContext;
  if (flags != cuda::kNonBlocking) return kInvalidValue;
  *stream = reinterpret_cast<cuda::Stream>(new char);
  queues[*stream] = {};
  return cuda::kSuccess;
}

cuda::Result cuStreamDestroy_v2(cuda::Stream stream) {
  const Lock lock(mutex);
  queues.erase(stream);
  delete reinterpret_cast<char*>(stream);
  return cuda::kSuccess;
}

cuda::Result cuStreamSynchronize(cuda::Stream stream) {
  const Lock lock(mutex);
  if (current.empty()) return kNoContext;
  run(stream);
  return cuda::kSuccess;
}

cuda::Result cuMemAlloc_v2(cuda::Address* address, std::size_t size) {
  const Lock lock(mutex);
  if (current.empty()) return kNoContext;
  if (size == 0) return kInvalidValue;
  if (memory_limit != 0 && size > memory_limit) return cuda::kOutOfMemory;
  const std::size_t mapped = (size + kPage - 1) / kPage * kPage;
  void* data = map_pages(mapped);
  if (data == nullptr) return cuda::kOutOfMemory;
  std::memset(data, 0xff, mapped);
  *address = reinterpret_cast<cuda::Address>(data);
  blocks[*address] = {size, mapped, nullptr};
  ++counts.allocations;
  return cuda::kSuccess;
}

cuda::Result cuMemFree_v2(cuda::Address address) {
  const Lock lock(mutex);
  if (current.empty()) return kNoContext;
  const auto found = blocks.find(address);
  if (found == blocks.end()) return kInvalidValue;
  const auto queue = queues.find(found->second.stream);
  if (queue != queues.end() && !queue->second.work.empty()) fail("memory freed while in use");
  unmap_pages(at(address), found->second.mapped);
  blocks.erase(found);
  return cuda::kSuccess;
}

cuda::Result cuMemHostAlloc(void** data, std::size_t size, unsigned int) {
  const Lock lock(mutex);
  if (current.empty()) return kNoContext;
  *data = std::malloc(size);
  pinned[static_cast<std::byte*>(*data)] = size;
  return *data == nullptr ? cuda::kOutOfMemory : cuda::kSuccess;
}

cuda::Result cuMemFreeHost(void* data) {
  const Lock lock(mutex);
  if (pinned.erase(static_cast<std::byte*>(data)) == 0) return kInvalidValue;
  std::free(data);
  return cuda::kSuccess;
}

cuda::Result cuMemcpyHtoDAsync_v2(cuda::Address target, const void* source, std::size_t size,
                                  cuda::Stream stream) {
  const Lock lock(mutex);
  use(target, size, stream);
  counts.bytes_in += size;
  if (is_pinned(source)) return enqueue(stream, [=] { std::memcpy(at(target), source, size); });
  const auto* bytes = static_cast<const std::byte*>(source);
  return enqueue(stream, [=, copy = std::vector<std::byte>(bytes, bytes + size)] {
    std::memcpy(at(target), copy.data(), size);
  });
}

cuda::Result cuMemcpyDtoHAsync_v2(void* target, cuda::Address source, std::size_t size,
                                  cuda::Stream stream) {
  const Lock lock(mutex);
  use(source, size, stream);
  counts.bytes_out += size;
  return enqueue(stream, [=] { std::memcpy(target, at(source), size); });
}

cuda::Result cuMemcpyDtoDAsync_v2(cuda::Address target, cuda::Address source, std::size_t size,
                                  cuda::Stream stream) {
  const Lock lock(mutex);
  use(target, size, stream);
  use(source, size, stream);
  return enqueue(stream, [=] { std::memcpy(at(target), at(source), size); });
}

cuda::Result cuMemcpy2DAsync_v2(const cuda::Copy2d* copy, cuda::Stream stream) {
  const Lock lock(mutex);
  if (copy->source_type != cuda::kDeviceMemory || copy->target_type != cuda::kDeviceMemory ||
      copy->source_pitch < copy->width || copy->target_pitch < copy->width) {
    return kInvalidValue;
  }
  use(copy->source, copy->source_pitch * (copy->height - 1) + copy->width, stream);
  use(copy->target, copy->target_pitch * (copy->height - 1) + copy->width, stream);
  return enqueue(stream, [one = *copy] {
    for (std::size_t i = 0; i < one.height; ++i) {
      std::memcpy(at(one.target + i * one.target_pitch), at(one.source + i * one.source_pitch),
                  one.width);
    }
  });
}

cuda::Result cuMemsetD8Async(cuda::Address address, unsigned char value, std::size_t size,
                             cuda::Stream stream) {
  const Lock lock(mutex);
  use(address, size, stream);
  return enqueue(stream, [=] { std::memset(at(address), value, size); });
}

cuda::Result cuGetErrorString(cuda::Result, const char** text) {
  *text = "an error of the fake driver";
  return cuda::kSuccess;
}

// Not simulated.
cuda::Result cuDeviceGetName(char*, int, cuda::Device) { return kNotSupported; }
cuda::Result cuDeviceGetAttribute(int*, int, cuda::Device) { return kNotSupported; }
cuda::Result cuCtxSetCurrent(cuda::Context) { return kNotSupported; }
cuda::Result cuEventCreate(cuda::Event*, unsigned int) { return kNotSupported; }
cuda::Result cuEventDestroy_v2(cuda::Event) { return kNotSupported; }
cuda::Result cuEventRecord(cuda::Event, cuda::Stream) { return kNotSupported; }
cuda::Result cuEventSynchronize(cuda::Event) { return kNotSupported; }
cuda::Result cuStreamBeginCapture_v2(cuda::Stream, int) { return kNotSupported; }
cuda::Result cuStreamEndCapture(cuda::Stream, cuda::Graph*) { return kNotSupported; }
cuda::Result cuGraphDestroy(cuda::Graph) { return kNotSupported; }
cuda::Result cuGraphInstantiateWithFlags(cuda::GraphExec*, cuda::Graph, unsigned long long) {
  return kNotSupported;
}
cuda::Result cuGraphExecDestroy(cuda::GraphExec) { return kNotSupported; }
cuda::Result cuGraphLaunch(cuda::GraphExec, cuda::Stream) { return kNotSupported; }
cuda::Result cuMemGetInfo_v2(std::size_t*, std::size_t*) { return kNotSupported; }
cuda::Result cuModuleLoadData(cuda::Module*, const void*) { return kNotSupported; }
cuda::Result cuModuleUnload(cuda::Module) { return kNotSupported; }
cuda::Result cuModuleGetFunction(cuda::Function*, cuda::Module, const char*) {
  return kNotSupported;
}
cuda::Result cuFuncSetAttribute(cuda::Function, int, int) { return kNotSupported; }
cuda::Result cuLaunchKernel(cuda::Function, unsigned int, unsigned int, unsigned int, unsigned int,
                            unsigned int, unsigned int, unsigned int, cuda::Stream, void**,
                            void**) {
  return kNotSupported;
}
cuda::Result cuLaunchKernelEx(const cuda::LaunchConfig*, cuda::Function, void**, void**) {
  return kNotSupported;
}

}  // extern "C"
