#include "fake_tensorrt.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "fake_cuda_driver/fake_driver.h"
#include "tracing_engines.h"

namespace rt = translate_trt::runtime;

namespace {

constexpr int kFakeUnwritten = 0xFF;

std::set<const void*> fake_contexts;

bool is_aligned(std::uint64_t address) { return address % rt::kAlignment == 0; }

}  // namespace

std::int32_t getInferLibVersion() noexcept { return rt::fake_tensorrt().version; }

namespace nvinfer1 {

class FakeRuntimeState {
 public:
  ILogger& logger;
  int engines = 0;
};

class FakeEngineState {
 public:
  FakeRuntimeState& runtime;
  rt::FakeEngine description;
  int gpu;
  int contexts = 0;

  bool fail(const std::string& reason) const {
    runtime.logger.log(ILogger::Severity::kINFO, "a message of no interest");
    runtime.logger.log(ILogger::Severity::kERROR, reason.c_str());
    return false;
  }
};

class FakeContextState {
 public:
  FakeEngineState& engine;
  std::int32_t profile = -1;
  std::uint64_t scratch = 0;
  std::int64_t scratch_bytes = 0;
  std::map<std::string, Dims> shapes;
  std::map<std::string, void*> addresses;
  bool has_run = false;  // whether it has run with these shapes
};

namespace {

bool same_fake_dims(const Dims& left, const Dims& right) {
  return left.nbDims == right.nbDims && std::equal(left.d, left.d + left.nbDims, right.d);
}

}  // namespace

IExecutionContext::IExecutionContext(FakeEngineState& engine)
    : state_(new FakeContextState{engine, -1, 0, 0, {}, {}, false}) {
  fake_contexts.insert(state_.get());
  ++engine.contexts;
  ++rt::fake_cuda().alive["context"];
}

IExecutionContext::~IExecutionContext() noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  if (rt::is_in_a_graph(state_.get())) rt::violation("a context goes before its graph");
  fake_contexts.erase(state_.get());
  if (rt::current_gpu() != state_->engine.gpu) rt::violation("a context is freed on another GPU");
  --state_->engine.contexts;
  --rt::fake_cuda().alive["context"];
}

void IExecutionContext::setDeviceMemoryV2(void* memory, int64_t size) noexcept {
  state_->scratch = reinterpret_cast<std::uint64_t>(memory);
  if (!is_aligned(state_->scratch)) rt::violation("scratch memory is not aligned");
  state_->scratch_bytes = size;
}

bool IExecutionContext::setOptimizationProfileAsync(int32_t profile, cudaStream_t) noexcept {
  if (profile >= state_->engine.description.profiles) return state_->engine.fail("no profile");
  state_->profile = profile;
  return true;
}

Dims IExecutionContext::getTensorShape(char const* name) const noexcept {
  const auto found = state_->shapes.find(name);
  return found != state_->shapes.end() ? found->second : Dims{-1, {}};
}

bool IExecutionContext::setInputShape(char const* name, Dims const& dims) noexcept {
  const rt::FakeEngine& engine = state_->engine.description;
  const auto found = engine.tensors.find(name);
  if (found == engine.tensors.end() || found->second.mode != TensorIOMode::kINPUT ||
      engine.refused.count(name) > 0) {
    return state_->engine.fail(std::string("no shape of ") + name + " fits the profile");
  }
  state_->has_run = state_->has_run && same_fake_dims(getTensorShape(name), dims);
  state_->shapes[name] = dims;
  return true;
}

bool IExecutionContext::setTensorAddress(char const* name, void* data) noexcept {
  if (state_->engine.description.tensors.count(name) == 0) {
    return state_->engine.fail(std::string("there is no tensor ") + name);
  }
  state_->addresses[name] = data;
  return true;
}

