#include "fake_gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "tracing_engines.h"

namespace rt = translate_trt::runtime;

namespace {

using FakeWork = std::function<void()>;

constexpr int kFakeUnwritten = 0xFF;

std::recursive_mutex fake_mutex;
thread_local int fake_current_gpu = 0;
thread_local cudaError_t fake_last_error = cudaSuccess;

struct FakeMemory {
  std::size_t size;
  bool pinned;
};
std::map<std::uintptr_t, FakeMemory> fake_memory;  // by address
std::set<CUstream_st*> fake_streams;
std::set<CUgraphExec_st*> fake_executables;
std::set<const void*> fake_contexts;

void violation(const std::string& what) { rt::fake_machine().violations.push_back(what); }

// Checks that bytes are within live memory of that kind.
void check_memory(const char* what, const void* address, std::size_t size, bool pinned) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  auto next = fake_memory.upper_bound(place);
  if (next != fake_memory.begin()) {
    const auto& [begin, memory] = *--next;
    if (place + size <= begin + memory.size && memory.pinned == pinned) return;
  }
  violation(std::string(what) + " beyond " + (pinned ? "pinned memory" : "the GPU's memory"));
}

// A CUDA function: counts calls, fails on request of the test, and is serialized.
template <class Call>
cudaError_t cuda_call(const char* name, const Call& call) {
  const std::lock_guard lock(fake_mutex);
  rt::FakeMachine& machine = rt::fake_machine();
  ++machine.calls[name];
  const auto failing = machine.failing.find(name);
  cudaError_t code = failing == machine.failing.end() ? cudaSuccess : failing->second;
  if (code == cudaSuccess && machine.is_lost) code = cudaErrorIllegalAddress;
  if (code == cudaSuccess) code = call();
  if (code != cudaSuccess) fake_last_error = code;
  return code;
}

// A CUDA function that frees, which also works on a lost GPU.
template <class Call>
cudaError_t cuda_free_call(const char* name, const char* kind, const Call& call) {
  const std::lock_guard lock(fake_mutex);
  rt::FakeMachine& machine = rt::fake_machine();
  ++machine.calls[name];
  --machine.alive[kind];
  call();
  return cudaSuccess;
}

}  // namespace

// ---- streams ----

struct CUgraph_st {
  std::vector<FakeWork> work;
  std::set<const void*> contexts;
};

struct CUgraphExec_st : CUgraph_st {};

struct CUstream_st {
  int gpu;
  std::deque<FakeWork> queue;
  std::size_t asked = 0, done = 0;
  std::unique_ptr<CUgraph_st> capture;
  bool is_valid = true;    // whether the capture is valid
  std::thread::id thread;  // capturing thread

  cudaError_t ask(FakeWork work, const void* context = nullptr) {
    if (fake_current_gpu != gpu) violation("work for another GPU than the thread's");
    if (capture) {
      capture->work.push_back(std::move(work));
      if (context != nullptr) capture->contexts.insert(context);
    } else {
      queue.push_back(std::move(work));
      ++asked;
    }
    return cudaSuccess;
  }

