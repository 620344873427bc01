// The CUDA part of device functions on the fake driver: which calls it makes, and their failures.

#include "cuda/cuda_device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda_checks.h"
#include "decoder_shape.h"
#include "engines/device_batch.h"
#include "gpu_fixture.h"

namespace translate_trt::runtime {

namespace {

using Calls = std::vector<std::string>;

struct CudaFixture : GpuFixture {
  ~CudaFixture() { CHECK(cuda.pageable_copies == 0); }
};

// ---- copies within device memory ----

Calls calls_of(const std::function<void()>& work) {
  fake_cuda().take_history();
  work();
  return fake_cuda().take_history();
}

std::string launch_of(unsigned tasks) {
  return "cuLaunchKernel(copy_kernel, " + std::to_string(tasks) + ", 8, 1, 128, 0, stream0)";
}

void test_wide_rows_are_copied_by_the_driver() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  const std::uint64_t first = queue.allocate(1 << 20), second = queue.allocate(1 << 20);
  const Calls calls = calls_of([&] {
    queue.copy(second, first, 100000, 1, 0, 0);
    queue.copy(second, first, 100, 1000, 100, 100);
    queue.copy(second, first, 100000, 3, 200000, 100001);
    queue.copy(second, first, 0, 3, 8, 8);
    queue.copy(second, first, 8, 0, 8, 8);
  });
  CHECK(calls == Calls({"cuMemcpyDtoDAsync(memory1, memory0, 100000, stream0)",
                        "cuMemcpyDtoDAsync(memory1, memory0, 100000, stream0)",
                        "cuMemcpy2DAsync(memory1, 200000, memory0, 100001, 100000, 3, stream0)"}));
  queue.wait(queue.record());
}

// Small copies wait for the next other work, which must see them.
void test_small_copies_are_launched_together() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  constexpr std::size_t kSize = 1 << 17;
  const std::uint64_t first = queue.allocate(kSize), second = queue.allocate(kSize);
  void* pinned = queue.pin(64);
  const auto copies = [&] {
    queue.copy(second, first, 16, 1, 0, 0);
    queue.copy(second + 16, first, 10, 3, 100, 200);
  };
  CHECK(calls_of(copies).empty());
  queue.wait(queue.record());
  const std::pair<const char*, std::function<void()>> others[] = {
      {"cuMemcpyHtoDAsync", [&] { queue.copy_in(first, pinned, 64); }},
      {"cuMemcpyDtoHAsync", [&] { queue.copy_out(pinned, first, 64); }},
      {"cuMemcpyDtoDAsync", [&] { queue.copy(first, second, kSize, 1, 0, 0); }},
      {"cuMemsetD8Async", [&] { queue.fill(second, 0, 64); }},
      {"cuEventRecord", [&] { queue.wait(queue.record()); }},
      {"cuStreamBeginCapture", [&] { queue.begin_capture(), queue.discard_capture(); }}};
  for (const auto& [name, work] : others) {
    const Calls calls = calls_of([&] { copies(), work(); });
    CHECK(calls.size() >= 2 && calls[0] == launch_of(2));
    CHECK(calls[1].rfind(name, 0) == 0);
  }
  // In a capture they are a part of the graph.
  queue.begin_capture();
  copies();
  const Calls calls = calls_of([&] { queue.replay(queue.end_capture()); });
  CHECK(calls[0] == launch_of(2) && calls[1] == "cuStreamEndCapture(stream0)");
  queue.wait(queue.record());
}

