// Compares cuda_driver.h with CUDA's own header. Compiled only where a CUDA toolkit is found.

#include <cuda.h>

#include <string_view>

#include "backends/cuda_driver.h"

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
TT_NAME(cuStreamDestroy, "cuStreamDestroy_v2");
TT_NAME(cuMemAlloc, "cuMemAlloc_v2");
TT_NAME(cuMemFree, "cuMemFree_v2");
TT_NAME(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
TT_NAME(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
TT_NAME(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
TT_NAME(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2");
TT_NAME(cuMemsetD8Async, "cuMemsetD8Async");
TT_NAME(cuStreamCreate, "cuStreamCreate");
TT_NAME(cuStreamSynchronize, "cuStreamSynchronize");

// Whether two functions take as many arguments, of the same sizes, and return as much.
template <class One, class Other>
struct SameCall;

template <class One, class Other, class... Ones, class... Others>
struct SameCall<One (*)(Ones...), Other (*)(Others...)> {
  static constexpr bool same() {
    if constexpr (sizeof...(Ones) != sizeof...(Others)) {
      return false;
    } else {
      return sizeof(One) == sizeof(Other) && ((sizeof(Ones) == sizeof(Others)) && ...);
    }
  }
};

#define TT_SAME(member, function) \
  static_assert(SameCall<decltype(CudaDriver::member), decltype(&function)>::same())

TT_SAME(init, cuInit);
TT_SAME(count_devices, cuDeviceGetCount);
TT_SAME(get_device, cuDeviceGet);
TT_SAME(retain_context, cuDevicePrimaryCtxRetain);
TT_SAME(release_context, cuDevicePrimaryCtxRelease);
TT_SAME(push_context, cuCtxPushCurrent);
TT_SAME(pop_context, cuCtxPopCurrent);
TT_SAME(create_stream, cuStreamCreate);
TT_SAME(destroy_stream, cuStreamDestroy);
TT_SAME(wait_for_stream, cuStreamSynchronize);
TT_SAME(allocate, cuMemAlloc);
TT_SAME(free, cuMemFree);
TT_SAME(allocate_pinned, cuMemHostAlloc);
TT_SAME(free_pinned, cuMemFreeHost);
TT_SAME(copy_in, cuMemcpyHtoDAsync);
TT_SAME(copy_out, cuMemcpyDtoHAsync);
TT_SAME(copy, cuMemcpyDtoDAsync);
TT_SAME(copy_2d, cuMemcpy2DAsync);
TT_SAME(fill, cuMemsetD8Async);
TT_SAME(error_text, cuGetErrorString);

static_assert(cuda::kSuccess == CUDA_SUCCESS && cuda::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::kNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kDeviceMemory == CU_MEMORYTYPE_DEVICE);

static_assert(sizeof(cuda::Copy2d) == sizeof(CUDA_MEMCPY2D));
#define TT_PLACE(member, its) \
  static_assert(offsetof(cuda::Copy2d, member) == offsetof(CUDA_MEMCPY2D, its))
TT_PLACE(source_type, srcMemoryType);
TT_PLACE(source, srcDevice);
TT_PLACE(source_pitch, srcPitch);
TT_PLACE(target_type, dstMemoryType);
TT_PLACE(target, dstDevice);
TT_PLACE(target_pitch, dstPitch);
TT_PLACE(width, WidthInBytes);
TT_PLACE(height, Height);

}  // namespace

}  // namespace translate_trt::runtime
