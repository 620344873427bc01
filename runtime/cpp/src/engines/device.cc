#include "engines/device.h"

#include <cstring>
#include <utility>

#include "base/errors.h"

namespace translate_trt::runtime {

void check_device(tt_status status) {
  if (status == TT_OK) return;
  const bool known = status > TT_OK && status <= TT_FORKED;
  throw Error(known ? status : TT_BACKEND_ERROR, tt_last_error());
}

Device::Device(const tt_device_functions& functions) : functions_(functions) {
  check_device(functions_.open(functions_.context, &device_));
}

Device::~Device() { functions_.close(device_); }

void Device::activate() { check_device(functions_.activate(device_)); }

Address Device::allocate(std::size_t size) {
  Address address = 0;
  check_device(functions_.allocate(device_, size, &address));
  return address;
}

std::byte* Device::pin(std::size_t size) {
  void* memory = nullptr;
  check_device(functions_.pin(device_, size, &memory));
  return static_cast<std::byte*>(memory);
}

void Device::copy_in(Address target, const std::byte* source, std::size_t size) {
  check_device(functions_.copy_in(device_, target, source, size));
}

void Device::copy_out(std::byte* target, Address source, std::size_t size) {
  check_device(functions_.copy_out(device_, target, source, size));
}

void Device::copy(Address target, Address source, std::size_t size) {
  check_device(functions_.copy(device_, target, source, size, 1, 0, 0));
}

void Device::copy_rows(Address target, std::size_t target_pitch, Address source,
                       std::size_t source_pitch, std::size_t width, std::size_t height) {
  if (width == target_pitch && width == source_pitch) {
    copy(target, source, width * height);
    return;
  }
  check_device(functions_.copy(device_, target, source, width, height, target_pitch, source_pitch));
}

void Device::fill(Address target, int value, std::size_t size) {
  check_device(functions_.fill(device_, target, value, size));
}

void Device::launch(int engine, std::size_t profile, const std::vector<DeviceTensor>& tensors) {
  std::vector<tt_device_tensor> given;
  given.reserve(tensors.size());
  for (const DeviceTensor& one : tensors) {
    const std::int64_t* shape = one.shape.empty() ? nullptr : one.shape.data();
    given.push_back({one.name.c_str(), shape, one.shape.size(), one.address});
  }
  const tt_launch work = {engine, static_cast<std::int32_t>(profile), given.size(), given.data()};
  check_device(functions_.launch(device_, &work));
}

Event Device::record() {
  Event event = nullptr;
  check_device(functions_.record(device_, &event));
  return event;
}

void Device::wait(Event event) { check_device(functions_.wait(device_, event)); }

void Device::begin_capture() { check_device(functions_.begin_capture(device_)); }

DeviceGraph Device::end_capture() {
  DeviceGraph graph = nullptr;
  check_device(functions_.end_capture(device_, &graph));
  return graph;
}

void Device::replay(DeviceGraph graph) { check_device(functions_.replay(device_, graph)); }

Upload::Upload(Device& device, std::size_t size)
    : device_(&device), target_(device.allocate(size)), staging_(device.pin(size)) {}

void Upload::send(const void* content, std::size_t size) {
  if (taken_ != nullptr) device_->wait(std::exchange(taken_, nullptr));
  std::memcpy(staging_, content, size);
  device_->copy_in(target_, staging_, size);
  taken_ = device_->record();
}

}  // namespace translate_trt::runtime
