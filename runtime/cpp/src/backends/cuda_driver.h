// The functions of CUDA's driver library that the runtime needs. The library belongs to the GPU's
// driver and has a stable interface, so it is loaded at run time, and no CUDA header is needed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/errors.h"
#include "base/platform.h"

// CUcontext is a pointer to the first one, and so on. NVIDIA's headers declare the same.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUmod_st;
struct CUfunc_st;

namespace translate_trt::runtime {

// Types of cuda.h. tests/cuda_header.cc compares them with the header where a CUDA toolkit is.
namespace cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  // CUdeviceptr
using Context = CUctx_st*;
using Stream = CUstream_st*;  // cudaStream_t of the CUDA runtime
using Event = CUevent_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;

inline constexpr Result kSuccess = 0, kOutOfMemory = 2;
inline constexpr unsigned int kNonBlocking = 1;  // the stream does not wait for the default stream
inline constexpr unsigned int kBlockingSync = 1, kDisableTiming = 2;  // of events
inline constexpr int kThreadLocal = 1;   // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
inline constexpr int kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE
// Attributes of devices: streaming multiprocessors, compute capability.
inline constexpr int kMultiprocessors = 16, kCapabilityMajor = 75, kCapabilityMinor = 76;
inline constexpr int kMaxDynamicShared = 8;     // attribute of functions
inline constexpr int kProgrammaticOverlap = 6;  // attribute of launches (LaunchAttribute)

// CUDA_MEMCPY2D_v2.
struct Copy2d {
  std::size_t source_x, source_y;
  int source_type;
  const void* source_host;
  Address source;
  void* source_array;
  std::size_t source_pitch;
  std::size_t target_x, target_y;
  int target_type;
  void* target_host;
  Address target;
  void* target_array;
  std::size_t target_pitch;
  std::size_t width, height;  // bytes, rows
};

// CUlaunchAttribute, of which the runtime sets integers alone.
struct LaunchAttribute {
  int id;
  int padding;
  union {
    int number;
    char bytes[64];
  } value;
};

// CUlaunchConfig.
struct LaunchConfig {
  unsigned int grid_x, grid_y, grid_z;
  unsigned int block_x, block_y, block_z;
  unsigned int shared;  // bytes of dynamic shared memory
  Stream stream;
  LaunchAttribute* attributes;
  unsigned int attribute_count;
};

// Names of the parameters of a kernel as one block (CU_LAUNCH_PARAM_...), for the last argument of
// launches.
inline void* const kParameterEnd = nullptr;
inline void* const kParameterBlock = reinterpret_cast<void*>(1);
inline void* const kParameterBlockSize = reinterpret_cast<void*>(2);

}  // namespace cuda

