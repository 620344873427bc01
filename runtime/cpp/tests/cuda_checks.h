// Checks of devices by translate_trt/cuda.h, for the fake CUDA driver and for a GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda_driver.h"
#include "check.h"
#include "random.h"
#include "translate_trt/cuda.h"

namespace translate_trt::runtime {

// Engines that copy their first tensor, whose shape is its size in bytes, to the second one.
struct CopyingEngines {
  cuda::Stream stream;
  static inline int alive = 0;

  static tt_cuda_engines functions(int gpu) {
    tt_cuda_engines made = {};
    made.struct_size = sizeof(made);
    made.gpu = gpu;
    made.scratch_bytes = 1000;
    made.open = [](void*, CUstream_st* stream, std::uint64_t scratch, void** engines) {
      CHECK(scratch != 0 && scratch % TT_DEVICE_ALIGNMENT == 0);
      *engines = new CopyingEngines{stream};
      ++alive;
      return tt_status{TT_OK};
    };
    made.close = [](void* engines) {
      delete static_cast<CopyingEngines*>(engines);
      --alive;
    };
    made.launch = [](void* engines, const tt_launch* launch) {
      const tt_device_tensor &from = launch->tensors[0], &to = launch->tensors[1];
      const CudaDriver& driver = CudaDriver::open();
      const cuda::Result result =
          driver.copy(to.address, from.address, static_cast<std::size_t>(from.shape[0]),
                      static_cast<CopyingEngines*>(engines)->stream);
      return result == cuda::kSuccess
                 ? tt_status{TT_OK}
                 : tt_device_fail(TT_BACKEND_ERROR, driver.text_of(result).c_str());
    };
    return made;
  }
};

// One open device and its functions.
class CheckedDevice {
 public:
  static constexpr std::size_t kSize = 4096;

  explicit CheckedDevice(const tt_device_functions& functions) : functions_(functions) {
    CHECK(functions_.open(functions_.context, &device_) == TT_OK);
    CHECK(functions_.activate(device_) == TT_OK);
    for (std::uint64_t* address : {&first, &second, &third}) {
      CHECK(functions_.allocate(device_, kSize, address) == TT_OK);
      CHECK(*address != 0 && *address % TT_DEVICE_ALIGNMENT == 0);
    }
    for (unsigned char** memory : {&in, &out}) {
      void* pinned = nullptr;
      CHECK(functions_.pin(device_, kSize, &pinned) == TT_OK);
      *memory = static_cast<unsigned char*>(pinned);
    }
  }

  ~CheckedDevice() { functions_.close(device_); }
  CheckedDevice(const CheckedDevice&) = delete;
  CheckedDevice& operator=(const CheckedDevice&) = delete;

  // Calls a device function.
  template <class... Parameters, class... Arguments>
  tt_status operator()(tt_status (*tt_device_functions::*function)(void*, Parameters...),
                       Arguments... arguments) {
    return (functions_.*function)(device_, arguments...);
  }

  void wait() {
    void* event = nullptr;
    CHECK((*this)(&tt_device_functions::record, &event) == TT_OK);
    CHECK((*this)(&tt_device_functions::wait, event) == TT_OK);
  }

  // Uploads distinct bytes to `first`.
  void upload(unsigned seed) {
    for (std::size_t i = 0; i < kSize; ++i) {
      in[i] = static_cast<unsigned char>((i * 31 + i / 256 + seed) % 251);
    }
    CHECK((*this)(&tt_device_functions::copy_in, first, in, kSize) == TT_OK);
    wait();
  }

  // Downloads memory to `out`.
  void download(std::uint64_t address) {
    CHECK((*this)(&tt_device_functions::copy_out, out, address, kSize) == TT_OK);
    wait();
  }

  // Runs the engine from one memory to another.
  tt_status launch(std::uint64_t from, std::uint64_t to) {
    const std::int64_t shape[] = {kSize};
    const tt_device_tensor tensors[] = {{"in", shape, 1, from}, {"out", nullptr, 0, to}};
    const tt_launch work = {TT_ENGINE_STEP, 0, 2, tensors};
    return (*this)(&tt_device_functions::launch, &work);
  }

  std::uint64_t first = 0, second = 0, third = 0;  // device memory
  unsigned char *in = nullptr, *out = nullptr;     // pinned memory

