#include "cuda/plan_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <variant>

#include "backends/settings.h"
#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/engine_record.h"
#include "bundle/fields.h"
#include "cuda/loaded_backend.h"
#include "engines/engine_loader.h"

namespace translate_trt::runtime {

namespace {

// Bytes that an algorithm may use; PyTorch's default on GPUs of compute capability 9.0.
constexpr std::size_t kMostWorkspace = std::size_t{32} << 20;

// A kernel needs permission for more dynamic shared memory than this.
constexpr unsigned int kFreeShared = 48 * 1024;

// Compute capability since which a kernel can wait for the previous one itself, and since which
// Triton makes cubins for one capability alone (sm_90a).
constexpr int kDependentLaunches = 90, kSingleCubins = 90;

int capability_of(const GpuModel& gpu) {
  std::string digits = gpu.compute_capability;
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  return std::stoi(digits);
}

// The cubin for a GPU: of its capability, or, of older GPUs, of the same major capability with the
// largest minor one that is not larger.
const PlanKernel::Cubin& cubin_for(const PlanKernel& kernel, const GpuModel& gpu) {
  const int capability = capability_of(gpu);
  const auto next = kernel.cubins.upper_bound(capability);
  if (next != kernel.cubins.begin()) {
    const auto& [found, cubin] = *std::prev(next);
    const bool is_older = found / 10 == capability / 10 && capability < kSingleCubins;
    if (found == capability || is_older) return cubin;
  }
  std::vector<std::string> names;
  for (const auto& [number, cubin] : kernel.cubins) {
    names.push_back(std::to_string(number / 10) + "." + std::to_string(number % 10));
  }
  throw bundle_error("this GPU is " + gpu.name + " (compute capability " + gpu.compute_capability +
                     "), and the kernels of the target are for compute capability " +
                     join(names, ", ") +
                     ". Export the target again with that capability, or choose another target.");
}

}  // namespace

// ---- loading ----

CudaPlans::CudaPlans(std::shared_ptr<const CudaContext> context, const GpuModel& model,
                     Plan encoder, Plan step, const SafeTensors& weights, const WeightBlock& block)
    : gpu(std::move(context)),
      memory_(gpu),
      encoder_(load(std::move(encoder), model, weights)),
      step_(load(std::move(step), model, weights)),
      weights_(memory_.allocate(block.size)) {
  for (const auto& [name, offset] : block.offsets) {
    const std::string_view bytes = weights.at(name).bytes;
    if (!bytes.empty()) memory_.copy_in(weights_ + offset, bytes.data(), bytes.size());
  }
  memory_.wait(memory_.record());
}

LoadedPlan CudaPlans::load(Plan plan, const GpuModel& model, const SafeTensors& weights) {
  const CudaDriver& driver = gpu->driver();
  LoadedPlan loaded;
  for (const PlanKernel& kernel : plan.kernels) {
    const PlanKernel::Cubin& cubin = cubin_for(kernel, model);
    cuda::Function function = nullptr;
    if (driver.get_function(&function, module(kernel, cubin.tensor, weights),
                            kernel.entry.c_str()) != cuda::kSuccess) {
      throw bundle_error("the cubin " + in_quotes(cubin.tensor) + " has no kernel " +
                         in_quotes(kernel.entry) + ". " + kRemedy);
    }
    if (cubin.shared > kFreeShared) {
      driver.check(driver.function_attribute(function, cuda::kMaxDynamicShared,
                                             static_cast<int>(cubin.shared)),
                   "cuFuncSetAttribute");
    }
    const bool is_dependent = kernel.dependent && capability_of(model) >= kDependentLaunches &&
                              driver.launch_with != nullptr;
    loaded.kernels.push_back({function, cubin.shared, is_dependent});
  }
  const auto handle = cublaslt_handle();
  for (const Matmul& matmul : plan.matmuls) {
    loaded.algorithms.push_back(MatmulOperation(matmul).choose(handle.get(), kMostWorkspace));
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) loaded.tensors[plan.tensors[i]] = i;
  loaded.plan = std::move(plan);
  return loaded;
}

cuda::Module CudaPlans::module(const PlanKernel& kernel, const std::string& tensor,
                               const SafeTensors& weights) {
  OwnedModule& module = modules_[tensor];
  if (module.get() != nullptr) return module.get();
  const CudaDriver& driver = gpu->driver();
  // The driver takes what is no cubin for a text, so the copy ends with a zero.
  const std::string image(weights.at(tensor).bytes);
  cuda::Module made = nullptr;
  const cuda::Result result = driver.load_module(&made, image.data());
  if (result != cuda::kSuccess) {
    throw bundle_error("the kernel " + in_quotes(kernel.entry) + " does not load: " +
                       driver.text_of(result) + ". Update the GPU's driver. " + kRemedy);
  }
  module = {driver, made};
  return made;
}

std::size_t CudaPlans::arena_bytes() const {
  return static_cast<std::size_t>(std::max(encoder_.plan.arena, step_.plan.arena));
}

std::size_t CudaPlans::workspace_bytes() const {
  std::size_t most = 0;
  for (const LoadedPlan* loaded : {&encoder_, &step_}) {
    for (const cublaslt::Heuristic& chosen : loaded->algorithms) {
      most = std::max(most, chosen.workspace);
    }
  }
  return most;
}

// ---- the device ----

PlanDevice::PlanDevice(std::shared_ptr<CudaPlans> plans)
    : CudaDevice(plans->gpu),
      plans_(std::move(plans)),
      handle_(cublaslt_handle()),
      arena_(queue().allocate(plans_->arena_bytes())),
      workspace_(queue().allocate(plans_->workspace_bytes())) {
  for (const int role : {TT_ENGINE_ENCODER, TT_ENGINE_STEP}) {
    const LoadedPlan& loaded = plans_->plan(role);
    Operations& operations = operations_[&loaded];
    for (const Matmul& matmul : loaded.plan.matmuls) {
      operations.push_back(std::make_unique<MatmulOperation>(matmul));
    }
  }
}

// Waits for work that uses the handle.
PlanDevice::~PlanDevice() { queue().finish(); }

void PlanDevice::launch(const tt_launch& work) {
  const LoadedPlan& loaded = plans_->plan(work.engine);
  bind(loaded, work);
  follows_kernel_ = false;
  for (const PlanLaunch& launch : loaded.plan.profiles.at(static_cast<std::size_t>(work.profile))) {
    std::visit([&](const auto& one) { run(loaded, one); }, launch);
    follows_kernel_ = std::holds_alternative<KernelLaunch>(launch) ||
                      std::holds_alternative<MatmulLaunch>(launch);
  }
}

// Sets the bases of addresses.
void PlanDevice::bind(const LoadedPlan& loaded, const tt_launch& work) {
  bases_.assign(PlanValue::kTensors + loaded.tensors.size(), 0);
  bases_[PlanValue::kWeights] = plans_->weights();
  bases_[PlanValue::kArena] = arena_;
  std::size_t bound = 0;
  for (std::size_t i = 0; i < work.tensor_count; ++i) {
    const auto found = loaded.tensors.find(std::string_view(work.tensors[i].name));
    if (found == loaded.tensors.end()) continue;
    bases_[PlanValue::kTensors + found->second] = work.tensors[i].address;
    ++bound;
  }
  if (bound == loaded.tensors.size()) return;
  throw backend_error("a graph is launched with " + std::to_string(bound) + " of its " +
                      std::to_string(loaded.tensors.size()) + " tensors.");
}

// The parameters are passed as one block, whose size the driver compares with the kernel's own.
void PlanDevice::run(const LoadedPlan& loaded, const KernelLaunch& launch) {
  queue().flush();
  const PlanKernel& kernel = loaded.plan.kernels[launch.kernel];
  const LoadedPlan::Kernel& runs = loaded.kernels[launch.kernel];
  parameters_.clear();
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    const PlanKernel::Parameter& parameter = kernel.parameters[i];
    const std::uint64_t value = i < launch.arguments.size() ? resolve(launch.arguments[i]) : 0;
    const std::size_t size = parameter.is_pointer ? sizeof(value) : parameter.size;
    const std::size_t begin = (parameters_.size() + size - 1) / size * size;
    parameters_.resize(begin + size);
    std::memcpy(parameters_.data() + begin, &value, size);  // the first bytes are the lowest
  }
  std::size_t size = parameters_.size();
  void* extra[] = {cuda::kParameterBlock, parameters_.data(), cuda::kParameterBlockSize, &size,
                   cuda::kParameterEnd};
  const CudaDriver& driver = queue().context()->driver();
  const auto [x, y, z] = launch.grid;
  if (!runs.is_dependent || !follows_kernel_) {
    driver.check(driver.launch(runs.function, x, y, z, kernel.threads, 1, 1, runs.shared,
                               queue().stream(), nullptr, extra),
                 "cuLaunchKernel");
    return;
  }
  cuda::LaunchAttribute dependent = {};
  dependent.id = cuda::kProgrammaticOverlap;
  dependent.value.number = 1;
  const cuda::LaunchConfig config = {
      x, y, z, kernel.threads, 1, 1, runs.shared, queue().stream(), &dependent, 1};
  driver.check(driver.launch_with(&config, runs.function, nullptr, extra), "cuLaunchKernelEx");
}

