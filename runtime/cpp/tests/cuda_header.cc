// Compares cuda_driver.h with CUDA's own header. Compiled only where a CUDA toolkit is found.

#include <cuda.h>

#include <string_view>

#include "backends/cuda_driver.h"
#include "same_call.h"

namespace translate_trt::runtime {

namespace {

// The header renames functions to the names that the library exports.
#define TT_TEXT(name) #name
#define TT_EXPANDED(name) TT_TEXT(name)
#define TT_NAME(function, exported) \
  static_assert(std::string_view(TT_EXPANDED(function)) == exported)

TT_NAME(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
TT_NAME(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
TT_NAME(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
TT_NAME(cuStreamCreate, "cuStreamCreate");
TT_NAME(cuStreamDestroy, "cuStreamDestroy_v2");
TT_NAME(cuStreamSynchronize, "cuStreamSynchronize");
TT_NAME(cuEventRecord, "cuEventRecord");
TT_NAME(cuEventDestroy, "cuEventDestroy_v2");
TT_NAME(cuStreamBeginCapture, "cuStreamBeginCapture_v2");
TT_NAME(cuStreamEndCapture, "cuStreamEndCapture");
TT_NAME(cuGraphLaunch, "cuGraphLaunch");
TT_NAME(cuMemGetInfo, "cuMemGetInfo_v2");
TT_NAME(cuMemAlloc, "cuMemAlloc_v2");
TT_NAME(cuMemFree, "cuMemFree_v2");
TT_NAME(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
TT_NAME(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
TT_NAME(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
TT_NAME(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2");
TT_NAME(cuMemsetD8Async, "cuMemsetD8Async");
TT_NAME(cuLaunchKernel, "cuLaunchKernel");
TT_NAME(cuLaunchKernelEx, "cuLaunchKernelEx");

#define TT_SAME(member, function) TT_SAME_CALL(CudaDriver, member, function)

TT_SAME(init, cuInit);
TT_SAME(error_text, cuGetErrorString);
TT_SAME(count_devices, cuDeviceGetCount);
TT_SAME(get_device, cuDeviceGet);
TT_SAME(device_name, cuDeviceGetName);
TT_SAME(device_attribute, cuDeviceGetAttribute);
TT_SAME(retain_context, cuDevicePrimaryCtxRetain);
TT_SAME(release_context, cuDevicePrimaryCtxRelease);
TT_SAME(set_context, cuCtxSetCurrent);
TT_SAME(push_context, cuCtxPushCurrent);
TT_SAME(pop_context, cuCtxPopCurrent);
TT_SAME(create_stream, cuStreamCreate);
TT_SAME(destroy_stream, cuStreamDestroy);
TT_SAME(wait_for_stream, cuStreamSynchronize);
TT_SAME(create_event, cuEventCreate);
TT_SAME(destroy_event, cuEventDestroy);
TT_SAME(record_event, cuEventRecord);
TT_SAME(wait_for_event, cuEventSynchronize);
TT_SAME(begin_capture, cuStreamBeginCapture);
TT_SAME(end_capture, cuStreamEndCapture);
TT_SAME(destroy_graph, cuGraphDestroy);
TT_SAME(instantiate, cuGraphInstantiateWithFlags);
TT_SAME(destroy_executable, cuGraphExecDestroy);
TT_SAME(launch_graph, cuGraphLaunch);
TT_SAME(memory_info, cuMemGetInfo);
TT_SAME(allocate, cuMemAlloc);
TT_SAME(free, cuMemFree);
TT_SAME(allocate_pinned, cuMemHostAlloc);
TT_SAME(free_pinned, cuMemFreeHost);
TT_SAME(copy_in, cuMemcpyHtoDAsync);
TT_SAME(copy_out, cuMemcpyDtoHAsync);
TT_SAME(copy, cuMemcpyDtoDAsync);
TT_SAME(copy_2d, cuMemcpy2DAsync);
TT_SAME(fill, cuMemsetD8Async);
TT_SAME(load_module, cuModuleLoadData);
TT_SAME(unload_module, cuModuleUnload);
TT_SAME(get_function, cuModuleGetFunction);
TT_SAME(function_attribute, cuFuncSetAttribute);
TT_SAME(launch, cuLaunchKernel);
TT_SAME(launch_with, cuLaunchKernelEx);

static_assert(cuda::kSuccess == CUDA_SUCCESS && cuda::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::kNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(cuda::kDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kThreadLocal == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(cuda::kDeviceMemory == CU_MEMORYTYPE_DEVICE);
static_assert(cuda::kMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(cuda::kCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cuda::kCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cuda::kMaxDynamicShared == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(cuda::kProgrammaticOverlap == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);

static_assert(sizeof(cuda::Copy2d) == sizeof(CUDA_MEMCPY2D));
static_assert(sizeof(cuda::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(sizeof(cuda::LaunchConfig) == sizeof(CUlaunchConfig));
#define TT_MEMBER(own, member, type, its) \
  static_assert(offsetof(cuda::own, member) == offsetof(type, its))
TT_MEMBER(LaunchAttribute, value, CUlaunchAttribute, value);
TT_MEMBER(LaunchConfig, block_x, CUlaunchConfig, blockDimX);
TT_MEMBER(LaunchConfig, shared, CUlaunchConfig, sharedMemBytes);
TT_MEMBER(LaunchConfig, stream, CUlaunchConfig, hStream);
TT_MEMBER(LaunchConfig, attributes, CUlaunchConfig, attrs);
TT_MEMBER(LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);
TT_MEMBER(Copy2d, source_type, CUDA_MEMCPY2D, srcMemoryType);
TT_MEMBER(Copy2d, source, CUDA_MEMCPY2D, srcDevice);
TT_MEMBER(Copy2d, source_pitch, CUDA_MEMCPY2D, srcPitch);
TT_MEMBER(Copy2d, target_type, CUDA_MEMCPY2D, dstMemoryType);
TT_MEMBER(Copy2d, target, CUDA_MEMCPY2D, dstDevice);
TT_MEMBER(Copy2d, target_pitch, CUDA_MEMCPY2D, dstPitch);
TT_MEMBER(Copy2d, width, CUDA_MEMCPY2D, WidthInBytes);
TT_MEMBER(Copy2d, height, CUDA_MEMCPY2D, Height);

}  // namespace

}  // namespace translate_trt::runtime