// clang-format off
// CALL(member, exported name, parameters) for every function. The youngest is
// cuGraphInstantiateWithFlags, of the drivers of CUDA 11.4 (470).
#define TT_CUDA_FUNCTIONS(CALL)                                                                    \
  CALL(init, cuInit, (unsigned int))                                                               \
  CALL(error_text, cuGetErrorString, (cuda::Result, const char**))                                 \
  CALL(count_devices, cuDeviceGetCount, (int*))                                                    \
  CALL(get_device, cuDeviceGet, (cuda::Device*, int))                                              \
  CALL(device_name, cuDeviceGetName, (char*, int, cuda::Device))                                   \
  CALL(device_attribute, cuDeviceGetAttribute, (int*, int, cuda::Device))                          \
  CALL(retain_context, cuDevicePrimaryCtxRetain, (cuda::Context*, cuda::Device))                   \
  CALL(release_context, cuDevicePrimaryCtxRelease_v2, (cuda::Device))                              \
  CALL(set_context, cuCtxSetCurrent, (cuda::Context))                                              \
  CALL(push_context, cuCtxPushCurrent_v2, (cuda::Context))                                         \
  CALL(pop_context, cuCtxPopCurrent_v2, (cuda::Context*))                                          \
  CALL(create_stream, cuStreamCreate, (cuda::Stream*, unsigned int))                               \
  CALL(destroy_stream, cuStreamDestroy_v2, (cuda::Stream))                                         \
  CALL(wait_for_stream, cuStreamSynchronize, (cuda::Stream))                                       \
  CALL(create_event, cuEventCreate, (cuda::Event*, unsigned int))                                  \
  CALL(destroy_event, cuEventDestroy_v2, (cuda::Event))                                            \
  CALL(record_event, cuEventRecord, (cuda::Event, cuda::Stream))                                   \
  CALL(wait_for_event, cuEventSynchronize, (cuda::Event))                                          \
  CALL(begin_capture, cuStreamBeginCapture_v2, (cuda::Stream, int))                                \
  CALL(end_capture, cuStreamEndCapture, (cuda::Stream, cuda::Graph*))                              \
  CALL(destroy_graph, cuGraphDestroy, (cuda::Graph))                                               \
  CALL(instantiate, cuGraphInstantiateWithFlags,                                                   \
       (cuda::GraphExec*, cuda::Graph, unsigned long long))                                        \
  CALL(destroy_executable, cuGraphExecDestroy, (cuda::GraphExec))                                  \
  CALL(launch_graph, cuGraphLaunch, (cuda::GraphExec, cuda::Stream))                               \
  CALL(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                 \
  CALL(allocate, cuMemAlloc_v2, (cuda::Address*, std::size_t))                                     \
  CALL(free, cuMemFree_v2, (cuda::Address))                                                        \
  CALL(allocate_pinned, cuMemHostAlloc, (void**, std::size_t, unsigned int))                       \
  CALL(free_pinned, cuMemFreeHost, (void*))                                                        \
  CALL(copy_in, cuMemcpyHtoDAsync_v2, (cuda::Address, const void*, std::size_t, cuda::Stream))     \
  CALL(copy_out, cuMemcpyDtoHAsync_v2, (void*, cuda::Address, std::size_t, cuda::Stream))          \
  CALL(copy, cuMemcpyDtoDAsync_v2, (cuda::Address, cuda::Address, std::size_t, cuda::Stream))      \
  CALL(copy_2d, cuMemcpy2DAsync_v2, (const cuda::Copy2d*, cuda::Stream))                           \
  CALL(fill, cuMemsetD8Async, (cuda::Address, unsigned char, std::size_t, cuda::Stream))           \
  CALL(load_module, cuModuleLoadData, (cuda::Module*, const void*))                                \
  CALL(unload_module, cuModuleUnload, (cuda::Module))                                              \
  CALL(get_function, cuModuleGetFunction, (cuda::Function*, cuda::Module, const char*))            \
  CALL(function_attribute, cuFuncSetAttribute, (cuda::Function, int, int))                         \
  CALL(launch, cuLaunchKernel,                                                                     \
       (cuda::Function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,      \
        unsigned int, unsigned int, cuda::Stream, void**, void**))

// Functions that are null in older drivers.
#define TT_CUDA_LATER_FUNCTIONS(CALL)                                                              \
  CALL(launch_with, cuLaunchKernelEx, /* CUDA 11.8 */                                              \
       (const cuda::LaunchConfig*, cuda::Function, void**, void**))
// clang-format on

// The library of TRANSLATE_TRT_CUDA_DRIVER, an environment variable for tests and emulators, or
// that of the GPU's driver.
std::string cuda_driver_path();

struct CudaDriver {
#define TT_CUDA_MEMBER(member, name, parameters) cuda::Result(*member) parameters = nullptr;
  TT_CUDA_FUNCTIONS(TT_CUDA_MEMBER)
  TT_CUDA_LATER_FUNCTIONS(TT_CUDA_MEMBER)
#undef TT_CUDA_MEMBER

  // Opens and initializes the library, once per path; it stays open until the process ends. Throws
  // a backend error if there is no library or it is not usable.
  static const CudaDriver& open(const std::string& path = cuda_driver_path());

  // Throws a backend error, which names the function and the reason, unless the result is a
  // success.
  void check(cuda::Result result, const char* function) const;

  // Enqueues a copy of `rows` blocks of `width` bytes within device memory. Pitches are the
  // distances between blocks.
  void copy_rows(cuda::Address target, std::size_t target_pitch, cuda::Address source,
                 std::size_t source_pitch, std::size_t width, std::size_t rows,
                 cuda::Stream stream) const;

  // The driver's description of an error.
  std::string text_of(cuda::Result error) const;
};

// The error of a machine without a usable GPU.
Error no_gpu(const std::string& reason);

// What to do when memory has run out.
inline constexpr const char* kUseLessMemory =
    "Lower workers or batch_tokens, or export engines with a smaller --max-batch or --profiles.";

}  // namespace translate_trt::runtime
