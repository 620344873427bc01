/* The CUDA part of device functions (translate_trt/device.h): memory, copies, events, capture and
 * replay on one CUDA stream. Only engines are left to the caller: code of your own, TensorRT, or
 * another library that enqueues its work on a given stream. Everything uses the primary context of
 * the GPU, as the CUDA runtime does.
 *
 * They call the GPU's driver, which is loaded at run time. This header needs no CUDA: a
 * CUstream_st* is a cudaStream_t and a CUstream.
 */
#ifndef TRANSLATE_TRT_CUDA_H_
#define TRANSLATE_TRT_CUDA_H_

#include "translate_trt/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Engines that run on CUDA streams. All functions are called with the GPU's context current. On
 * failure, open and launch call tt_device_fail and return its status. */
typedef struct tt_cuda_engines {
  size_t struct_size;
  void* context;          /* passed to open */
  int32_t gpu;            /* index of the GPU, from 0 */
  uint64_t scratch_bytes; /* scratch memory of a device, for its engines; 0 for none. Equals
                             tt_engines.scratch_bytes unless `open` allocates more. */

  /* Creates what one device needs to run engines on its stream, such as execution contexts.
   * Captured graphs may refer to it. scratch: device address, which remains valid until `close` has
   * returned; 0 if there is none. */
  tt_status (*open)(void* context, struct CUstream_st* stream, uint64_t scratch, void** engines);
  /* Frees it. The stream is idle and its graphs are freed. The thread may be any. */
  void (*close)(void* engines);
  /* Enqueues an engine on the stream. During a capture, CUDA permits neither allocations nor
   * waiting in this thread. */
  tt_status (*launch)(void* engines, const tt_launch* launch);
} tt_cuda_engines;

/* Sets all device functions, for tt_engines.functions. Every device has a stream of its own.
 * engines: must outlive the translator.
 *
 * TT_BACKEND_ERROR: there is no such GPU, or it cannot be used. TT_OPTION_ERROR: a function is
 * NULL. */
TT_API tt_status tt_cuda_functions(const tt_cuda_engines* engines, tt_device_functions* functions);

/* Calls `work` in a temporary thread in which the GPU is current, and returns its status: to load
 * engines without changing the current GPU of the calling thread. As with the CUDA runtime, the
 * GPU's primary context, to which the engines belong, remains until the process ends. */
TT_API tt_status tt_cuda_call(int32_t gpu, tt_status (*work)(void* context), void* context);

#ifdef __cplusplus
}
#endif

#endif /* TRANSLATE_TRT_CUDA_H_ */
