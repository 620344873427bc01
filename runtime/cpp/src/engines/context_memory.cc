#include "engines/context_memory.h"

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace translate_trt::runtime {

namespace {

struct Counted {
  ContextMemory memory;
  std::vector<std::unique_ptr<std::byte[]>> pinned;  // the constructor writes to it
};

Counted& counted(void* device) { return *static_cast<Counted*>(device); }

tt_device_functions counting_functions(Counted& all) {
  tt_device_functions table = {};
  table.struct_size = sizeof(table);
  table.context = &all;
  table.open = [](void* context, void** device) {
    *device = context;
    return tt_status{TT_OK};
  };
  table.close = [](void*) {};
  table.activate = [](void*) { return tt_status{TT_OK}; };
  table.allocate = [](void* device, size_t size, uint64_t* address) {
    counted(device).memory.device += size;
    *address = TT_DEVICE_ALIGNMENT;
    return tt_status{TT_OK};
  };
  table.pin = [](void* device, size_t size, void** memory) {
    Counted& all = counted(device);
    std::unique_ptr<std::byte[]> made(new (std::nothrow) std::byte[size]);
    if (!made) return tt_device_fail(TT_MEMORY_ERROR, "memory ran out.");
    all.memory.pinned += size;
    *memory = made.get();
    all.pinned.push_back(std::move(made));
    return tt_status{TT_OK};
  };
  table.copy_in = [](void*, uint64_t, const void*, size_t) { return tt_status{TT_OK}; };
  table.fill = [](void*, uint64_t, int32_t, size_t) { return tt_status{TT_OK}; };
  table.record = [](void*, void** event) {
    *event = nullptr;
    return tt_status{TT_OK};
  };
  return table;
}

}  // namespace

ContextMemory context_memory(const Contract& contract, const EngineSettings& settings) {
  Counted all;
  LogOnce log([](const std::string&) {});
  const StepProfiles steps(settings.step_profiles, *contract.slots(), contract.marks());
  const StreamContext context(counting_functions(all), contract, settings, steps, log);
  return all.memory;
}

}  // namespace translate_trt::runtime
