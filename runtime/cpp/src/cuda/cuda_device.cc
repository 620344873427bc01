#include "cuda/cuda_device.h"

#include <cstddef>
#include <cstdint>

namespace translate_trt::runtime {

namespace {

CudaDevice& cuda_device(void* device) { return *static_cast<CudaDevice*>(device); }
CudaQueue& queue_of(void* device) { return cuda_device(device).queue(); }

}  // namespace

tt_device_functions cuda_device_functions() {
  tt_device_functions table = {};
  table.struct_size = sizeof(table);
  table.close = [](void* device) {
    const auto context = queue_of(device).context();  // outlives the device
    context->free_in_thread([=] { delete &cuda_device(device); });
  };
  table.activate = [](void* device) { return device_status([=] { queue_of(device).activate(); }); };
  table.allocate = [](void* device, size_t size, uint64_t* address) {
    return device_status([=] { *address = queue_of(device).allocate(size); });
  };
  table.pin = [](void* device, size_t size, void** memory) {
    return device_status([=] { *memory = queue_of(device).pin(size); });
  };
  table.copy_in = [](void* device, uint64_t target, const void* source, size_t size) {
    return device_status([=] { queue_of(device).copy_in(target, source, size); });
  };
  table.copy_out = [](void* device, void* target, uint64_t source, size_t size) {
    return device_status([=] { queue_of(device).copy_out(target, source, size); });
  };
  table.copy = [](void* device, uint64_t target, uint64_t source, size_t width, size_t height,
                  size_t target_pitch, size_t source_pitch) {
    return device_status(
        [=] { queue_of(device).copy(target, source, width, height, target_pitch, source_pitch); });
  };
  table.fill = [](void* device, uint64_t target, int32_t value, size_t size) {
    return device_status([=] { queue_of(device).fill(target, value, size); });
  };
  table.launch = [](void* device, const tt_launch* work) {
    return device_status([=] {
      queue_of(device).flush();
      cuda_device(device).launch(*work);
    });
  };
  table.record = [](void* device, void** event) {
    return device_status([=] { *event = queue_of(device).record(); });
  };
  table.wait = [](void* device, void* event) {
    return device_status([=] { queue_of(device).wait(static_cast<cuda::Event>(event)); });
  };
  table.begin_capture = [](void* device) {
    return device_status([=] { queue_of(device).begin_capture(); });
  };
  table.end_capture = [](void* device, void** graph) {
    return device_status([=] {
      if (graph == nullptr) {
        queue_of(device).discard_capture();
      } else {
        *graph = queue_of(device).end_capture();
      }
    });
  };
  table.replay = [](void* device, void* graph) {
    return device_status([=] { queue_of(device).replay(static_cast<cuda::GraphExec>(graph)); });
  };
  return table;
}

}  // namespace translate_trt::runtime
