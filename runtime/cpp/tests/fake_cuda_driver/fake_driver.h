// A fake of CUDA's driver library. It records every call, runs work in stream order and no earlier
// than the program waits for it, and refuses what CUDA refuses, such as an allocation during a
// capture. Unlike CUDA, it reports every misuse as a violation.
//
// Device memory is host memory that only work of its stream can reach: any other access is a
// segmentation fault. It begins with bytes that are NaN in every type, and belongs to the stream
// that first uses it. After a stream was waited for, its memory is open until its next call, as the
// CPU provider of ONNX Runtime, which stands for the GPU's, needs it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cuda_driver.h"

#if defined(_WIN32) && defined(FAKE_CUDA_DRIVER_BUILD)
#define FAKE_API __declspec(dllexport)
#else
#define FAKE_API
#endif

namespace translate_trt::runtime {

// Errors of cuda.h for tests: an invalid value, and a call that a capture forbids.
inline constexpr cuda::Result kRefused = 1, kCaptureUnsupported = 900;

using FakeWork = std::function<void()>;

// A launch of a kernel. Its parameters are either `arguments`, which live until the launch returns,
// or one block.
struct FakeLaunch {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  void** arguments;
  std::vector<std::byte> parameters = {};
};

// Runs a kernel, for programs in other languages. image: of its module, up to the first zero; grid:
// three numbers; parameters: their block.
using FakeKernel = void (*)(const char* image, const char* name, const unsigned* grid,
                            unsigned threads, unsigned shared, const void* parameters,
                            std::size_t size);

// Settings and history of the fake GPUs. Assign {} to start anew, when no object is alive.
struct FakeCuda {
  int gpus = 2, capability_major = 8, capability_minor = 6, multiprocessors = 72;
  std::string name = "NVIDIA A10";
  std::size_t memory = std::size_t{1} << 30;    // bytes of each GPU
  std::map<std::string, cuda::Result> failing;  // error by function
  int fail_call = -1;                           // index of one call that fails; negative: none
  cuda::Result fail_code = kRefused;            // its error: an invalid value
  bool eager = false;  // run work at once; its errors are returned by the next call
  // The work of kernels, by name. Others, but for the copy kernel, do nothing.
  std::map<std::string, std::function<FakeWork(const FakeLaunch&)>> kernels;
  FakeKernel other_kernels = nullptr;  // the work of those that are not among them

  // Calls with arguments, such as "cuMemsetD8Async(memory0+16, 255, 8, stream0)". Objects have the
  // number of their creation.
  std::vector<std::string> history;
  int call_count = 0;                       // all but those that free
  std::map<std::string, int> calls;         // by function
  std::map<std::string, int> made;          // objects created, by kind
  std::map<std::string, int> alive;         // objects not freed, by kind
  std::vector<std::string> violations;      // violations of the rules
  std::set<std::thread::id> threads;        // threads that have set a context
  std::size_t bytes_in = 0, bytes_out = 0;  // copied from and to the host
  int pageable_copies = 0;                  // copies from the host that were not of pinned memory
  bool is_lost = false;                     // whether an error of executed work was fatal

  // The sum of `alive`.
  int left() const {
    int sum = 0;
    for (const auto& [kind, count] : alive) sum += count;
    return sum;
  }

  // The recorded calls since the last call of this function.
  std::vector<std::string> take_history() { return std::exchange(history, {}); }
};

FAKE_API FakeCuda& fake_cuda();

// Sets an environment variable.
inline void set_variable(const char* name, const char* value) {
#if defined(_WIN32)
  _putenv_s(name, value);
#else
  setenv(name, value, 1);
#endif
}

// Makes the library load the fake driver from the file that the program is linked to.
inline void use_fake_driver(const char* path) { set_variable("TRANSLATE_TRT_CUDA_DRIVER", path); }

// ---- for libraries that use CUDA, such as a fake TensorRT ----

// Held by every call.
FAKE_API std::recursive_mutex& fake_mutex();

FAKE_API void violation(const std::string& what);

// Records a violation unless all bytes are within live memory of that kind.
FAKE_API bool check_memory(const std::string& what, const void* address, std::size_t size,
                           bool pinned);

// The GPU of the calling thread's context; 0 if it has none, as in the CUDA runtime.
FAKE_API int current_gpu();
FAKE_API int gpu_of(cuda::Stream stream);
FAKE_API bool is_capturing(cuda::Stream stream);

// Enqueues work like a kernel. An exception of `work` makes the GPU unusable. owner: object that
// the work uses, or null.
FAKE_API cuda::Result enqueue(cuda::Stream stream, FakeWork work, const void* owner);

// Whether an executable graph has work that uses the object.
FAKE_API bool is_in_a_graph(const void* owner);

// The work of a launch of the copy kernel (copy_kernel.h).
FakeWork copy_kernel_on_host(const FakeLaunch& launch);

}  // namespace translate_trt::runtime
