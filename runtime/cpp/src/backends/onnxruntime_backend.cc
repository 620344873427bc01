#include "backends/onnxruntime_backend.h"

#include <utility>

#include "backends/onnxruntime_loader.h"
#include "backends/onnxruntime_session.h"
#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

// Source tokens of a batch on a GPU, such as 64 sentences of 64: a step of few rows is as slow.
constexpr std::int64_t kGpuBatchTokens = 4096;

// The graphs as one batch uses them.
class BatchGraphs : public Graphs {
 public:
  BatchGraphs(std::shared_ptr<const OnnxRuntimeLibrary> library, OrtSession& encoder,
              OrtSession& step, const OrtMemoryInfo& device_memory)
      : library_(std::move(library)),
        encoder_(encoder),
        step_(step),
        device_memory_(device_memory),
        run_(library_->make<OrtRunOptions>(library_->api().ReleaseRunOptions,
                                           library_->api().CreateRunOptions)) {}

  void encode(const Arrays& inputs, const Arrays& outputs) override {
    bind_session(*library_, encoder_, inputs, outputs, *run_, device_memory_)();
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return bind_session(*library_, step_, inputs, outputs, *run_, device_memory_);
  }

 private:
  std::shared_ptr<const OnnxRuntimeLibrary> library_;
  OrtSession &encoder_, &step_;
  const OrtMemoryInfo& device_memory_;
  Owned<OrtRunOptions> run_;
};

// Limits a batch to the sizes that TensorRT-RTX has compiled.
class RtxBatch : public HostBatch {
 public:
  using HostBatch::HostBatch;

  std::optional<std::int64_t> capacity_for(std::int64_t longest) const override {
    static_cast<void>(longest);
    return kMaxRtxRows;
  }
};

}  // namespace

OnnxRuntimeBackend::OnnxRuntimeBackend(std::shared_ptr<const OnnxRuntimeLibrary> library,
                                       const std::filesystem::path& encoder,
                                       const std::filesystem::path& step, const Contract& contract,
                                       const CompiledKernels& kernels, const Settings& settings)
    : library_(std::move(library)), contract_(contract), device_(settings.device) {
  place_ = settings.place;
  if (!place_ && device_.provider == Provider::kCpu) {
    place_ = [place = host_place(kernels.has_attention())] { return place; };
  } else if (!place_) {
    place_ = [device = device_, longest = settings.max_source_length] {
      return ArrayPlace{std::make_shared<DeviceMemory>(device.index),
                        {0, true, longest},
                        device.provider == Provider::kCuda};
    };
  }
  const SizeRange range =
      size_range(contract, settings.max_source_length, settings.max_target_length);
  const SessionOptions of_encoder =
      make_session_options(*library_, settings, kernels, contract.encoder_inputs, range);
  const SessionOptions of_step =
      make_session_options(*library_, settings, kernels, contract.step_inputs(), range);
  // Threads of a session spin for a while after a run. The encoder's threads would compete with the
  // steps for the cores.
  add_setting(*library_, *of_encoder, "session.force_spinning_stop", "1");
  encoder_ = open_session(*library_, encoder, *of_encoder, device_, contract.encoder_inputs,
                          contract.encoder_outputs);
  step_ = open_session(*library_, step, *of_step, device_, contract.step_inputs(),
                       contract.step_outputs());
  device_memory_ = memory_of(*library_, device_);
  return_memory();
}

std::unique_ptr<Batch> OnnxRuntimeBackend::batch(const SearchOptions& options,
                                                 std::int64_t start_token) const {
  auto graphs = std::make_unique<BatchGraphs>(library_, *encoder_, *step_, *device_memory_);
  if (device_.provider != Provider::kTensorRtRtx) {
    return std::make_unique<HostBatch>(std::move(graphs), contract_, options, start_token,
                                       place_());
  }
  if (options.beam_size > kMaxRtxBeams) {
    throw option_error("beam_size is " + std::to_string(options.beam_size) + "; on " +
                       device_.name + " it must be at most " + std::to_string(kMaxRtxBeams) + ".");
  }
  return std::make_unique<RtxBatch>(std::move(graphs), contract_, options, start_token, place_());
}

std::int64_t OnnxRuntimeBackend::default_batch_tokens() const {
  return device_.provider == Provider::kCpu ? Backend::default_batch_tokens() : kGpuBatchTokens;
}

std::unique_ptr<Backend> load_onnxruntime(const std::filesystem::path& encoder,
                                          const std::filesystem::path& step,
                                          const Contract& contract, const CompiledKernels& kernels,
                                          const Settings& settings, const std::string& reason,
                                          std::string& version) {
  std::shared_ptr<const OnnxRuntimeLibrary> library;
  try {
    library = OnnxRuntimeLibrary::open(settings.onnxruntime);
  } catch (const Error& error) {
    throw backend_error("the graphs need ONNX Runtime, since " + reason + ", but this " +
                        error.what() + " For Python: pip install 'translate-trt[cpu]'.");
  }
  version = library->version();
  return std::make_unique<OnnxRuntimeBackend>(std::move(library), encoder, step, contract, kernels,
                                              settings);
}

}  // namespace translate_trt::runtime
