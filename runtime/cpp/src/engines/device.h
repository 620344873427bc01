// A GPU as a batch uses it: memory, one work queue, and both engines. Wraps the functions of
// translate_trt/device.h and throws their failures as errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "translate_trt/device.h"

namespace translate_trt::runtime {

// Alignment of tensors, which TensorRT requires.
inline constexpr std::size_t kAlignment = TT_DEVICE_ALIGNMENT;

using Address = std::uint64_t;  // device address

// An input or output of an engine.
struct DeviceTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // empty for an output
  Address address;
};

// Throws the error of a device function that has failed.
void check_device(tt_status status);

// A point in a device's queue. It may be waited for once.
using Event = void*;

// Captured work that can be replayed.
using DeviceGraph = void*;

// Memory and an in-order work queue. Used by one thread at a time. All functions except `allocate`,
// `pin`, `wait` and `capture` only enqueue their work. If the device is out of memory or lost, they
// usually throw a backend error.
class Device {
 public:
  explicit Device(const tt_device_functions& functions);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes the device current in the calling thread.
  void activate();

  // Allocates uninitialized device memory, aligned to kAlignment.
  Address allocate(std::size_t size);

  // Allocates pinned host memory, which is freed with the device.
  std::byte* pin(std::size_t size);

  // Copies pinned memory to the device. The source must not change until the copy has run.
  void copy_in(Address target, const std::byte* source, std::size_t size);

  // Copies device memory to pinned memory, which may be read once a later event has passed.
  void copy_out(std::byte* target, Address source, std::size_t size);

  // Copies within device memory.
  void copy(Address target, Address source, std::size_t size);

  // Copies `height` rows of `width` bytes within device memory; pitches are the distances between
  // rows.
  void copy_rows(Address target, std::size_t target_pitch, Address source, std::size_t source_pitch,
                 std::size_t width, std::size_t height);

  // Sets every byte to the same value.
  void fill(Address target, int value, std::size_t size);

  // Runs an engine (TT_ENGINE_...) with an optimization profile.
  void launch(int engine, std::size_t profile, const std::vector<DeviceTensor>& tensors);

  Event record();
  void wait(Event event);

  // Captures the work that `work` enqueues, without executing it. If it throws, the capture is
  // discarded.
  template <class Work>
  DeviceGraph capture(const Work& work) {
    begin_capture();
    try {
      work();
    } catch (...) {
      functions_.end_capture(device_, nullptr);
      throw;
    }
    return end_capture();
  }

  // Enqueues the captured work, with the captured addresses and shapes.
  void replay(DeviceGraph graph);

 private:
  void begin_capture();
  DeviceGraph end_capture();

  tt_device_functions functions_;
  void* device_ = nullptr;
};

// Uploads of host arrays to one device buffer, through pinned staging memory.
class Upload {
 public:
  // size: bytes of the largest array.
  Upload(Device& device, std::size_t size);

  Address target() const { return target_; }

  // Copies an array, which may change as soon as this returns.
  void send(const void* content, std::size_t size);

 private:
  Device* device_;
  Address target_;
  std::byte* staging_;
  Event taken_ = nullptr;
};

}  // namespace translate_trt::runtime
