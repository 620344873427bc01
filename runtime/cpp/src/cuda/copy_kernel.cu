#include "cuda/copy_kernel.h"

namespace translate_trt::runtime {

namespace {

__global__ void copy_kernel(const __grid_constant__ CopyTasks all) {
  copy_share(all.tasks[blockIdx.x], blockIdx.y, threadIdx.x);
}

}  // namespace

cudaError_t launch_copies(const CopyTasks& tasks, unsigned count, cudaStream_t stream) {
  void* arguments[] = {const_cast<CopyTasks*>(&tasks)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&copy_kernel), dim3(count, kCopyBlocks),
                          dim3(kCopyThreads), arguments, 0, stream);
}

}  // namespace translate_trt::runtime
