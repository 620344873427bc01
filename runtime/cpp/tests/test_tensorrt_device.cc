// Engines that the library itself loads, with a fake CUDA and TensorRT.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/settings.h"
#include "base/errors.h"
#include "check.h"
#include "cuda/loaded_backend.h"
#include "engine_records.h"
#include "engines/device_batch.h"
#include "engines/engine_loader.h"
#include "fake_tensorrt.h"
#include "gpu_fixture.h"
#include "tensorrt/tensorrt_device.h"

namespace translate_trt::runtime {

namespace {

// A bundle of tracing engines.
struct EngineFixture : GpuFixture {
  std::filesystem::path bundle = temporary_directory("engines");
  TargetEntry target = engine_target(tracing_shape());
  Settings settings;
  FakeTensorRt& tensorrt = fake_tensorrt();

  EngineFixture() {
    for (const char* role : {"encoder", "step"}) std::ofstream(bundle / role) << role;
    switch_tensorrt_on();
    settings.log = [this](const std::string& message) { messages.push_back(message); };
    set_device("cuda:1");
  }

  ~EngineFixture() { std::filesystem::remove_all(bundle); }

  void set_device(const std::string& name) {
    settings.device = read_device(name);
    settings.default_device = false;
  }

  FakeEngine& engine(const char* role) { return tensorrt.engines.at(role); }

  std::unique_ptr<Backend> load() { return load_engines(bundle, target, settings); }

  std::string loading_error() {
    return thrown([this] { load(); });
  }

