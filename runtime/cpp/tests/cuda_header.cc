// Compares cuda_driver.h with CUDA's own header. Compiled only where a CUDA toolkit is found.

#include <cuda.h>

#include "backends/cuda_driver.h"
#include "same_call.h"

namespace translate_trt::runtime {

namespace {

#define TT_SAME(member, name, parameters) TT_SAME_CALL(CudaDriver, member, name, #name)
TT_CUDA_FUNCTIONS(TT_SAME)
TT_CUDA_LATER_FUNCTIONS(TT_SAME)

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