void PlanDevice::run(const LoadedPlan& loaded, const MatmulLaunch& launch) {
  queue().flush();
  operations_.at(&loaded)[launch.matmul]->run(
      handle_.get(), loaded.algorithms[launch.matmul],
      {resolve(launch.a), resolve(launch.b), resolve(launch.bias), resolve(launch.out), workspace_},
      queue().stream());
}

void PlanDevice::run(const LoadedPlan&, const CopyLaunch& launch) {
  queue().copy(resolve(launch.target), resolve(launch.source), launch.bytes, 1, 0, 0);
}

void PlanDevice::run(const LoadedPlan&, const FillLaunch& launch) {
  queue().fill(resolve(launch.target), launch.value, launch.bytes);
}

// ---- the backend ----

std::unique_ptr<Backend> load_plans(const std::filesystem::path& bundle, const TargetEntry& target,
                                    const Settings& settings) {
  const EngineRecords records = read_engine_records(target, bundle);
  EngineSettings how;
  how.exact_encoder = true;
  how.encoder_profiles = record_of(records, target, "encoder").profiles;
  how.step_profiles = record_of(records, target, "step").profiles;
  const int gpu = gpu_of(settings);
  const auto context = std::make_shared<const CudaContext>(gpu);
  const Contract& contract = target.contract;
  const SafeTensors weights(target.file("weights").locate(bundle));
  WeightBlock block;
  Plan encoder = read_plan(target.file("encoder").locate(bundle), contract.encoder_inputs,
                           contract.encoder_outputs, how.encoder_profiles, 0, weights, block);
  Plan step =
      read_plan(target.file("step").locate(bundle), contract.step_inputs(), contract.step_outputs(),
                how.step_profiles, *contract.beams(), weights, block);
  auto plans = load_on_gpu<CudaPlans>(context, gpu_model(gpu), std::move(encoder), std::move(step),
                                      weights, block);
  how.scratch_bytes = plans->arena_bytes() + plans->workspace_bytes();
  return std::make_unique<LoadedBackend<PlanDevice, CudaPlans>>(std::move(plans), contract,
                                                                std::move(how), settings.log);
}

}  // namespace translate_trt::runtime