void test_copies_that_depend_on_others_run_after_them() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  const std::uint64_t memory = queue.allocate(4096);
  const auto launches = [&](const std::function<void()>& work) {
    const Calls calls = calls_of([&] { work(), queue.wait(queue.record()); });
    return std::count_if(calls.begin(), calls.end(),
                         [](const std::string& call) { return contains(call, "copy_kernel"); });
  };
  const auto copy = [&](std::uint64_t target, std::uint64_t source, std::size_t size) {
    queue.copy(memory + target, memory + source, size, 1, 0, 0);
  };
  CHECK(launches([&] { copy(0, 100, 50), copy(50, 100, 50), copy(150, 100, 50); }) == 1);
  CHECK(launches([&] { copy(0, 100, 50), copy(49, 200, 50); }) == 2);   // writes the same byte
  CHECK(launches([&] { copy(0, 100, 50), copy(300, 49, 50); }) == 2);   // reads what is written
  CHECK(launches([&] { copy(0, 100, 50), copy(149, 300, 50); }) == 2);  // writes what is read
  // Rows that reach beyond another's first row.
  CHECK(launches([&] {
          queue.copy(memory, memory + 1000, 10, 5, 100, 10);
          copy(405, 2000, 10);
        }) == 2);
  CHECK(launches([&] {
          for (std::uint64_t i = 0; i < 2 * kCopyTasks + 1; ++i) copy(8 * i, 2048 + 8 * i, 8);
        }) == 3);
}

// Base's decoder with a batch of 64 in which 8 sentences are replaced, each between two that stay.
void test_calls_of_a_join(bool has_kernel) {
  const CudaFixture fixture;
  if (!has_kernel) fake_cuda().failing["cuModuleLoadData"] = kRefused;
  tt_cuda_engines engines = CopyingEngines::functions(0);
  engines.launch = [](void*, const tt_launch*) { return tt_status{TT_OK}; };
  tt_device_functions functions = {};
  CHECK(tt_cuda_functions(&engines, &functions) == TT_OK);
  DecoderShape shape = {6, 8, 1, 1};  // small heads, as many copies
  shape.form.beams = 4;
  shape.form.slots = 4 * 306;
  EngineSettings settings;
  settings.encoder_profiles = {{64, 256, 0}};
  settings.step_profiles = {{64, 256, *shape.form.slots}};
  const DeviceBackend backend(functions, shape, settings, [](const std::string&) {});
  SearchOptions options;
  options.beam_size = 4;
  std::thread([&] {
    const auto batch = backend.batch(options, 2);
    const auto sentences = [&](std::size_t count) {
      return Sources{std::vector<Tokens>(count, Tokens(28, 5)), Rows(count, 90),
                     std::vector<const SearchOptions*>(count, &options)};
    };
    batch->update({}, sentences(64));
    Rows keep;
    for (std::int64_t row = 0; row < 64; ++row) {
      if (row % 8 != 3) keep.push_back(row);
    }
    fake_cuda().calls.clear();
    batch->update(keep, sentences(8));
  }).join();
  std::map<std::string, int>& calls = fake_cuda().calls;
  CHECK(calls["cuMemcpyHtoDAsync"] == 2);  // the sentences
  const int copies = calls["cuMemcpyDtoDAsync"] + calls["cuMemcpy2DAsync"];
  // 168 of 184 copies within the device; the rest waits for the next step.
  CHECK(calls["cuLaunchKernel"] == (has_kernel ? 3 : 0));
  CHECK(copies == (has_kernel ? 0 : 184));
}

// A launch that fails ends a capture.
void test_copies_that_cannot_be_captured() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  const std::uint64_t memory = queue.allocate(256);
  queue.begin_capture();
  queue.copy(memory, memory + 128, 64, 1, 0, 0);
  fake_cuda().failing["cuLaunchKernel"] = kRefused;
  CHECK(thrown([&] { queue.end_capture(); }) ==
        "TT_BACKEND_ERROR cuLaunchKernel failed: some other error.");
  CHECK(!queue.capturing());
  fake_cuda().failing.clear();
  queue.fill(memory, 1, 64);
  queue.wait(queue.record());
}

// ---- order, captures ----

void test_work_runs_in_order_and_no_earlier_than_it_is_waited_for() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  queue.allocate(0), queue.pin(0);  // of empty tensors
  const std::uint64_t memory = queue.allocate(64);
  auto* in = static_cast<unsigned char*>(queue.pin(64));
  auto* out = static_cast<unsigned char*>(queue.pin(64));
  std::memset(in, 1, 64);
  queue.copy_in(memory, in, 64);
  queue.copy_out(out, memory, 32);
  cuda::Event first = queue.record();
  queue.fill(memory, 9, 64);
  queue.copy_out(out + 32, memory, 32);
  std::memset(in, 2, 64);  // before the copy has run
  CHECK(out[0] == 0xFF && out[63] == 0xFF);
  queue.wait(first);
  CHECK(out[0] == 2 && out[31] == 2 && out[32] == 0xFF);
  first = queue.record();
  queue.wait(first);
  CHECK(out[32] == 9 && out[63] == 9);
}

