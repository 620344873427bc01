// Memory of a GPU, and copies to, from and within it.
#pragma once

#include <cstddef>
#include <string>

#include "backends/cuda_context.h"

namespace translate_trt::runtime {

// Blocks of bytes at regular distances.
struct Blocks {
  std::byte* data;
  std::size_t pitch;  // bytes from one block to the next
};

// Copies `rows` blocks of `width` bytes in host memory.
void copy_host_blocks(Blocks to, Blocks from, std::size_t width, std::size_t rows);

// Copies are enqueued on a stream of their own, in order; `wait` waits for them. Used by one thread
// at a time, whose current CUDA context is the same after every call.
class DeviceMemory {
 public:
  // Throws a backend error if the GPU does not exist. driver: path of CUDA's driver library.
  explicit DeviceMemory(int gpu, const std::string& driver = cuda_driver_path());
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Allocates zeros. Throws std::bad_alloc if there is too little memory.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* data) noexcept;

  // Allocates page-locked host memory.
  std::byte* pin(std::size_t bytes);
  void unpin(std::byte* data) noexcept;

  // Copies to the device. Page-locked memory must not change before `wait`.
  void copy_in(std::byte* to, const void* from, std::size_t bytes);
  // Copies to the host, and waits.
  void copy_out(void* to, const std::byte* from, std::size_t bytes);
  // Copies `rows` blocks of `width` bytes within the device.
  void copy(Blocks to, Blocks from, std::size_t width, std::size_t rows);
  void clear(std::byte* data, std::size_t bytes);

  // Waits until graphs, which run on other streams, may use the memory.
  void wait();

 private:
  const CudaContext context_;
  const CudaDriver& driver_;
  cuda::Stream stream_ = nullptr;
};

}  // namespace translate_trt::runtime
