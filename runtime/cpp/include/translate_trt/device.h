/* Device functions: how libtranslate_trt runs TensorRT engines through functions of its caller.
 *
 * Those of translate_trt/cuda.h need only functions that run the engines, as Python's with the
 * tensorrt package (runtime/native/device_functions.py); Python implements all of them with
 * PyTorch. A library that was built with -D TRANSLATE_TRT_TENSORRT=ON runs engines itself if
 * tt_load_options.engines is NULL. Any other build links neither CUDA nor TensorRT.
 *
 * The library runs the decoding loop: it assigns sentences to rows, enqueues steps ahead and
 * decides what to copy back. The functions only forward its requests to the device.
 *
 * A device is a memory allocator and one in-order work queue, like a CUDA stream. Unless its
 * comment says that it blocks, a function returns at once and its work runs later, after all work
 * that was enqueued on the same device before. The library uses a device from one thread at a time,
 * which may change, and may use several devices at the same time. On failure, a function calls
 * tt_device_fail and returns its status.
 */
#ifndef TRANSLATE_TRT_DEVICE_H_
#define TRANSLATE_TRT_DEVICE_H_

#include "translate_trt/translate_trt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Alignment in bytes of every address that tt_device_functions.allocate returns. */
#define TT_DEVICE_ALIGNMENT 256

enum { TT_ENGINE_ENCODER = 0, TT_ENGINE_STEP = 1 };

/* An input or output of an engine. */
typedef struct tt_device_tensor {
  const char* name;
  const int64_t* shape; /* of an input; NULL for an output, whose shape follows from the inputs */
  size_t rank;
  uint64_t address; /* device address */
} tt_device_tensor;

/* One execution of an engine. */
typedef struct tt_launch {
  int32_t engine;  /* TT_ENGINE_... */
  int32_t profile; /* index of the optimization profile */
  size_t tensor_count;
  const tt_device_tensor* tensors; /* all inputs and outputs; valid until the function returns */
} tt_launch;

typedef struct tt_device_functions {
  size_t struct_size;
  void* context; /* passed to open */

  /* Creates a device with its own execution contexts of both engines. */
  tt_status (*open)(void* context, void** device);
  /* Waits for the device's work, then frees the device and everything that belongs to it. */
  void (*close)(void* device);
  /* Makes the device current in the calling thread. */
  tt_status (*activate)(void* device);
  /* Allocates uninitialized device memory, which belongs to the device. Blocks. */
  tt_status (*allocate)(void* device, size_t size, uint64_t* address);
  /* Allocates pinned host memory, which belongs to the device. Blocks. */
  tt_status (*pin)(void* device, size_t size, void** memory);
  /* Copies pinned host memory to the device. The caller leaves the source unchanged until the copy
   * has run. */
  tt_status (*copy_in)(void* device, uint64_t target, const void* source, size_t size);
  /* Copies device memory to pinned host memory. The caller reads it after a later event has passed.
   */
  tt_status (*copy_out)(void* device, void* target, uint64_t source, size_t size);
  /* Copies `height` rows of `width` bytes within device memory. A pitch is the distance in bytes
   * between the starts of two rows; both may be 0 if there is one row. */
  tt_status (*copy)(void* device, uint64_t target, uint64_t source, size_t width, size_t height,
                    size_t target_pitch, size_t source_pitch);
  /* Sets every byte to the same value. */
  tt_status (*fill)(void* device, uint64_t target, int32_t value, size_t size);
  /* Runs an engine. */
  tt_status (*launch)(void* device, const tt_launch* launch);
  /* Records an event at the current end of the queue. */
  tt_status (*record)(void* device, void** event);
  /* Waits until all work before the event is done, and frees the event. Blocks. Events that are
   * never waited for are freed with the device. */
  tt_status (*wait)(void* device, void* event);
  /* Starts a capture: until end_capture, work is recorded instead of executed. */
  tt_status (*begin_capture)(void* device);
  /* Ends a capture. graph: set to the captured graph, which belongs to the device; if NULL, the
   * recorded work is discarded. After a failure the device is as if nothing had been captured. */
  tt_status (*end_capture)(void* device, void** graph);
  /* Enqueues all work of a graph. */
  tt_status (*replay)(void* device, void* graph);
  /* Sets the free and the total memory in bytes of the device that `open` would use. May be NULL;
   * otherwise the library asks before it allocates, and refuses what does not fit. */
  tt_status (*memory)(void* context, uint64_t* free_bytes, uint64_t* total_bytes);
} tt_device_functions;

/* An optimization profile: of the encoder, for all shapes up to these sizes; of the step, for
 * exactly this shape. */
typedef struct tt_profile {
  int32_t batch;         /* sentences */
  int32_t source_length; /* tokens, the end symbol included */
  int32_t slots;         /* cache slots that a step reads; 0 for the encoder */
} tt_profile;

/* Largest sizes of the step inputs of rules 13 to 15 (docs/beam-search.md), in profiles for steps
 * with such inputs. In others these inputs are empty. */
typedef struct tt_change_sizes {
  int32_t marked_tokens;     /* of a beam, B */
  int32_t sampled_ranks;     /* of a sentence, R */
  int32_t tail_tokens;       /* of a sentence, D */
  int32_t constraint_tokens; /* of a sentence, U */
} tt_change_sizes;

/* Loaded engines, for tt_load_options. The caller has verified that their inputs and outputs match
 * the contract of the bundle, and that they write their caches in place. */
typedef struct tt_engines {
  size_t struct_size;
  const tt_device_functions* functions; /* copied; `context` must outlive the translator */
  /* By profile index; copied. The profiles of the step are all combinations of some pairs of
   * `batch` and `source_length` with some numbers of slots, the largest of which is that of the
   * caches. If a size in `changes` is not 0, the same profiles follow once more, in the same order,
   * for steps with these inputs. */
  const tt_profile* encoder_profiles;
  size_t encoder_profile_count;
  const tt_profile* step_profiles;
  size_t step_profile_count;
  int32_t poll_every;      /* steps between two checks for finished sentences, from 1 to 64 */
  int32_t cuda_graphs;     /* 1: capture steps in CUDA graphs and replay them */
  uint64_t scratch_bytes;  /* device memory that `open` allocates, such as scratch memory of the
                              engines; 0 if unknown */
  tt_change_sizes changes; /* zeros: the step does not have the inputs of rules 13 to 15 */
} tt_engines;

/* Sets the calling thread's error message, which tt_last_error returns, and returns `status`. For
 * implementations of device functions. */
TT_API tt_status tt_device_fail(tt_status status, const char* message);

#ifdef __cplusplus
}
#endif

#endif /* TRANSLATE_TRT_DEVICE_H_ */