// A capture that allocates or waits would be invalid, and all of its work lost.
void test_nothing_unsafe_is_called_during_a_capture() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  const std::uint64_t memory = queue.allocate(64);
  cuda::Event event = queue.record();
  queue.begin_capture();
  queue.fill(memory, 3, 64);
  fake_cuda().take_history();
  const std::string forbidden = " is not permitted during a capture.";
  CHECK(thrown([&] { queue.allocate(8); }) == "TT_BACKEND_ERROR cuMemAlloc" + forbidden);
  CHECK(thrown([&] { queue.pin(8); }) == "TT_BACKEND_ERROR cuMemHostAlloc" + forbidden);
  CHECK(thrown([&] { queue.record(); }) == "TT_BACKEND_ERROR cuEventRecord" + forbidden);
  CHECK(thrown([&] { queue.wait(event); }) == "TT_BACKEND_ERROR cuEventSynchronize" + forbidden);
  CHECK(thrown([&] { queue.free_memory(); }) == "TT_BACKEND_ERROR cuMemGetInfo" + forbidden);
  CHECK(fake_cuda().take_history().empty());
  queue.replay(queue.end_capture());
  auto* out = static_cast<unsigned char*>(queue.pin(64));
  queue.copy_out(out, memory, 64);
  queue.wait(queue.record());
  CHECK(out[0] == 3 && out[63] == 3);
}

// One capture that another library has invalidated.
void test_an_invalid_capture_leaves_the_queue_as_it_was() {
  const CudaFixture fixture;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  const std::uint64_t memory = queue.allocate(64);
  queue.begin_capture();
  cuda::Address other = 0;
  CHECK(CudaDriver::open().allocate(&other, 8) != cuda::kSuccess);
  CHECK(thrown([&] { queue.fill(memory, 1, 64); }) ==
        "TT_BACKEND_ERROR cuMemsetD8Async failed: operation failed due to a previous error during "
        "capture.");
  CHECK(thrown([&] { queue.end_capture(); }) ==
        "TT_BACKEND_ERROR cuStreamEndCapture failed: operation failed due to a previous error "
        "during capture.");
  CHECK(!queue.capturing());
  queue.fill(memory, 1, 64);
  queue.wait(queue.record());
}

void test_memory_that_is_not_there() {
  const CudaFixture fixture;
  fake_cuda().memory = 1000;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  queue.allocate(900);
  CHECK(queue.free_memory() == 100);
  CHECK(thrown([&] { queue.allocate(101); }) ==
        "TT_BACKEND_ERROR the GPU is out of memory: 101 bytes are needed, and 100 are free. Lower "
        "workers or batch_tokens, or export engines with a smaller --max-batch or --profiles.");
  queue.allocate(100);
}

// Work that fails is reported by whatever call comes next, and the queue is still freed.
void test_a_lost_gpu() {
  for (const bool eager : {false, true}) {
    const CudaFixture fixture;
    fake_cuda().eager = eager;
    CudaQueue queue(std::make_shared<CudaContext>(0));
    const std::uint64_t memory = queue.allocate(64);
    enqueue(queue.stream(), [] { throw std::runtime_error("a bad address"); }, nullptr);
    const std::string error = thrown([&] {
      queue.fill(memory, 0, 64);
      queue.wait(queue.record());
    });
    CHECK(error == std::string("TT_BACKEND_ERROR ") +
                       (eager ? "cuMemsetD8Async" : "cuEventSynchronize") +
                       " failed: an illegal memory access was encountered.");
  }
}

// ---- engines of the caller (translate_trt/cuda.h) ----

