// What a batch needs of a GPU: memory, one queue of work, and both engines; the functions of
// translate_trt/device.h, whose failures become errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "translate_trt/device.h"

namespace translate_trt::runtime {

// Tensors begin at a multiple of it: TensorRT asks for that.
inline constexpr std::size_t kAlignment = TT_DEVICE_ALIGNMENT;

using Address = std::uint64_t;  // in the device's memory

// An input or output of an engine.
struct DeviceTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // of an output: empty
  Address address;
};

// A point in a device's queue. Waited for at most once.
using Event = void*;

// Work that was captured, to be replayed.
using DeviceGraph = void*;

// A queue of work in order, and memory. By one thread at a time. All but `allocate`, `pin`, `wait`
// and `capture` return at once: what they ask for happens later, after what was asked for before.
// A backend error, as a rule, if the device is out of memory or lost.
class Device {
 public:
  explicit Device(const tt_device_functions& functions);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Uses it from this thread from now on.
  void activate();

  // That many bytes of any content, at a multiple of kAlignment.
  Address allocate(std::size_t size);

  // The host's memory that the device can read and write itself; freed with the device.
  std::byte* pin(std::size_t size);

  // From pinned memory, which must stay as it is until then.
  void copy_in(Address target, const std::byte* source, std::size_t size);

  // Into pinned memory, where it may be read once an event after it has passed.
  void copy_out(std::byte* target, Address source, std::size_t size);

  // Within the device's memory.
  void copy(Address target, Address source, std::size_t size);

  // The same of `height` rows of `width` bytes that begin a pitch apart.
  void copy_rows(Address target, std::size_t target_pitch, Address source, std::size_t source_pitch,
                 std::size_t width, std::size_t height);

  // Sets that many bytes to one value.
  void fill(Address target, int value, std::size_t size);

  // Runs an engine (TT_ENGINE_...) with the context of a profile.
  void launch(int engine, std::size_t profile, const std::vector<DeviceTensor>& tensors);

  Event record();
  void wait(Event event);

  // What `work` asks for, without doing any of it. Whatever fails in between becomes an error, and
  // nothing is captured.
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

  // Asks for all of it at once, with the same addresses and shapes.
  void replay(DeviceGraph graph);

 private:
  void begin_capture();
  DeviceGraph end_capture();

  tt_device_functions functions_;
  void* device_ = nullptr;
};

// Arrays of the host on their way to one place of the device, one after another.
class Upload {
 public:
  // size: bytes of the largest.
  Upload(Device& device, std::size_t size);

  Address target() const { return target_; }

  // Copies that many bytes, which may be changed as soon as this returns.
  void send(const void* content, std::size_t size);

 private:
  Device* device_;
  Address target_;
  std::byte* staging_;
  Event taken_ = nullptr;
};

}  // namespace translate_trt::runtime
