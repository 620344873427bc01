/* How libtranslate_trt runs TensorRT's engines: through functions that its caller brings. Python
 * brings them by way of cuda-python and TensorRT's own package
 * (runtime/native/device_functions.py). A library that was built with -D TRANSLATE_TRT_TENSORRT=ON
 * has its own, which it takes where tt_load_options.engines is NULL; any other links neither CUDA
 * nor TensorRT.
 *
 * The loop over the step graph (which rows sentences have, steps taken ahead, what is fetched) is
 * the library's; the functions only pass on what it asks a device for.
 *
 * A device is memory and one queue of work in order. Unless it says otherwise, a function returns
 * at once: what it asks for happens later, after what was asked of the same device before. By one
 * thread at a time, not always the same one; several devices at once. On failure a function calls
 * tt_device_fail and returns its status.
 */
#ifndef TRANSLATE_TRT_DEVICE_H_
#define TRANSLATE_TRT_DEVICE_H_

#include "translate_trt/translate_trt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses that tt_device_functions.allocate returns are multiples of it. */
#define TT_DEVICE_ALIGNMENT 256

enum { TT_ENGINE_ENCODER = 0, TT_ENGINE_STEP = 1 };

/* An input or output of an engine. */
typedef struct tt_device_tensor {
  const char* name;
  const int64_t* shape; /* of an input; NULL: an output, whose shape follows from the inputs */
  size_t rank;
  uint64_t address; /* in the device's memory */
} tt_device_tensor;

/* One run of an engine. */
typedef struct tt_launch {
  int32_t engine;  /* TT_ENGINE_... */
  int32_t profile; /* index of the optimization profile */
  size_t tensor_count;
  const tt_device_tensor* tensors; /* every input and output, until the function returns */
} tt_launch;

typedef struct tt_device_functions {
  size_t struct_size;
  void* context; /* handed to open */

  /* A new device, with contexts of both engines of its own. */
  tt_status (*open)(void* context, void** device);
  /* Waits for its work, and frees it with all that it owns. */
  void (*close)(void* device);
  /* The calling thread uses it from now on. */
  tt_status (*activate)(void* device);
  /* Bytes of any content, which belong to the device. Blocks. */
  tt_status (*allocate)(void* device, size_t size, uint64_t* address);
  /* The host's memory that the device itself can read and write; it belongs to the device. Blocks.
   */
  tt_status (*pin)(void* device, size_t size, void** memory);
  /* From pinned memory, which is not changed until then. */
  tt_status (*copy_in)(void* device, uint64_t target, const void* source, size_t size);
  /* Into pinned memory, which is not read before an event after it has passed. */
  tt_status (*copy_out)(void* device, void* target, uint64_t source, size_t size);
  /* Within the device's memory, `height` rows of `width` bytes that begin a pitch apart; with one
   * row, pitches may be 0. */
  tt_status (*copy)(void* device, uint64_t target, uint64_t source, size_t width, size_t height,
                    size_t target_pitch, size_t source_pitch);
  /* Sets that many bytes to one value. */
  tt_status (*fill)(void* device, uint64_t target, int32_t value, size_t size);
  tt_status (*launch)(void* device, const tt_launch* launch);
  /* This point of the queue. */
  tt_status (*record)(void* device, void** event);
  /* Blocks until all that was asked for before the event is done, and frees the event. Other
   * events are freed with the device. */
  tt_status (*wait)(void* device, void* event);
  /* From here to end_capture, work is noted instead of done. */
  tt_status (*begin_capture)(void* device);
  /* graph: belongs to the device; NULL: the work that was noted is forgotten. A failure leaves the
   * device as if nothing had been captured. */
  tt_status (*end_capture)(void* device, void** graph);
  /* Asks for all work of a graph at once. */
  tt_status (*replay)(void* device, void* graph);
} tt_device_functions;

/* One bucket of shapes that both engines take: everything up to `batch` x `source_length`. */
typedef struct tt_profile {
  int32_t batch;         /* sentences */
  int32_t source_length; /* tokens, the end symbol included */
} tt_profile;

/* Engines that are loaded, in tt_load_options. They must take and give what the contract declares,
 * and write their caches in place, which the caller has checked. */
typedef struct tt_engines {
  size_t struct_size;
  const tt_device_functions* functions; /* copied; what they use lives as long as the translator */
  const tt_profile* profiles;           /* by index; copied */
  size_t profile_count;
  int32_t poll_every;  /* steps between two looks at which sentences are done, 1 to 64 */
  int32_t cuda_graphs; /* 1: capture steps and replay them */
} tt_engines;

/* For a function of a device that fails: what tt_last_error will say. Returns the status. */
TT_API tt_status tt_device_fail(tt_status status, const char* message);

#ifdef __cplusplus
}
#endif

#endif /* TRANSLATE_TRT_DEVICE_H_ */
