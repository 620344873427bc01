// The functions of CUDA's driver library that device memory needs. The library belongs to the GPU's
// driver and has a stable interface, so it is loaded at run time, and no CUDA header is needed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/platform.h"

namespace translate_trt::runtime {

// Types of cuda.h. tests/cuda_header.cc compares them with the header where a CUDA toolkit is.
namespace cuda {

using Result = int;
using Device = int;
using Address = unsigned long long;  // CUdeviceptr
struct ContextTag;
struct StreamTag;
using Context = ContextTag*;
using Stream = StreamTag*;

inline constexpr Result kSuccess = 0, kOutOfMemory = 2;
inline constexpr unsigned int kNonBlocking = 1;  // the stream does not wait for the default stream
inline constexpr int kDeviceMemory = 2;          // CU_MEMORYTYPE_DEVICE

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

}  // namespace cuda

// CALL(member, exported name, parameters) for every function.
#define TT_CUDA_FUNCTIONS(CALL)                                                                  \
  CALL(init, "cuInit", (unsigned int))                                                           \
  CALL(count_devices, "cuDeviceGetCount", (int*))                                                \
  CALL(get_device, "cuDeviceGet", (cuda::Device*, int))                                          \
  CALL(retain_context, "cuDevicePrimaryCtxRetain", (cuda::Context*, cuda::Device))               \
  CALL(release_context, "cuDevicePrimaryCtxRelease_v2", (cuda::Device))                          \
  CALL(push_context, "cuCtxPushCurrent_v2", (cuda::Context))                                     \
  CALL(pop_context, "cuCtxPopCurrent_v2", (cuda::Context*))                                      \
  CALL(create_stream, "cuStreamCreate", (cuda::Stream*, unsigned int))                           \
  CALL(destroy_stream, "cuStreamDestroy_v2", (cuda::Stream))                                     \
  CALL(wait_for_stream, "cuStreamSynchronize", (cuda::Stream))                                   \
  CALL(allocate, "cuMemAlloc_v2", (cuda::Address*, std::size_t))                                 \
  CALL(free, "cuMemFree_v2", (cuda::Address))                                                    \
  CALL(allocate_pinned, "cuMemHostAlloc", (void**, std::size_t, unsigned int))                   \
  CALL(free_pinned, "cuMemFreeHost", (void*))                                                    \
  CALL(copy_in, "cuMemcpyHtoDAsync_v2", (cuda::Address, const void*, std::size_t, cuda::Stream)) \
  CALL(copy_out, "cuMemcpyDtoHAsync_v2", (void*, cuda::Address, std::size_t, cuda::Stream))      \
  CALL(copy, "cuMemcpyDtoDAsync_v2", (cuda::Address, cuda::Address, std::size_t, cuda::Stream))  \
  CALL(copy_2d, "cuMemcpy2DAsync_v2", (const cuda::Copy2d*, cuda::Stream))                       \
  CALL(fill, "cuMemsetD8Async", (cuda::Address, unsigned char, std::size_t, cuda::Stream))       \
  CALL(error_text, "cuGetErrorString", (cuda::Result, const char**))

struct CudaDriver {
#define TT_CUDA_MEMBER(member, name, parameters) cuda::Result(*member) parameters = nullptr;
  TT_CUDA_FUNCTIONS(TT_CUDA_MEMBER)
#undef TT_CUDA_MEMBER

  // Opens and initializes the library, once per path; it stays open until the process ends. Throws
  // a backend error if there is no library or no usable GPU.
  static const CudaDriver& open(const std::string& path = kCudaDriver);

  // Throws std::bad_alloc if GPU memory ran out, and a backend error for every other failure.
  void check(cuda::Result result, const char* what) const;
};

}  // namespace translate_trt::runtime