bool IExecutionContext::enqueueV3(cudaStream_t stream) noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  FakeContextState& state = *state_;
  const rt::FakeEngine& engine = state.engine.description;
  if (engine.broken) return state.engine.fail("a kernel is missing");
  if (state.profile < 0) return state.engine.fail("no profile was chosen");
  if (rt::is_capturing(stream) && !state.has_run) {
    return state.engine.fail("the first run with these shapes cannot be captured");
  }
  if (rt::gpu_of(stream) != state.engine.gpu) rt::violation("an engine of another GPU");
  if (state.scratch_bytes < engine.scratch_bytes) rt::violation("too little scratch memory");
  rt::TracedTensors tensors;
  for (const auto& [name, tensor] : engine.tensors) {
    const bool is_input = tensor.mode == TensorIOMode::kINPUT;
    if (is_input && state.shapes.count(name) == 0) return state.engine.fail("no shape: " + name);
    if (state.addresses.count(name) == 0) return state.engine.fail("no address: " + name);
    void* address = state.addresses[name];
    rt::check_memory("the tensor " + name, address, 1, false);
    if (!is_aligned(reinterpret_cast<std::uint64_t>(address))) {
      rt::violation("the tensor " + name + " is not aligned");
    }
    if (!tensor.alias.empty() && state.addresses[tensor.alias] != address) {
      return state.engine.fail(name + " must be where " + tensor.alias + " is");
    }
    tensors.add(name, reinterpret_cast<rt::Address>(address),
                is_input ? state.shapes[name].d : nullptr);
  }
  if (!rt::is_capturing(stream)) state.has_run = true;
  const auto scratch = std::pair(state.scratch, static_cast<std::size_t>(engine.scratch_bytes));
  const void* context = &state;
  return rt::enqueue(
             stream,
             [=, is_step = engine.is_step, crashes = engine.crashes, gpu = rt::gpu_of(stream)] {
               if (crashes) throw std::runtime_error("an illegal memory access");
               if (fake_contexts.count(context) == 0)
                 rt::violation("a context goes before its work");
               for (const auto& [name, address] : tensors.addresses) {
                 rt::check_memory("a tensor", reinterpret_cast<void*>(address), 1, false);
               }
               if (scratch.second > 0) {
                 auto* memory = reinterpret_cast<void*>(scratch.first);
                 rt::check_memory("scratch memory", memory, scratch.second, false);
                 std::memset(memory, kFakeUnwritten, scratch.second);
               }
               is_step ? rt::trace_step(tensors) : rt::trace_encoder(tensors);
               ++rt::fake_tensorrt().runs[gpu];
             },
             context) == rt::cuda::kSuccess;
}

ICudaEngine::ICudaEngine(std::unique_ptr<FakeEngineState> state) : state_(std::move(state)) {
  ++state_->runtime.engines;
  ++rt::fake_cuda().alive["engine"];
}

ICudaEngine::~ICudaEngine() noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  if (state_->contexts > 0) rt::violation("an engine goes before its contexts");
  if (rt::current_gpu() != state_->gpu) rt::violation("an engine is freed on another GPU");
  --state_->runtime.engines;
  --rt::fake_cuda().alive["engine"];
}

int32_t ICudaEngine::getNbIOTensors() const noexcept {
  return static_cast<int32_t>(state_->description.tensors.size());
}

char const* ICudaEngine::getIOTensorName(int32_t index) const noexcept {
  return std::next(state_->description.tensors.begin(), index)->first.c_str();
}

TensorIOMode ICudaEngine::getTensorIOMode(char const* name) const noexcept {
  return state_->description.tensors.at(name).mode;
}

DataType ICudaEngine::getTensorDataType(char const* name) const noexcept {
  return state_->description.tensors.at(name).type;
}

TensorLocation ICudaEngine::getTensorLocation(char const* name) const noexcept {
  return state_->description.tensors.at(name).location;
}

char const* ICudaEngine::getAliasedInputTensor(char const* name) const noexcept {
  const std::string& alias = state_->description.tensors.at(name).alias;
  return alias.empty() ? nullptr : alias.c_str();
}

