// A device of translate_trt/device.h on one CUDA stream. Engines are left to subclasses.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/errors.h"
#include "cuda/cuda_queue.h"
#include "translate_trt/device.h"

namespace translate_trt::runtime {

// A queue whose `launch` runs engines on its stream. A subclass frees what captured graphs use in
// its destructor, after `queue().finish()`.
class CudaDevice {
 public:
  explicit CudaDevice(std::shared_ptr<const CudaContext> context) : queue_(std::move(context)) {}
  virtual ~CudaDevice() = default;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  CudaQueue& queue() { return queue_; }

  // Enqueues an engine, which may be during a capture. Failures are thrown.
  virtual void launch(const tt_launch& work) = 0;

 private:
  CudaQueue queue_;
};

// Runs `work` for a function of tt_device_functions. Converts exceptions, which may not pass
// through C, to a status and a message.
template <class Work>
tt_status device_status(const Work& work) noexcept {
  try {
    work();
    return TT_OK;
  } catch (const Error& error) {
    return tt_device_fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return tt_device_fail(TT_MEMORY_ERROR, "memory ran out. Lower batch_tokens or workers.");
  } catch (const std::exception& error) {
    return tt_device_fail(TT_BACKEND_ERROR, error.what());
  }
}

// The functions of devices that point to a CudaDevice. The caller adds `context` and `open`, which
// sets the pointer.
tt_device_functions cuda_device_functions();

}  // namespace translate_trt::runtime
