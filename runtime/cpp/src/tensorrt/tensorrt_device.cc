#include "tensorrt/tensorrt_device.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "backends/settings.h"
#include "base/errors.h"
#include "base/platform.h"
#include "base/utf8.h"
#include "bundle/engine_record.h"
#include "cuda/loaded_backend.h"
#include "engines/engine_loader.h"

namespace translate_trt::runtime {

namespace {

std::string role_name(int role) { return role == TT_ENGINE_STEP ? "step" : "encoder"; }

std::string shape_name(const tt_device_tensor& tensor) {
  std::vector<std::string> sizes;
  for (std::size_t i = 0; i < tensor.rank; ++i) sizes.push_back(std::to_string(tensor.shape[i]));
  return "[" + join(sizes, ", ") + "]";
}

// nbDims is -1 if the rank exceeds TensorRT's maximum.
nvinfer1::Dims dims_of(const tt_device_tensor& tensor) {
  nvinfer1::Dims dims = {};
  dims.nbDims = -1;
  if (tensor.rank > static_cast<std::size_t>(nvinfer1::Dims::MAX_DIMS)) return dims;
  dims.nbDims = static_cast<std::int32_t>(tensor.rank);
  std::copy_n(tensor.shape, tensor.rank, dims.d);
  return dims;
}

bool same_dims(const nvinfer1::Dims& left, const nvinfer1::Dims& right) {
  return left.nbDims == right.nbDims && left.nbDims >= 0 &&
         std::equal(left.d, left.d + left.nbDims, right.d);
}

}  // namespace

TensorRtEngines::TensorRtEngines(std::shared_ptr<const CudaContext> context, Profiles of_encoder,
                                 Profiles of_step, const std::filesystem::path& encoder_file,
                                 const std::filesystem::path& step_file, const Contract& contract)
    : gpu(std::move(context)),
      encoder_profiles(std::move(of_encoder)),
      step_profiles(std::move(of_step)),
      encoder(encoder_file, contract.encoder_inputs, contract.encoder_outputs),
      step(step_file, contract.step_inputs(), contract.step_outputs()) {
  encoder.check_profiles(encoder_profiles.size());
  step.check_profiles(step_profiles.size());
  step.check_aliases(contract.caches());
}

std::size_t TensorRtEngines::scratch_bytes() const {
  return std::max(encoder.scratch_bytes(), step.scratch_bytes());
}

// ---- the device ----

TensorRtDevice::TensorRtDevice(std::shared_ptr<TensorRtEngines> engines)
    : CudaDevice(engines->gpu),
      engines_(std::move(engines)),
      scratch_bytes_(engines_->scratch_bytes()),
      scratch_(scratch_bytes_ > 0 ? queue().allocate(scratch_bytes_) : 0) {}

TensorRtDevice::~TensorRtDevice() {
  queue().finish();
  contexts_.clear();
}

void TensorRtDevice::launch(const tt_launch& work) {
  const std::string role = role_name(work.engine);
  nvinfer1::IExecutionContext& runs = context(work.engine, static_cast<std::size_t>(work.profile));
  for (std::size_t i = 0; i < work.tensor_count; ++i) {
    const tt_device_tensor& tensor = work.tensors[i];
    if (tensor.shape != nullptr) {
      const nvinfer1::Dims dims = dims_of(tensor);
      if (!same_dims(runs.getTensorShape(tensor.name), dims) &&
          (dims.nbDims < 0 || !runs.setInputShape(tensor.name, dims))) {
        throw backend_error("the " + role + " engine refuses " + tensor.name + " of shape " +
                            shape_name(tensor) + ": " + tensorrt_reasons());
      }
    }
    if (!runs.setTensorAddress(tensor.name, reinterpret_cast<void*>(tensor.address))) {
      throw backend_error("the " + role + " engine has no " + tensor.name + ": " +
                          tensorrt_reasons());
    }
  }
  if (!runs.enqueueV3(queue().stream())) {
    throw backend_error("the " + role + " engine does not run: " + tensorrt_reasons());
  }
}

nvinfer1::IExecutionContext& TensorRtDevice::context(int role, std::size_t profile) {
  const auto key = std::pair(role, profile);
  const auto found = contexts_.find(key);
  if (found != contexts_.end()) return *found->second;
  // TensorRT initializes kernels in the first run, which cannot be captured.
  if (queue().capturing()) throw backend_error("an engine must have run before it is captured.");
  auto made = engines_->engine(role).context(profile, name_of(engines_->profiles(role).at(profile)),
                                             queue().stream());
  if (scratch_bytes_ > 0) {
    made->setDeviceMemoryV2(reinterpret_cast<void*>(scratch_),
                            static_cast<std::int64_t>(scratch_bytes_));
  }
  return *(contexts_[key] = std::move(made));
}

// ---- loading ----

std::unique_ptr<Backend> load_engines(const std::filesystem::path& bundle,
                                      const TargetEntry& target, const Settings& settings) {
  const EngineRecords records = read_engine_records(target, bundle);
  EngineSettings how;
  how.encoder_profiles = record_of(records, target, "encoder").profiles;
  how.step_profiles = record_of(records, target, "step").profiles;
  const int gpu = gpu_of(settings);
  for (const auto& [role, record] : records) {
    check_engine(record, tensorrt_version(), system_name(), target.name, bundle);
  }
  const GpuModel model = gpu_model(gpu);
  for (const auto& [role, record] : records) {
    check_engine_gpu(record, model, target.name, bundle);
  }
  const auto context = std::make_shared<const CudaContext>(gpu);
  auto engines = load_on_gpu<TensorRtEngines>(context, how.encoder_profiles, how.step_profiles,
                                              target.file("encoder").locate(bundle),
                                              target.file("step").locate(bundle), target.contract);
  how.scratch_bytes = engines->scratch_bytes();
  return std::make_unique<LoadedBackend<TensorRtDevice, TensorRtEngines>>(
      std::move(engines), target.contract, std::move(how), settings.log);
}

}  // namespace translate_trt::runtime
