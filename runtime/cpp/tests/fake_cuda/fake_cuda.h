// A CUDA runtime on the host, which replaces libcudart in tests. It records every call, runs work
// in stream order and no earlier than the program waits for it, and refuses what CUDA refuses, such
// as an allocation during a capture. Unlike CUDA, it reports every misuse as a violation. It is
// compiled against the toolkit's header where there is one, so that signatures cannot differ.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace translate_trt::runtime {

// Settings and history of the fake GPUs. Assign {} to start anew, when no object is alive.
struct FakeCuda {
  int gpus = 2, capability_major = 8, capability_minor = 6, multiprocessors = 72;
  std::string name = "NVIDIA A10";
  std::size_t memory = std::size_t{1} << 30;      // bytes of each GPU
  std::map<std::string, cudaError_t> failing;     // error by function
  int fail_call = -1;                             // index of one call that fails; negative: none
  cudaError_t fail_code = cudaErrorInvalidValue;  // its error
  bool eager = false;  // run work at once; its errors are returned by the next call

  // Calls with arguments, such as "cudaMemsetAsync(memory0+16, 255, 8, stream0)". Objects have the
  // number of their creation.
  std::vector<std::string> history;
  int call_count = 0;                   // all but those that free
  std::map<std::string, int> calls;     // by function
  std::map<std::string, int> made;      // objects created, by kind
  std::map<std::string, int> alive;     // objects not freed, by kind
  std::vector<std::string> violations;  // violations of the rules
  std::set<std::thread::id> threads;    // threads that have set a GPU
  bool is_lost = false;                 // whether an error of executed work was fatal

  // The sum of `alive`.
  int left() const;

  // The recorded calls since the last call of this function.
  std::vector<std::string> take_history();
};

FakeCuda& fake_cuda();

// ---- for libraries that use CUDA, such as a fake TensorRT ----

// Held by every call.
std::recursive_mutex& fake_mutex();

void violation(const std::string& what);

// Records a violation unless all bytes are within live memory of that kind.
bool check_memory(const std::string& what, const void* address, std::size_t size, bool pinned);

int current_gpu();
int gpu_of(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);

// Enqueues work like a kernel. An exception of `work` makes the GPU unusable. owner: object that
// the work uses, or null.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* owner);

// The work of a launch of the copy kernel (copy_kernel.h). Its arguments are copied.
std::function<void()> copy_kernel_on_host(unsigned grid_x, unsigned grid_y, unsigned block_x,
                                          void** arguments);

// Whether an executable graph has work that uses the object.
bool is_in_a_graph(const void* owner);

}  // namespace translate_trt::runtime
