#include "backends/device_memory.h"

#include <cstdint>
#include <cstring>

#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

cuda::Address address_of(const std::byte* data) {
  return static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(data));
}

}  // namespace

void copy_host_blocks(Blocks to, Blocks from, std::size_t width, std::size_t rows) {
  for (std::size_t i = 0; i < rows; ++i) {
    std::memcpy(to.data + i * to.pitch, from.data + i * from.pitch, width);
  }
}

// The primary context of the GPU, which ONNX Runtime uses as well, made current in a scope. The
// thread may belong to the host program, whose own context returns afterwards.
class DeviceMemory::Current {
 public:
  Current(const CudaDriver& driver, cuda::Context context) : driver_(driver) {
    driver_.check(driver_.push_context(context), "cuCtxPushCurrent");
  }
  ~Current() {
    cuda::Context popped = nullptr;
    static_cast<void>(driver_.pop_context(&popped));  // fails only if another call failed before
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaDriver& driver_;
};

DeviceMemory::DeviceMemory(int gpu, const std::string& driver) : driver_(CudaDriver::open(driver)) {
  int count = 0;
  driver_.check(driver_.count_devices(&count), "cuDeviceGetCount");
  if (gpu >= count) {
    throw backend_error("there is no GPU " + std::to_string(gpu) + "; this process sees " +
                        std::to_string(count) + ", which are counted from 0.");
  }
  driver_.check(driver_.get_device(&device_, gpu), "cuDeviceGet");
  driver_.check(driver_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    const Current current(driver_, context_);
    driver_.check(driver_.create_stream(&stream_, cuda::kNonBlocking), "cuStreamCreate");
  } catch (...) {
    static_cast<void>(driver_.release_context(device_));
    throw;
  }
}

DeviceMemory::~DeviceMemory() {
  // An error here has been reported by an earlier call.
  if (driver_.push_context(context_) == cuda::kSuccess) {
    static_cast<void>(driver_.destroy_stream(stream_));
    cuda::Context popped = nullptr;
    static_cast<void>(driver_.pop_context(&popped));
  }
  static_cast<void>(driver_.release_context(device_));
}

std::byte* DeviceMemory::allocate(std::size_t bytes) {
  const Current current(driver_, context_);
  cuda::Address address = 0;
  if (bytes == 0) bytes = 1;  // the driver refuses empty allocations
  driver_.check(driver_.allocate(&address, bytes), "cuMemAlloc");
  auto* data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  const cuda::Result filled = driver_.fill(address, 0, bytes, stream_);
  if (filled != cuda::kSuccess) {
    static_cast<void>(driver_.free(address));
    driver_.check(filled, "cuMemsetD8Async");
  }
  return data;
}

void DeviceMemory::release(std::byte* data) noexcept {
  if (driver_.push_context(context_) != cuda::kSuccess) return;
  static_cast<void>(driver_.wait_for_stream(stream_));  // enqueued copies may use the memory
  static_cast<void>(driver_.free(address_of(data)));
  cuda::Context popped = nullptr;
  static_cast<void>(driver_.pop_context(&popped));
}

std::byte* DeviceMemory::pin(std::size_t bytes) {
  const Current current(driver_, context_);
  void* data = nullptr;
  driver_.check(driver_.allocate_pinned(&data, bytes == 0 ? 1 : bytes, 0), "cuMemHostAlloc");
  return static_cast<std::byte*>(data);
}

void DeviceMemory::unpin(std::byte* data) noexcept {
  if (driver_.push_context(context_) != cuda::kSuccess) return;
  static_cast<void>(driver_.free_pinned(data));
  cuda::Context popped = nullptr;
  static_cast<void>(driver_.pop_context(&popped));
}

void DeviceMemory::copy_in(std::byte* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(driver_, context_);
  driver_.check(driver_.copy_in(address_of(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
}

void DeviceMemory::copy_out(void* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(driver_, context_);
  driver_.check(driver_.copy_out(to, address_of(from), bytes, stream_), "cuMemcpyDtoHAsync");
  driver_.check(driver_.wait_for_stream(stream_), "cuStreamSynchronize");
}

void DeviceMemory::copy(Blocks to, Blocks from, std::size_t width, std::size_t rows) {
  if (width == 0 || rows == 0) return;
  const Current current(driver_, context_);
  if (rows == 1 || (to.pitch == width && from.pitch == width)) {
    driver_.check(driver_.copy(address_of(to.data), address_of(from.data), width * rows, stream_),
                  "cuMemcpyDtoDAsync");
    return;
  }
  cuda::Copy2d copy = {};
  copy.source_type = copy.target_type = cuda::kDeviceMemory;
  copy.source = address_of(from.data), copy.source_pitch = from.pitch;
  copy.target = address_of(to.data), copy.target_pitch = to.pitch;
  copy.width = width, copy.height = rows;
  driver_.check(driver_.copy_2d(&copy, stream_), "cuMemcpy2DAsync");
}

void DeviceMemory::clear(std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(driver_, context_);
  driver_.check(driver_.fill(address_of(data), 0, bytes, stream_), "cuMemsetD8Async");
}

void DeviceMemory::wait() {
  const Current current(driver_, context_);
  driver_.check(driver_.wait_for_stream(stream_), "cuStreamSynchronize");
}

}  // namespace translate_trt::runtime