void test_engines_of_the_caller() {
  const CudaFixture fixture;
  CHECK(run_cuda_checks(1).empty());
  CHECK(fake_cuda().calls["cuGraphLaunch"] == 3);
  CHECK(fake_cuda().threads.count(std::this_thread::get_id()) == 0);
}

void test_engines_that_cannot_be_used() {
  const CudaFixture fixture;
  tt_cuda_engines engines = CopyingEngines::functions(2);
  tt_device_functions functions = {};
  CHECK(tt_cuda_functions(&engines, &functions) == TT_BACKEND_ERROR);
  CHECK(contains(tt_last_error(), "there is no GPU cuda:2; this process sees 2"));
  engines.gpu = -1;
  CHECK(tt_cuda_functions(&engines, &functions) == TT_BACKEND_ERROR);
  CHECK(contains(tt_last_error(), "there is no GPU cuda:-1"));
  engines.gpu = 0;
  engines.launch = nullptr;
  CHECK(tt_cuda_functions(&engines, &functions) == TT_OPTION_ERROR);
  CHECK(functions.open == nullptr);
  engines = CopyingEngines::functions(0);
  engines.open = [](void*, CUstream_st*, std::uint64_t, void**) {
    return tt_device_fail(TT_MEMORY_ERROR, "there is no context.");
  };
  CHECK(tt_cuda_functions(&engines, &functions) == TT_OK);
  void* device = nullptr;
  std::thread([&] {
    CHECK(functions.open(functions.context, &device) == TT_MEMORY_ERROR);
    CHECK(std::string(tt_last_error()) == "there is no context.");
  }).join();
  CHECK(device == nullptr);
  // Engines that fail during a capture.
  engines = CopyingEngines::functions(0);
  engines.launch = [](void*, const tt_launch*) {
    return tt_device_fail(TT_BACKEND_ERROR, "the engine does not run.");
  };
  std::thread([&] {
    CheckedDevice one(functions);
    CHECK(one(&tt_device_functions::begin_capture) == TT_OK);
    CHECK(one.launch(one.first, one.second) == TT_BACKEND_ERROR);
    CHECK(std::string(tt_last_error()) == "the engine does not run.");
    CHECK(one(&tt_device_functions::end_capture, nullptr) == TT_OK);
    check_copies(one);
  }).join();
  CHECK(CopyingEngines::alive == 0);
}

// Calls run in a thread of the GPU, whose context remains.
void test_calls_on_a_gpu() {
  fake_cuda() = {};
  fake_cuda().gpus = 3;  // no other test uses the last one
  int gpu = 0;
  const auto work = [](void* found) {
    *static_cast<int*>(found) = current_gpu();
    return tt_status{TT_OK};
  };
  for (int i = 0; i < 2; ++i) CHECK(tt_cuda_call(2, work, &gpu) == TT_OK);
  CHECK(gpu == 2 && fake_cuda().left() == 1 && fake_cuda().alive["context of a GPU"] == 1);
  CHECK(fake_cuda().threads.count(std::this_thread::get_id()) == 0);
  const auto failing = [](void*) { return tt_device_fail(TT_MEMORY_ERROR, "no memory."); };
  CHECK(tt_cuda_call(2, failing, nullptr) == TT_MEMORY_ERROR);
  CHECK(std::string(tt_last_error()) == "no memory.");
  CHECK(tt_cuda_call(3, work, &gpu) == TT_BACKEND_ERROR);
}

}  // namespace

void test_cuda_device() {
  test_wide_rows_are_copied_by_the_driver();
  test_small_copies_are_launched_together();
  test_copies_that_depend_on_others_run_after_them();
  test_copies_that_cannot_be_captured();
  for (const bool has_kernel : {false, true}) test_calls_of_a_join(has_kernel);
  test_work_runs_in_order_and_no_earlier_than_it_is_waited_for();
  test_nothing_unsafe_is_called_during_a_capture();
  test_an_invalid_capture_leaves_the_queue_as_it_was();
  test_memory_that_is_not_there();
  test_a_lost_gpu();
  test_engines_of_the_caller();
  test_engines_that_cannot_be_used();
  test_calls_on_a_gpu();
}

}  // namespace translate_trt::runtime