 private:
  tt_device_functions functions_;
  void* device_ = nullptr;
};

inline void check_copies(CheckedDevice& device) {
  constexpr std::size_t kSize = CheckedDevice::kSize;
  device.upload(1);
  CHECK(device(&tt_device_functions::copy, device.second, device.first, kSize, 1, 0, 0) == TT_OK);
  device.download(device.second);
  CHECK(std::memcmp(device.in, device.out, kSize) == 0);
  // Rows of 24 bytes: every 64 bytes of the source, every 40 of the target.
  CHECK(device(&tt_device_functions::fill, device.third, 0xAB, kSize) == TT_OK);
  CHECK(device(&tt_device_functions::copy, device.third + 8, device.first + 16, 24, 50, 40, 64) ==
        TT_OK);
  device.download(device.third);
  for (std::size_t i = 0; i < kSize; ++i) {
    const std::size_t row = (i - 8) / 40, column = (i - 8) % 40;
    const bool is_copied = i >= 8 && row < 50 && column < 24;
    CHECK(device.out[i] == (is_copied ? device.in[16 + row * 64 + column] : 0xAB));
  }
}

// Hundreds of small copies of all alignments, some of which read what others write.
inline void check_small_copies(CheckedDevice& device) {
  constexpr std::size_t kSize = CheckedDevice::kSize, kHalf = kSize / 2;
  device.upload(6);
  CHECK(device(&tt_device_functions::fill, device.second, 0xAB, kSize) == TT_OK);
  std::vector<unsigned char> expected(kSize, 0xAB);
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    const std::size_t unit = std::size_t{1} << random.below(5);
    const std::size_t width = unit * (1 + random.below(8)), height = 1 + random.below(10);
    const std::size_t to = width + unit * random.below(2), from = width + unit * random.below(2);
    const auto place = [&](std::size_t pitch) {
      return unit * random.below((kHalf - (height - 1) * pitch - width) / unit + 1);
    };
    // From the other memory, or from one half to the other.
    const bool is_within = random.chance(0.3), is_upper = random.chance(0.5);
    const std::size_t target = place(to) + (is_upper ? kHalf : 0);
    const std::size_t source = place(from) + (is_upper ? 0 : kHalf);
    CHECK(device(&tt_device_functions::copy, device.second + target,
                 (is_within ? device.second : device.first) + source, width, height, to,
                 from) == TT_OK);
    const unsigned char* content = is_within ? expected.data() : device.in;
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(expected.data() + target + row * to, content + source + row * from, width);
    }
  }
  device.download(device.second);
  CHECK(std::memcmp(device.out, expected.data(), kSize) == 0);
}

inline void check_captures(CheckedDevice& device) {
  constexpr std::size_t kSize = CheckedDevice::kSize;
  device.upload(2);
  CHECK(device(&tt_device_functions::fill, device.second, 0, kSize) == TT_OK);
  CHECK(device(&tt_device_functions::begin_capture) == TT_OK);
  CHECK(device.launch(device.first, device.second) == TT_OK);
  CHECK(device.launch(device.second, device.third) == TT_OK);
  CHECK(device(&tt_device_functions::copy, device.third, device.first + 64, 32, 2, 128, 64) ==
        TT_OK);
  // What CUDA forbids fails without harm to the capture.
  std::uint64_t memory = 0;
  CHECK(device(&tt_device_functions::allocate, 256, &memory) == TT_BACKEND_ERROR);
  CHECK(contains(tt_last_error(), "cuMemAlloc is not permitted during a capture"));
  void* graph = nullptr;
  CHECK(device(&tt_device_functions::end_capture, &graph) == TT_OK);
  CHECK(graph != nullptr);
  device.download(device.second);
  CHECK(device.out[0] == 0 && device.out[kSize - 1] == 0);  // nothing has run
  for (const unsigned seed : {3, 4}) {
    device.upload(seed);
    CHECK(device(&tt_device_functions::replay, graph) == TT_OK);
    device.download(device.third);
    CHECK(std::memcmp(device.out, device.in + 64, 32) == 0);
    CHECK(std::memcmp(device.out + 128, device.in + 128, 32) == 0);
    CHECK(std::memcmp(device.out + 192, device.in + 192, kSize - 192) == 0);
  }
  // A capture that is discarded leaves nothing behind.
  CHECK(device(&tt_device_functions::begin_capture) == TT_OK);
  CHECK(device.launch(device.second, device.first) == TT_OK);
  CHECK(device(&tt_device_functions::end_capture, nullptr) == TT_OK);
  CHECK(device(&tt_device_functions::fill, device.first, 7, kSize) == TT_OK);
  device.download(device.first);
  CHECK(device.out[0] == 7 && device.out[kSize - 1] == 7);
}

// The capture of one thread permits allocations of another.
inline void check_capture_beside_allocations(const tt_device_functions& functions) {
  CheckedDevice device(functions);
  device.upload(5);
  CHECK(device(&tt_device_functions::begin_capture) == TT_OK);
  CHECK(device.launch(device.first, device.second) == TT_OK);
  std::thread([&] {
    CheckedDevice other(functions);
    check_copies(other);
  }).join();
  void* graph = nullptr;
  CHECK(device(&tt_device_functions::end_capture, &graph) == TT_OK);
  CHECK(device(&tt_device_functions::replay, graph) == TT_OK);
  device.download(device.second);
  CHECK(std::memcmp(device.in, device.out, CheckedDevice::kSize) == 0);
}

inline void check_too_much_memory(CheckedDevice& device) {
  std::uint64_t memory = 0;
  CHECK(device(&tt_device_functions::allocate, std::size_t{1} << 50, &memory) == TT_BACKEND_ERROR);
  CHECK(contains(tt_last_error(), "the GPU is out of memory"));
  check_copies(device);
}

// Runs all checks on a GPU; returns "" or the reason why the GPU cannot be used.
inline std::string run_cuda_checks(int gpu) {
  const tt_cuda_engines engines = CopyingEngines::functions(gpu);
  tt_device_functions functions = {};
  if (tt_cuda_functions(&engines, &functions) != TT_OK) return tt_last_error();
  std::thread([&] {
    {
      CheckedDevice device(functions);
      check_copies(device);
      check_small_copies(device);
      check_captures(device);
      check_too_much_memory(device);
      check_capture_beside_allocations(functions);
    }
    CHECK(CopyingEngines::alive == 0);
  }).join();
  return "";
}

}  // namespace translate_trt::runtime
