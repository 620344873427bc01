#include "backends/onnxruntime_backend.h"

#include <utility>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "backends/host_batch.h"
#include "backends/onnxruntime_session.h"
#include "core/errors.h"
#include "text/utf8.h"

namespace translate_trt::runtime {

namespace {

// Spare cache slots, so that caches seldom have to grow. They are free with the compiled attention
// kernel, which reads only visible slots; ONNX Runtime's attention reads every slot at every step.
constexpr std::int64_t kSpareSlots = 64;

// Returns memory that loading needed temporarily to the system; glibc would keep it.
void return_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

// The graphs as one batch uses them.
class BatchGraphs : public Graphs {
 public:
  BatchGraphs(std::shared_ptr<const OnnxRuntimeLibrary> library, OrtSession& encoder,
              OrtSession& step)
      : library_(std::move(library)),
        encoder_(encoder),
        step_(step),
        run_(library_->make<OrtRunOptions>(library_->api().ReleaseRunOptions,
                                           library_->api().CreateRunOptions)) {}

  void encode(const Arrays& inputs, const Arrays& outputs) override {
    bind_session(*library_, encoder_, inputs, outputs, *run_)();
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return bind_session(*library_, step_, inputs, outputs, *run_);
  }

 private:
  std::shared_ptr<const OnnxRuntimeLibrary> library_;
  OrtSession &encoder_, &step_;
  Owned<OrtRunOptions> run_;
};

}  // namespace

SessionDevice read_device(const std::string& name) {
  const std::size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  const std::string number = colon == std::string::npos ? "0" : name.substr(colon + 1);
  const bool counted = !number.empty() && number.size() <= 3 &&
                       number.find_first_not_of("0123456789") == std::string::npos;
  if (name == "cpu") return {};
  if (counted && kind == "cuda") return {Provider::kCuda, std::stoi(number), name};
  if (counted && kind == "tensorrt") return {Provider::kTensorRt, std::stoi(number), name};
  throw option_error("device is " + in_quotes(name) + "; write cpu, cuda, cuda:1 or tensorrt.");
}

OnnxRuntimeBackend::OnnxRuntimeBackend(const std::filesystem::path& encoder,
                                       const std::filesystem::path& step, const Contract& contract,
                                       const Settings& settings)
    : library_(OnnxRuntimeLibrary::open(settings.onnxruntime)), contract_(contract) {
  CompiledKernels kernels;
  if (settings.device.provider == Provider::kCpu) {
    kernels = find_kernels(settings.kernels);
    settings.log("compiled kernels: " + kernels.status());
  }
  kernels_ = kernels.name;
  spare_slots_ = kernels.has_attention() ? kSpareSlots : 0;
  const SessionOptions of_encoder = make_session_options(*library_, settings, kernels);
  const SessionOptions of_step = make_session_options(*library_, settings, kernels);
  // Threads of a session spin for a while after a run. The encoder's threads would compete with the
  // steps for the cores.
  add_setting(*library_, *of_encoder, "session.force_spinning_stop", "1");
  encoder_ = open_session(*library_, encoder, *of_encoder, contract.encoder_inputs,
                          contract.encoder_outputs);
  step_ = open_session(*library_, step, *of_step, contract.step_inputs(), contract.step_outputs());
  return_memory();
}

std::unique_ptr<Batch> OnnxRuntimeBackend::batch(const SearchOptions& options,
                                                 std::int64_t start_token) const {
  return std::make_unique<HostBatch>(std::make_unique<BatchGraphs>(library_, *encoder_, *step_),
                                     contract_, options, start_token, spare_slots_);
}

}  // namespace translate_trt::runtime
