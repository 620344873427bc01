#include "backends/cuda_context.h"

#include <string>
#include <thread>

#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

cuda::Device device_of(const CudaDriver& driver, int gpu) {
  int count = 0;
  const cuda::Result result = driver.count_devices(&count);
  if (result != cuda::kSuccess) throw no_gpu(driver.text_of(result));
  if (count == 0) throw no_gpu("there is none");
  if (gpu < 0 || gpu >= count) {
    throw backend_error("there is no GPU cuda:" + std::to_string(gpu) + "; this process sees " +
                        std::to_string(count) + ", which begin with cuda:0.");
  }
  cuda::Device device = 0;
  driver.check(driver.get_device(&device, gpu), "cuDeviceGet");
  return device;
}

}  // namespace

void check_gpu(int gpu) { device_of(CudaDriver::open(), gpu); }

GpuModel gpu_model(int gpu) {
  const CudaDriver& driver = CudaDriver::open();
  const cuda::Device device = device_of(driver, gpu);
  const auto attribute = [&](int which) {
    int value = 0;
    driver.check(driver.device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  char name[256] = {};
  driver.check(driver.device_name(name, sizeof(name), device), "cuDeviceGetName");
  const std::string major = std::to_string(attribute(cuda::kCapabilityMajor));
  const std::string minor = std::to_string(attribute(cuda::kCapabilityMinor));
  return {name, major + "." + minor, attribute(cuda::kMultiprocessors)};
}

CudaContext::CudaContext(int gpu, const std::string& driver)
    : gpu_(gpu), driver_(CudaDriver::open(driver)), device_(device_of(driver_, gpu)) {
  driver_.check(driver_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain");
}

CudaContext::~CudaContext() { static_cast<void>(driver_.release_context(device_)); }

void CudaContext::activate() const {
  driver_.check(driver_.set_context(context_), "cuCtxSetCurrent");
}

CudaContext::Scope::Scope(const CudaContext& context) : driver_(context.driver_) {
  driver_.check(driver_.push_context(context.context_), "cuCtxPushCurrent");
}

CudaContext::Scope::~Scope() {
  cuda::Context popped = nullptr;
  static_cast<void>(driver_.pop_context(&popped));  // fails only if another call failed before
}

void CudaContext::in_thread(const std::function<void()>& work) const {
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      activate();
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

void CudaContext::read_memory(std::uint64_t* free_bytes, std::uint64_t* total_bytes) const {
  const Scope scope(*this);
  std::size_t free = 0, total = 0;
  driver_.check(driver_.memory_info(&free, &total), "cuMemGetInfo");
  *free_bytes = free, *total_bytes = total;
}

}  // namespace translate_trt::runtime
