// Backends of engines and plans that the library itself loads on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cuda/cuda_device.h"
#include "engines/device_batch.h"

namespace translate_trt::runtime {

// Makes an object in a thread of the GPU, and frees it in another one.
template <class Loaded, class... Arguments>
std::shared_ptr<Loaded> load_on_gpu(const std::shared_ptr<const CudaContext>& gpu,
                                    Arguments&&... arguments) {
  std::shared_ptr<Loaded> loaded;
  gpu->in_thread([&] {
    auto made = std::make_unique<Loaded>(gpu, std::forward<Arguments>(arguments)...);
    loaded = {made.release(), [gpu](Loaded* last) { gpu->free_in_thread([=] { delete last; }); }};
  });
  return loaded;
}

// The functions of devices that share what is loaded. Their context points to `loaded`, which must
// stay valid until the last device is opened.
template <class LoadedDevice, class Loaded>
tt_device_functions functions_of(std::shared_ptr<Loaded>& loaded) {
  tt_device_functions table = cuda_device_functions();
  table.context = &loaded;
  table.memory = [](void* context, uint64_t* free_bytes, uint64_t* total_bytes) {
    const auto& gpu = (*static_cast<std::shared_ptr<Loaded>*>(context))->gpu;
    return device_status([&] { gpu->read_memory(free_bytes, total_bytes); });
  };
  table.open = [](void* context, void** device) {
    return device_status([=] {
      CudaDevice* made = new LoadedDevice(*static_cast<std::shared_ptr<Loaded>*>(context));
      *device = made;
    });
  };
  return table;
}

// What a backend has loaded, destroyed after the DeviceBackend, whose functions use it.
template <class Loaded>
struct Owned {
  std::shared_ptr<Loaded> loaded;
};

template <class LoadedDevice, class Loaded>
class LoadedBackend : private Owned<Loaded>, public DeviceBackend {
 public:
  LoadedBackend(std::shared_ptr<Loaded> loaded, const Contract& contract, EngineSettings settings,
                std::function<void(const std::string&)> log)
      : Owned<Loaded>{std::move(loaded)},
        DeviceBackend(functions_of<LoadedDevice>(Owned<Loaded>::loaded), contract,
                      std::move(settings), std::move(log)) {}
};

}  // namespace translate_trt::runtime
