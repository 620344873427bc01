// translate_trt/cuda.h: devices whose engines belong to the caller.

#include "translate_trt/cuda.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/errors.h"
#include "cuda/cuda_device.h"

namespace translate_trt::runtime {

namespace {

void check_status(tt_status status) {
  if (status != TT_OK) throw Error(status, tt_last_error());
}

class CallerDevice : public CudaDevice {
 public:
  explicit CallerDevice(const tt_cuda_engines& functions)
      : CudaDevice(std::make_shared<CudaContext>(functions.gpu)), functions_(functions) {
    const std::uint64_t scratch =
        functions_.scratch_bytes > 0 ? queue().allocate(functions_.scratch_bytes) : 0;
    check_status(functions_.open(functions_.context, queue().stream(), scratch, &engines_));
  }

  ~CallerDevice() override {
    queue().finish();
    functions_.close(engines_);
  }

  void launch(const tt_launch& work) override { check_status(functions_.launch(engines_, &work)); }

 private:
  const tt_cuda_engines& functions_;
  void* engines_ = nullptr;
};

// The primary context of a GPU, retained until the process ends.
const CudaContext& kept_context(int gpu) {
  static auto* const mutex = new std::mutex();
  static auto* const kept = new std::map<int, CudaContext>();
  const std::lock_guard lock(*mutex);
  return kept->try_emplace(gpu, gpu).first->second;
}

}  // namespace

}  // namespace translate_trt::runtime

tt_status tt_cuda_functions(const tt_cuda_engines* engines, tt_device_functions* functions) {
  namespace rt = translate_trt::runtime;
  return rt::device_status([=] {
    if (engines->struct_size < sizeof(*engines) || engines->open == nullptr ||
        engines->close == nullptr || engines->launch == nullptr) {
      throw rt::option_error(
          "tt_cuda_engines has no open, close or launch, or its struct_size is wrong; set "
          "struct_size to sizeof(tt_cuda_engines), and all three functions.");
    }
    rt::check_gpu(engines->gpu);
    *functions = rt::cuda_device_functions();
    functions->context = const_cast<tt_cuda_engines*>(engines);
    functions->memory = [](void* context, uint64_t* free_bytes, uint64_t* total_bytes) {
      const int gpu = static_cast<tt_cuda_engines*>(context)->gpu;
      return rt::device_status([=] { rt::CudaContext(gpu).read_memory(free_bytes, total_bytes); });
    };
    functions->open = [](void* context, void** device) {
      return rt::device_status([=] {
        rt::CudaDevice* made = new rt::CallerDevice(*static_cast<tt_cuda_engines*>(context));
        *device = made;
      });
    };
  });
}

tt_status tt_cuda_call(int32_t gpu, tt_status (*work)(void* context), void* context) {
  namespace rt = translate_trt::runtime;
  return rt::device_status(
      [=] { rt::kept_context(gpu).in_thread([=] { rt::check_status(work(context)); }); });
}