  cudaError_t run_until(std::size_t position) {
    if (capture) {
      is_valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
    try {
      for (; done < position; ++done) {
        const FakeWork work = std::move(queue.front());
        queue.pop_front();
        work();
      }
    } catch (const std::exception&) {
      rt::fake_machine().is_lost = true;
      queue.clear();
      done = asked;
      return cudaErrorIllegalAddress;
    }
    return cudaSuccess;
  }
};

struct CUevent_st {
  CUstream_st* stream;
  std::size_t position;
};

namespace {

// Checks that the calling thread is not capturing; other threads may.
bool thread_captures() {
  return std::any_of(fake_streams.begin(), fake_streams.end(), [](CUstream_st* stream) {
    const bool captures = stream->capture && stream->thread == std::this_thread::get_id();
    if (captures) stream->is_valid = false;
    return captures;
  });
}

cudaError_t fake_allocate(void** memory, std::size_t size, bool pinned) {
  if (thread_captures()) return cudaErrorStreamCaptureUnsupported;
  const std::size_t whole = (size + rt::kAlignment - 1) / rt::kAlignment * rt::kAlignment;
  *memory = std::aligned_alloc(rt::kAlignment, whole);
  std::memset(*memory, kFakeUnwritten, whole);
  fake_memory[reinterpret_cast<std::uintptr_t>(*memory)] = {size, pinned};
  ++rt::fake_machine().alive[pinned ? "pinned" : "memory"];
  return cudaSuccess;
}

cudaError_t fake_free(const char* name, void* memory, bool pinned) {
  return cuda_free_call(name, pinned ? "pinned" : "memory", [=] {
    if (fake_memory.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) {
      violation("memory freed that is none");
    }
    std::free(memory);
  });
}

void fake_copy(void* target, const void* source, std::size_t size, cudaMemcpyKind kind) {
  check_memory("a copy is written", target, size, kind == cudaMemcpyDeviceToHost);
  check_memory("a copy is read", source, size, kind == cudaMemcpyHostToDevice);
  std::memcpy(target, source, size);
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError(void) { return std::exchange(fake_last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "some other error";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  return cuda_call("cudaGetDeviceCount", [=] {
    *count = rt::fake_machine().gpus;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return cuda_call("cudaDeviceGetAttribute", [=] {
    const rt::FakeMachine& machine = rt::fake_machine();
    if (device >= machine.gpus) return cudaErrorInvalidDevice;
    const bool major = attribute == cudaDevAttrComputeCapabilityMajor;
    *value = major ? machine.capability_major : machine.capability_minor;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return cuda_call("cudaSetDevice", [=] {
    if (device >= rt::fake_machine().gpus) return cudaErrorInvalidDevice;
    fake_current_gpu = device;
    rt::fake_machine().threads.insert(std::this_thread::get_id());
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cuda_call("cudaStreamCreateWithFlags", [=] {
    if (flags != cudaStreamNonBlocking) violation("a stream that waits for the default one");
    auto made = std::make_unique<CUstream_st>();
    made->gpu = fake_current_gpu;
    *stream = made.release();
    fake_streams.insert(*stream);
    ++rt::fake_machine().alive["stream"];
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return cuda_free_call("cudaStreamDestroy", "stream", [=] {
    if (!stream->queue.empty()) violation("a stream with work is destroyed");
    fake_streams.erase(stream);
    delete stream;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return cuda_call("cudaStreamSynchronize", [=] { return stream->run_until(stream->asked); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return cuda_call("cudaStreamBeginCapture", [=] {
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_unique<CUgraph_st>();
    stream->is_valid = true;
    stream->thread = std::this_thread::get_id();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto captured = std::exchange(stream->capture, nullptr);  // also if it fails
  *graph = nullptr;
  return cuda_call("cudaStreamEndCapture", [&] {
    if (!captured || !stream->is_valid) return cudaErrorStreamCaptureInvalidated;
    *graph = new CUgraph_st(*captured);
    ++rt::fake_machine().alive["graph"];
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return cuda_call("cudaEventCreateWithFlags", [=] {
    if (flags != (cudaEventBlockingSync | cudaEventDisableTiming)) violation("an event that spins");
    *event = new CUevent_st{nullptr, 0};
    ++rt::fake_machine().alive["event"];
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cuda_call("cudaEventRecord", [=] {
    event->stream = stream;
    event->position = stream->asked;
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return cuda_call("cudaEventSynchronize",
                   [=] { return event->stream->run_until(event->position); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return cuda_free_call("cudaEventDestroy", "event", [=] { delete event; });
}

cudaError_t cudaMalloc(void** memory, size_t size) {
  return cuda_call("cudaMalloc", [=] { return fake_allocate(memory, size, false); });
}

cudaError_t cudaFree(void* memory) { return fake_free("cudaFree", memory, false); }

cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned int) {
  return cuda_call("cudaHostAlloc", [=] { return fake_allocate(memory, size, true); });
}

cudaError_t cudaFreeHost(void* memory) { return fake_free("cudaFreeHost", memory, true); }

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cuda_call("cudaMemcpyAsync", [=] {
    // Value for reads before the copy has run.
    if (kind == cudaMemcpyDeviceToHost) std::memset(target, kFakeUnwritten, size);
    return stream->ask([=] { fake_copy(target, source, size, kind); });
  });
}

cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return cuda_call("cudaMemcpy2DAsync", [=] {
    if (width > target_pitch || width > source_pitch) return cudaErrorInvalidValue;
    return stream->ask([=] {
      for (std::size_t row = 0; row < height; ++row) {
        fake_copy(static_cast<char*>(target) + row * target_pitch,
                  static_cast<const char*>(source) + row * source_pitch, width, kind);
      }
    });
  });
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t size, cudaStream_t stream) {
  return cuda_call("cudaMemsetAsync", [=] {
    return stream->ask([=] {
      check_memory("a fill", target, size, false);
      std::memset(target, value, size);
    });
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  return cuda_call("cudaGraphInstantiateWithFlags", [=] {
    *executable = new CUgraphExec_st{*graph};
    fake_executables.insert(*executable);
    ++rt::fake_machine().alive["executable graph"];
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return cuda_free_call("cudaGraphDestroy", "graph", [=] { delete graph; });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cuda_free_call("cudaGraphExecDestroy", "executable graph", [=] {
    fake_executables.erase(executable);
    delete executable;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return cuda_call("cudaGraphLaunch", [=] {
    return stream->ask([work = executable->work] {
      for (const FakeWork& part : work) part();
    });
  });
}

std::int32_t getInferLibVersion() noexcept { return rt::fake_machine().version; }

}  // extern "C"

// ---- TensorRT ----

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
  ++rt::fake_machine().alive["context"];
}

IExecutionContext::~IExecutionContext() noexcept {
  const std::lock_guard lock(fake_mutex);
  for (const CUgraphExec_st* graph : fake_executables) {
    if (graph->contexts.count(state_.get()) > 0) violation("a context goes before its graph");
  }
  fake_contexts.erase(state_.get());
  if (fake_current_gpu != state_->engine.gpu) violation("a context is freed on another GPU");
  --state_->engine.contexts;
  --rt::fake_machine().alive["context"];
}

void IExecutionContext::setDeviceMemoryV2(void* memory, int64_t size) noexcept {
  state_->scratch = reinterpret_cast<std::uint64_t>(memory);
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
  const std::lock_guard lock(fake_mutex);
  FakeContextState& state = *state_;
  const rt::FakeEngine& engine = state.engine.description;
  if (engine.broken) return state.engine.fail("a kernel is missing");
  if (state.profile < 0) return state.engine.fail("no profile was chosen");
  if (stream->capture && !state.has_run) {
    return state.engine.fail("the first run with these shapes cannot be captured");
  }
  if (stream->gpu != state.engine.gpu) violation("an engine of another GPU");
  if (state.scratch_bytes < engine.scratch_bytes) violation("too little scratch memory");
  rt::TracedTensors tensors;
  for (const auto& [name, tensor] : engine.tensors) {
    const bool is_input = tensor.mode == TensorIOMode::kINPUT;
    if (is_input && state.shapes.count(name) == 0) return state.engine.fail("no shape: " + name);
    if (state.addresses.count(name) == 0) return state.engine.fail("no address: " + name);
    void* address = state.addresses[name];
    check_memory(("the tensor " + name).c_str(), address, 1, false);
    if (!tensor.alias.empty() && state.addresses[tensor.alias] != address) {
      return state.engine.fail(name + " must be where " + tensor.alias + " is");
    }
    tensors.add(name, reinterpret_cast<rt::Address>(address),
                is_input ? state.shapes[name].d : nullptr);
  }
  if (!stream->capture) state.has_run = true;
  const auto scratch = std::pair(state.scratch, static_cast<std::size_t>(engine.scratch_bytes));
  const void* context = &state;
  return stream->ask(
             [=, is_step = engine.is_step, crashes = engine.crashes, gpu = stream->gpu] {
               if (crashes) throw std::runtime_error("an illegal memory access");
               if (fake_contexts.count(context) == 0) violation("a context goes before its work");
               for (const auto& [name, address] : tensors.addresses) {
                 check_memory("a tensor", reinterpret_cast<void*>(address), 1, false);
               }
               if (scratch.second > 0) {
                 auto* memory = reinterpret_cast<void*>(scratch.first);
                 check_memory("scratch memory", memory, scratch.second, false);
                 std::memset(memory, kFakeUnwritten, scratch.second);
               }
               is_step ? rt::trace_step(tensors) : rt::trace_encoder(tensors);
               ++rt::fake_machine().runs[gpu];
             },
             context) == cudaSuccess;
}

ICudaEngine::ICudaEngine(std::unique_ptr<FakeEngineState> state) : state_(std::move(state)) {
  ++state_->runtime.engines;
  ++rt::fake_machine().alive["engine"];
}

ICudaEngine::~ICudaEngine() noexcept {
  const std::lock_guard lock(fake_mutex);
  if (state_->contexts > 0) violation("an engine goes before its contexts");
  if (fake_current_gpu != state_->gpu) violation("an engine is freed on another GPU");
  --state_->runtime.engines;
  --rt::fake_machine().alive["engine"];
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
  const std::lock_guard lock(fake_mutex);
  if (strategy != ExecutionContextAllocationStrategy::kUSER_MANAGED) {
    violation("a context with scratch memory of its own");
  }
  if (fake_current_gpu != state_->gpu) violation("a context is made on another GPU");
  if (state_->description.no_context) {
    state_->fail("no memory for a context");
    return nullptr;
  }
  return new IExecutionContext(*state_);
}

IRuntime::IRuntime(ILogger& logger) : state_(new FakeRuntimeState{logger}) {
  ++rt::fake_machine().alive["runtime"];
}

IRuntime::~IRuntime() noexcept {
  const std::lock_guard lock(fake_mutex);
  if (state_->engines > 0) violation("a runtime goes before its engines");
  --rt::fake_machine().alive["runtime"];
}

ICudaEngine* IRuntime::deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
  const std::lock_guard lock(fake_mutex);
  const std::string content(static_cast<const char*>(blob), size);
  const auto& engines = rt::fake_machine().engines;
  const auto found = engines.find(content);
  if (found == engines.end()) {
    state_->logger.log(ILogger::Severity::kERROR, "the magic tag does not match");
    state_->logger.log(ILogger::Severity::kINTERNAL_ERROR, "it is no engine");
    return nullptr;
  }
  return new ICudaEngine(
      std::make_unique<FakeEngineState>(FakeEngineState{*state_, found->second, fake_current_gpu}));
}

IRuntime* createInferRuntime(ILogger& logger) noexcept {
  const std::lock_guard lock(fake_mutex);
  if (!rt::fake_machine().no_runtime) return new IRuntime(logger);
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

}  // namespace

FakeEngine fake_engine(bool is_step, std::int32_t profiles) {
  const Contract contract = tracing_shape();
  FakeEngine engine;
  engine.is_step = is_step;
  engine.profiles = profiles;
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

int FakeMachine::left() const {
  int sum = 0;
  for (const auto& [kind, count] : alive) sum += count;
  return sum;
}

FakeMachine& fake_machine() {
  static FakeMachine machine;
  return machine;
}

}  // namespace translate_trt::runtime