int32_t ICudaEngine::getNbOptimizationProfiles() const noexcept {
  return state_->description.profiles;
}

int64_t ICudaEngine::getDeviceMemorySizeV2() const noexcept {
  return state_->description.scratch_bytes;
}

IExecutionContext* ICudaEngine::createExecutionContext(
    ExecutionContextAllocationStrategy strategy) noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  if (strategy != ExecutionContextAllocationStrategy::kUSER_MANAGED) {
    rt::violation("a context with scratch memory of its own");
  }
  if (rt::current_gpu() != state_->gpu) rt::violation("a context is made on another GPU");
  if (state_->description.no_context) {
    state_->fail("no memory for a context");
    return nullptr;
  }
  return new IExecutionContext(*state_);
}

IRuntime::IRuntime(ILogger& logger) : state_(new FakeRuntimeState{logger}) {
  ++rt::fake_cuda().alive["runtime"];
}

IRuntime::~IRuntime() noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  if (state_->engines > 0) rt::violation("a runtime goes before its engines");
  --rt::fake_cuda().alive["runtime"];
}

ICudaEngine* IRuntime::deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  const std::string content(static_cast<const char*>(blob), size);
  const auto& engines = rt::fake_tensorrt().engines;
  const auto found = engines.find(content);
  if (found == engines.end()) {
    state_->logger.log(ILogger::Severity::kERROR, "the magic tag does not match");
    state_->logger.log(ILogger::Severity::kINTERNAL_ERROR, "it is no engine");
    return nullptr;
  }
  return new ICudaEngine(std::make_unique<FakeEngineState>(
      FakeEngineState{*state_, found->second, rt::current_gpu()}));
}

IRuntime* createInferRuntime(ILogger& logger) noexcept {
  const std::lock_guard lock(rt::fake_mutex());
  if (!rt::fake_tensorrt().no_runtime) return new IRuntime(logger);
  logger.log(ILogger::Severity::kERROR, "CUDA initialization failure");
  return nullptr;
}

}  // namespace nvinfer1

namespace translate_trt::runtime {

namespace {

nvinfer1::DataType fake_type(Type type) {
  switch (type) {
    case Type::kInt64:
      return nvinfer1::DataType::kINT64;
    case Type::kFloat16:
      return nvinfer1::DataType::kHALF;
    case Type::kBFloat16:
      return nvinfer1::DataType::kBF16;
    case Type::kBool:
      return nvinfer1::DataType::kBOOL;
    case Type::kFloat32:
      break;
  }
  return nvinfer1::DataType::kFLOAT;
}

FakeEngine fake_engine(bool is_step) {
  const Contract contract = tracing_shape();
  FakeEngine engine;
  engine.is_step = is_step;
  engine.profiles = is_step ? 12 : 4;
  engine.scratch_bytes = is_step ? 1000 : 300;
  for (const TensorSpec& spec : is_step ? contract.step_inputs() : contract.encoder_inputs) {
    engine.tensors[spec.name] = {nvinfer1::TensorIOMode::kINPUT, fake_type(spec.type)};
  }
  for (const TensorSpec& spec : is_step ? contract.step_outputs() : contract.encoder_outputs) {
    engine.tensors[spec.name] = {nvinfer1::TensorIOMode::kOUTPUT, fake_type(spec.type)};
  }
  for (const TensorSpec& spec : is_step ? contract.caches() : Specs()) {
    engine.tensors[kNext + spec.name].alias = spec.name;
  }
  return engine;
}

}  // namespace

FakeTensorRt& fake_tensorrt() {
  static FakeTensorRt tensorrt;
  return tensorrt;
}

void switch_tensorrt_on() {
  fake_tensorrt() = {};
  fake_tensorrt().engines = {{"encoder", fake_engine(false)}, {"step", fake_engine(true)}};
}

}  // namespace translate_trt::runtime
