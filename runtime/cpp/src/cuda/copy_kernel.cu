// Compiled to copy_kernel.inc, PTX that the driver compiles for its GPU, so that no build needs
// nvcc:
//
//   python scripts/copy_kernel.py
#include "cuda/copy_kernel.h"

// The tasks are read where the driver has put them: a variable index would copy all of them.
extern "C" __global__ void copy_kernel(
    const __grid_constant__ translate_trt::runtime::CopyTasks all) {
  translate_trt::runtime::copy_share(all.tasks[blockIdx.x], blockIdx.y, threadIdx.x);
}
