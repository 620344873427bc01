// Control of the fake driver by programs in other languages.

#define FAKE_CUDA_DRIVER_BUILD
#include "fake_cuda_driver/fake_driver.h"

namespace rt = translate_trt::runtime;

using Lock = std::lock_guard<std::recursive_mutex>;

extern "C" {

// Forgets settings and history.
FAKE_API void fake_driver_reset() {
  const Lock lock(rt::fake_mutex());
  rt::fake_cuda() = {};
}

FAKE_API void fake_driver_run_kernels(rt::FakeKernel run) { rt::fake_cuda().other_kernels = run; }

FAKE_API void fake_driver_set_memory(std::size_t bytes) { rt::fake_cuda().memory = bytes; }

FAKE_API void fake_driver_set_eager(int eager) { rt::fake_cuda().eager = eager != 0; }

// Lets all calls of a function fail, or none if there is no error.
FAKE_API void fake_driver_fail(const char* function, rt::cuda::Result error) {
  const Lock lock(rt::fake_mutex());
  rt::fake_cuda().failing.erase(function);
  if (error != rt::cuda::kSuccess) rt::fake_cuda().failing[function] = error;
}

// Enqueues work. owner: object that it uses, or null.
FAKE_API rt::cuda::Result fake_driver_enqueue(rt::cuda::Stream stream, void (*work)(),
                                              const void* owner) {
  const Lock lock(rt::fake_mutex());
  return rt::enqueue(stream, work, owner);
}

// Whether bytes are within the memory of a GPU; otherwise it is a violation.
FAKE_API int fake_driver_has_memory(const void* address, std::size_t size) {
  const Lock lock(rt::fake_mutex());
  return rt::check_memory("a tensor", address, size, false) ? 1 : 0;
}

FAKE_API int fake_driver_is_capturing(rt::cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  return rt::is_capturing(stream) ? 1 : 0;
}

// Whether an executable graph has work of an owner.
FAKE_API int fake_driver_is_in_a_graph(const void* owner) {
  const Lock lock(rt::fake_mutex());
  return rt::is_in_a_graph(owner) ? 1 : 0;
}

// The GPU of the calling thread's context.
FAKE_API int fake_driver_current_gpu() { return rt::current_gpu(); }

// Whether the calling thread has set a context.
FAKE_API int fake_driver_has_set_context() {
  const Lock lock(rt::fake_mutex());
  return static_cast<int>(rt::fake_cuda().threads.count(std::this_thread::get_id()));
}

// All calls so far, one a line; valid until the next call.
FAKE_API const char* fake_driver_history() {
  static auto* const text = new std::string();
  const Lock lock(rt::fake_mutex());
  text->clear();
  for (const std::string& call : rt::fake_cuda().history) *text += call + "\n";
  return text->c_str();
}

// Number of objects of a kind that are not freed, and of violations of the rules.
FAKE_API int fake_driver_alive(const char* kind) {
  const Lock lock(rt::fake_mutex());
  return rt::fake_cuda().alive[kind];
}

FAKE_API int fake_driver_violations() {
  const Lock lock(rt::fake_mutex());
  return static_cast<int>(rt::fake_cuda().violations.size());
}

}  // extern "C"
