#include "backends/device_memory.h"

#include <cstdint>
#include <cstring>
#include <new>

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

DeviceMemory::DeviceMemory(int gpu, const std::string& driver)
    : context_(gpu, driver), driver_(context_.driver()) {
  const CudaContext::Scope scope(context_);
  driver_.check(driver_.create_stream(&stream_, cuda::kNonBlocking), "cuStreamCreate");
}

DeviceMemory::~DeviceMemory() {
  context_.free([this] { static_cast<void>(driver_.destroy_stream(stream_)); });
}

std::byte* DeviceMemory::allocate(std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  cuda::Address address = 0;
  if (bytes == 0) bytes = 1;  // the driver refuses empty allocations
  const cuda::Result result = driver_.allocate(&address, bytes);
  if (result == cuda::kOutOfMemory) throw std::bad_alloc();
  driver_.check(result, "cuMemAlloc");
  auto* data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  const cuda::Result filled = driver_.fill(address, 0, bytes, stream_);
  if (filled != cuda::kSuccess) {
    static_cast<void>(driver_.free(address));
    driver_.check(filled, "cuMemsetD8Async");
  }
  return data;
}

void DeviceMemory::release(std::byte* data) noexcept {
  context_.free([=] {
    static_cast<void>(driver_.wait_for_stream(stream_));  // enqueued copies may use the memory
    static_cast<void>(driver_.free(address_of(data)));
  });
}

std::byte* DeviceMemory::pin(std::size_t bytes) {
  const CudaContext::Scope scope(context_);
  void* data = nullptr;
  const cuda::Result result = driver_.allocate_pinned(&data, bytes == 0 ? 1 : bytes, 0);
  if (result == cuda::kOutOfMemory) throw std::bad_alloc();
  driver_.check(result, "cuMemHostAlloc");
  return static_cast<std::byte*>(data);
}

void DeviceMemory::unpin(std::byte* data) noexcept {
  context_.free([=] { static_cast<void>(driver_.free_pinned(data)); });
}

void DeviceMemory::copy_in(std::byte* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaContext::Scope scope(context_);
  driver_.check(driver_.copy_in(address_of(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
}

void DeviceMemory::copy_out(void* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaContext::Scope scope(context_);
  driver_.check(driver_.copy_out(to, address_of(from), bytes, stream_), "cuMemcpyDtoHAsync");
  driver_.check(driver_.wait_for_stream(stream_), "cuStreamSynchronize");
}

void DeviceMemory::copy(Blocks to, Blocks from, std::size_t width, std::size_t rows) {
  if (width == 0 || rows == 0) return;
  const CudaContext::Scope scope(context_);
  driver_.copy_rows(address_of(to.data), to.pitch, address_of(from.data), from.pitch, width, rows,
                    stream_);
}

void DeviceMemory::clear(std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  const CudaContext::Scope scope(context_);
  driver_.check(driver_.fill(address_of(data), 0, bytes, stream_), "cuMemsetD8Async");
}

void DeviceMemory::wait() {
  const CudaContext::Scope scope(context_);
  driver_.check(driver_.wait_for_stream(stream_), "cuStreamSynchronize");
}

}  // namespace translate_trt::runtime