  // The error of translating two sentences, or "".
  std::string error_of_batch() {
    return thrown([this] { run_steps(*load(), 4); });
  }
};

// ---- execution ----

void test_a_search_on_loaded_engines() {
  EngineFixture fixture;
  FakeCuda& cuda = fixture.cuda;
  auto backend = fixture.load();
  CHECK(cuda.threads.count(std::this_thread::get_id()) == 0);  // its current GPU has not changed
  in_a_worker([&] {
    const auto batch = backend->batch(greedy(), 2);
    search_in_all_buckets(*batch);
    const Tokens forced = {50};
    batch->drain();
    CHECK(batch->step({forced}).back().tokens == forced);
    CHECK(batch->step({}).back().tokens == Tokens({16}));
    CHECK(cuda.alive["stream"] == 1 && cuda.alive["context"] <= 8);
  });
  CHECK(fixture.tensorrt.runs.size() == 1 && fixture.tensorrt.runs[1] > 20);
  CHECK(cuda.alive["engine"] == 2 && cuda.alive["runtime"] == 2);
  backend.reset();
  CHECK(cuda.threads.count(std::this_thread::get_id()) == 0);
  CHECK(fixture.messages.empty());
}

void test_capture_and_replay() {
  EngineFixture fixture;
  FakeCuda& cuda = fixture.cuda;
  const auto backend = fixture.load();
  in_a_worker([&] {
    for (int i = 0; i < 2; ++i) run_steps(*backend, 5);
  });
  CHECK(cuda.calls["cuStreamBeginCapture"] == 2);  // with 8 and with 24 slots
  CHECK(cuda.calls["cuGraphInstantiateWithFlags"] == 2);
  CHECK(cuda.calls["cuGraphLaunch"] > 5 && cuda.alive["graph"] == 0);
  CHECK(cuda.alive["context"] == 3 && cuda.alive["stream"] == 1);
  CHECK(cuda.calls["cuEventCreate"] < 20);  // events are reused
  CHECK(fixture.messages.empty());
}

void test_two_workers_share_the_engines() {
  EngineFixture fixture;
  const auto backend = fixture.load();
  const auto work = [&] { run_steps(*backend, 5); };
  std::thread first(work), second(work);
  first.join();
  second.join();
  CHECK(fixture.cuda.alive["engine"] == 2 && fixture.cuda.alive["stream"] <= 2);
}

void test_engines_without_scratch_memory() {
  EngineFixture fixture;
  fixture.engine("step").scratch_bytes = fixture.engine("encoder").scratch_bytes = 0;
  in_a_worker([&] { CHECK(fixture.error_of_batch().empty()); });
}

void test_the_first_gpu_is_the_default() {
  EngineFixture fixture;
  fixture.settings = {};
  fixture.settings.log = [](const std::string&) {};
  in_a_worker([&] { CHECK(fixture.error_of_batch().empty()); });
  CHECK(fixture.tensorrt.runs.size() == 1 && fixture.tensorrt.runs.count(0) == 1);
}

void test_rounds_that_cannot_be_captured() {
  for (const char* function :
       {"cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"}) {
    EngineFixture fixture;
    fixture.cuda.failing[function] = kCaptureUnsupported;
    const auto backend = fixture.load();
    in_a_worker([&] {
      for (int i = 0; i < 2; ++i) run_steps(*backend, 5);
    });
    CHECK(fixture.cuda.calls["cuGraphLaunch"] == 0);
    CHECK(fixture.messages.size() == 2);  // with 24 and with 8 slots
    CHECK(fixture.messages.at(0) == std::string("steps of 3x16 with 24 slots run without a CUDA "
                                                "graph, which is slower: ") +
                                        function +
                                        " failed: operation not permitted when stream is "
                                        "capturing.");
  }
}

// ---- failures during execution ----

void test_out_of_memory() {
  const std::pair<const char*, const char*> failing[] = {
      {"cuMemAlloc",
       "TT_BACKEND_ERROR the GPU is out of memory: 1000 bytes are needed, and 1073741824 are free. "
       "Lower workers or batch_tokens, or export engines with a smaller --max-batch or "
       "--profiles."},
      {"cuMemHostAlloc", "bytes of memory left that can be pinned. Lower workers or"}};
  for (const auto& [function, message] : failing) {
    EngineFixture fixture;
    fixture.cuda.failing[function] = cuda::kOutOfMemory;
    in_a_worker([&fixture, message = message] {
      const std::string error = fixture.error_of_batch();
      CHECK(contains(error, message));
    });
  }
  EngineFixture fixture;
  fixture.cuda.failing["cuMemHostAlloc"] = cuda::kOutOfMemory;
  in_a_worker([&] { CHECK(fixture.error_of_batch().rfind("TT_MEMORY_ERROR", 0) == 0); });
}

// A failed device is freed, and the next batch has a new one.
void test_every_call_says_what_failed() {
  for (const char* function :
       {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxPushCurrent",
        "cuDeviceGetAttribute", "cuMemGetInfo", "cuStreamCreate", "cuModuleGetFunction",
        "cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernel",
        "cuMemsetD8Async", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
        "cuGraphLaunch"}) {
    EngineFixture fixture;
    in_a_worker([&] {
      fixture.cuda.failing[function] = kRefused;
      CHECK(fixture.error_of_batch() ==
            std::string("TT_BACKEND_ERROR ") + function + " failed: some other error.");
      fixture.cuda.failing.clear();
      CHECK(fixture.error_of_batch().empty());
    });
  }
}

// Work that fails is reported by whatever call comes next.
void test_engines_on_a_lost_gpu() {
  for (const bool eager : {false, true}) {
    EngineFixture fixture;
    fixture.engine("step").crashes = true;
    fixture.cuda.eager = eager;
    in_a_worker([&] {
      CHECK(fixture.error_of_batch() == std::string("TT_BACKEND_ERROR ") +
                                            (eager ? "cuMemcpyDtoHAsync" : "cuEventSynchronize") +
                                            " failed: an illegal memory access was encountered.");
    });
  }
}

// Each call of CUDA in turn fails once, from loading to captured rounds. Its error names it, or the
// round is captured again; the next batch works, and everything is freed.
void test_any_call_of_engines_may_fail() {
  int calls = 0;
  for (int index = 0; index == 0 || index < calls; ++index) {
    EngineFixture fixture;
    fixture.cuda.fail_call = index;
    in_a_worker([&] {
      std::unique_ptr<Backend> backend;
      const auto translate = [&] {
        if (!backend) backend = fixture.load();
        run_steps(*backend, 4);
      };
      const std::string error = thrown(translate);
      const bool is_told = contains(error, "failed: some other error.") ||
                           contains(error, "no NVIDIA GPU can be used: some other error.");
      const int captures = fixture.cuda.calls["cuStreamBeginCapture"];
      CHECK(is_told || (error.empty() && captures > 0));
      CHECK(thrown(translate).empty() && fixture.messages.empty());
      CHECK(fixture.cuda.calls["cuGraphLaunch"] > 0);
      if (index == 0) calls = fixture.cuda.call_count - 1;  // of the second batch alone
    });
  }
  CHECK(calls > 100);
}

void test_engines_that_do_not_run() {
  EngineFixture fixture;
  in_a_worker([&] {
    fixture.engine("encoder").broken = true;
    CHECK(fixture.error_of_batch() ==
          "TT_BACKEND_ERROR the encoder engine does not run: a kernel is missing");
    fixture.engine("encoder").broken = false;
    fixture.engine("step").refused = {"tokens"};
    CHECK(fixture.error_of_batch() ==
          "TT_BACKEND_ERROR the step engine refuses tokens of shape [3, 1]: no shape of tokens "
          "fits the profile");
    fixture.engine("step").refused.clear();
    fixture.engine("step").no_context = true;
    CHECK(contains(fixture.error_of_batch(),
                   "TT_BACKEND_ERROR TensorRT has no context for the profile 3x16 with 8 slots: no "
                   "memory for a context If memory ran out, lower workers."));
  });
}

void test_what_has_not_run_is_not_captured() {
  EngineFixture fixture;
  auto engines = std::make_shared<TensorRtEngines>(std::make_shared<CudaContext>(0), kTracedEncoder,
                                                   kTracedStep, fixture.bundle / "encoder",
                                                   fixture.bundle / "step", tracing_shape());
  Device device(functions_of<TensorRtDevice>(engines));
  CHECK(thrown([&] { device.capture([&] { device.launch(TT_ENGINE_STEP, 0, {}); }); }) ==
        "TT_BACKEND_ERROR an engine must have run before it is captured.");
  const Address memory = device.allocate(256);
  device.fill(memory, 7, 256);  // works as if nothing had been captured
  std::byte* pinned = device.pin(256);
  device.copy_out(pinned, memory, 256);
  CHECK(pinned[0] == std::byte{0xFF});
  device.wait(device.record());
  CHECK(pinned[0] == std::byte{7} && pinned[255] == std::byte{7});
  CHECK(contains(thrown([&] { device.launch(TT_ENGINE_STEP, 0, {{"nothing", {}, memory}}); }),
                 "the step engine has no nothing: there is no tensor nothing"));
  const std::vector<std::int64_t> nine(9, 1);
  CHECK(contains(thrown([&] { device.launch(TT_ENGINE_STEP, 0, {{"tokens", nine, memory}}); }),
                 "the step engine refuses tokens of shape [1, 1, 1, 1, 1, 1, 1, 1, 1]"));
}

// ---- failures of loading ----

void test_tensors_that_the_contract_does_not_have() {
  EngineFixture fixture;
  const FakeEngine good = fixture.engine("step");
  const auto differing = [&](const std::string& names) {
    const std::string expected =
        "TT_BUNDLE_ERROR an engine of tensorrt does not have the inputs and outputs that this "
        "version expects (they differ in " +
        names + "); it was exported by another version. Export the bundle again.";
    CHECK(fixture.loading_error() == expected);
    fixture.engine("step") = good;
  };
  fixture.engine("step").tensors.at("tokens").type = nvinfer1::DataType::kINT32;
  differing("tokens");
  fixture.engine("step").tensors.at("done").location = nvinfer1::TensorLocation::kHOST;
  differing("done");
  fixture.engine("step").tensors.at("parents").mode = nvinfer1::TensorIOMode::kINPUT;
  differing("parents");
  fixture.engine("step").tensors.erase("positions");
  fixture.engine("step").tensors["slots"] = good.tensors.at("tokens");
  differing("positions, slots");
  fixture.engine("step").tensors.at("next_self_value_0").alias = "self_key_0";
  CHECK(contains(fixture.loading_error(),
                 "TT_BUNDLE_ERROR the step engine does not write self_value_0 in place"));
  fixture.engine("step").tensors.at("next_self_value_0").alias = "";
  CHECK(contains(fixture.loading_error(), "does not write self_value_0 in place"));
}

void test_engines_that_do_not_load() {
  EngineFixture fixture;
  std::ofstream(fixture.bundle / "step") << "damaged";
  CHECK(contains(fixture.loading_error(),
                 "step does not load. TensorRT says: the magic tag does not match | it is no "
                 "engine Export the bundle again"));
  std::filesystem::remove(fixture.bundle / "step");
  CHECK(contains(fixture.loading_error(), "TT_BUNDLE_ERROR cannot read"));
  fixture.tensorrt.no_runtime = true;
  CHECK(contains(fixture.loading_error(),
                 "TT_BACKEND_ERROR TensorRT 11.0.1 cannot be used: CUDA initialization failure"));
}

void test_records_that_do_not_fit() {
  EngineFixture fixture;
  Json record = engine_record_json();
  record["profiles"].erase("3");
  fixture.target = engine_target(tracing_shape(), record);
  CHECK(contains(fixture.loading_error(), "has 4 profiles, the manifest says 3"));
  fixture.engine("encoder").profiles = 3;
  CHECK(contains(fixture.loading_error(), "the encoder engine has no profile for 6x48"));
  fixture.engine("encoder").profiles = 4;
  fixture.target = engine_target(tracing_shape());
  fixture.target.files.pop_back();
  CHECK(contains(fixture.loading_error(), "the target has no engine of the step"));
  fixture.target = engine_target(tracing_shape());
  fixture.target.engine = Json({{"step", engine_record_json()}}).dump();
  CHECK(contains(fixture.loading_error(), "the target has no engine of the encoder"));
}

void test_machines_that_do_not_fit() {
  EngineFixture fixture;
  fixture.tensorrt.version = 110102;
  CHECK(contains(fixture.loading_error(), "this library runs on TensorRT 11.1.2"));
  fixture.tensorrt.version = 110001;
  fixture.cuda.capability_minor = 9;
  CHECK(
      contains(fixture.loading_error(), "this GPU is NVIDIA A10 (compute capability 8.9, 72 SMs)"));
  fixture.cuda.capability_minor = 6;
  Json encoder = engine_record_json(), step = engine_record_json(kTracedStep);
  encoder["gpu"] = {{"name", "NVIDIA A10"}, {"compute_capability", "8.6"}, {"multiprocessors", 72}};
  step["gpu"] = encoder["gpu"];
  fixture.target = engine_target(tracing_shape(), encoder, step);
  fixture.cuda.name = "NVIDIA A40";
  CHECK(
      contains(fixture.loading_error(), "this GPU is NVIDIA A40 (compute capability 8.6, 72 SMs)"));
  fixture.cuda.name = "NVIDIA A10";
  CHECK(fixture.loading_error().empty());
  fixture.target = engine_target(tracing_shape());
  fixture.set_device("cuda:2");
  CHECK(contains(fixture.loading_error(),
                 "TT_BACKEND_ERROR there is no GPU cuda:2; this process "
                 "sees 2, which begin with cuda:0."));
  fixture.cuda.gpus = 0;
  CHECK(contains(fixture.loading_error(),
                 "no NVIDIA GPU can be used: there is none. nvidia-smi shows"));
  fixture.cuda.failing["cuDeviceGetCount"] = kRefused;
  CHECK(contains(fixture.loading_error(),
                 "no NVIDIA GPU can be used: some other error. nvidia-smi shows"));
  fixture.set_device("cpu");
  CHECK(contains(fixture.loading_error(), "TT_BACKEND_ERROR this target runs on a GPU alone"));
  fixture.set_device("tensorrt-rtx:1");
  CHECK(contains(fixture.loading_error(), "TT_OPTION_ERROR device is 'tensorrt-rtx:1', which"));
}

void test_reasons_are_bounded_and_of_the_thread() {
  EngineFixture fixture;
  std::ofstream(fixture.bundle / "step") << "damaged";
  in_a_worker([&] { CHECK(!fixture.loading_error().empty()); });
  CHECK(tensorrt_reasons() == "(no reason given)");  // they were returned before
}

}  // namespace

void test_tensorrt_device() {
  test_a_search_on_loaded_engines();
  test_capture_and_replay();
  test_two_workers_share_the_engines();
  test_engines_without_scratch_memory();
  test_the_first_gpu_is_the_default();
  test_rounds_that_cannot_be_captured();
  test_out_of_memory();
  test_every_call_says_what_failed();
  test_engines_on_a_lost_gpu();
  test_any_call_of_engines_may_fail();
  test_engines_that_do_not_run();
  test_what_has_not_run_is_not_captured();
  test_tensors_that_the_contract_does_not_have();
  test_engines_that_do_not_load();
  test_records_that_do_not_fit();
  test_machines_that_do_not_fit();
  test_reasons_are_bounded_and_of_the_thread();
}

}  // namespace translate_trt::runtime
