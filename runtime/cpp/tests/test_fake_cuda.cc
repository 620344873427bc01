// The fake CUDA runtime refuses what CUDA refuses, and reports it.

#include "fake_cuda.h"

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace translate_trt::runtime {

namespace {

// A stream, device memory and pinned memory of 64 bytes.
struct FakeFixture {
  cudaStream_t stream = nullptr;
  void *memory = nullptr, *other = nullptr, *pinned = nullptr;

  FakeFixture() {
    fake_cuda() = {};
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc(&memory, 64) == cudaSuccess && cudaMalloc(&other, 64) == cudaSuccess);
    CHECK(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault) == cudaSuccess);
  }

  ~FakeFixture() {
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess || fake_cuda().is_lost);
    CHECK(cudaFree(memory) == cudaSuccess && cudaFree(other) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(fake_cuda().left() == 0);
    static_cast<void>(cudaGetLastError());
  }

  cudaError_t copy() const {
    return cudaMemcpyAsync(other, memory, 64, cudaMemcpyDeviceToDevice, stream);
  }

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) const {
    CHECK(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    CHECK(copy() == cudaSuccess);
  }

  // Ends a capture, which must be invalid or not.
  void end(bool is_valid) const {
    cudaGraph_t graph = nullptr;
    const cudaError_t code = cudaStreamEndCapture(stream, &graph);
    CHECK(code == (is_valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
    CHECK((graph != nullptr) == is_valid);
    if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }

  // Whether violations were recorded since the last call.
  static bool violated() { return !std::exchange(fake_cuda().violations, {}).empty(); }
};

void test_unsafe_calls_invalidate_a_capture() {
  const FakeFixture fixture;
  void* memory = nullptr;
  const auto allocate = [&] { return cudaMalloc(&memory, 8); };
  fixture.begin();
  CHECK(allocate() == cudaErrorStreamCaptureUnsupported);
  CHECK(fixture.copy() == cudaErrorStreamCaptureInvalidated);
  fixture.end(false);
  for (const auto& call : std::vector<std::function<cudaError_t()>>{
           [&] { return cudaHostAlloc(&memory, 8, cudaHostAllocDefault); },
           [&] { return cudaStreamSynchronize(fixture.stream); },
           [&] { return cudaFree(fixture.memory); },
           [&] { return cudaFreeHost(fixture.pinned); }}) {
    fixture.begin();
    CHECK(call() == cudaErrorStreamCaptureUnsupported);
    fixture.end(false);
  }
  CHECK(FakeFixture::violated());  // the frees
  // Other threads: only a global capture forbids them.
  for (const auto& [mode, code] :
       {std::pair{cudaStreamCaptureModeThreadLocal, cudaSuccess},
        std::pair{cudaStreamCaptureModeRelaxed, cudaSuccess},
        std::pair{cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported}}) {
    fixture.begin(mode);
    std::thread([&, code = code] {
      CHECK(cudaSetDevice(1) == cudaSuccess);
      CHECK(allocate() == code);
      if (code == cudaSuccess) CHECK(cudaFree(memory) == cudaSuccess);
    }).join();
    fixture.end(code == cudaSuccess);
  }
  fixture.begin(cudaStreamCaptureModeRelaxed);
  CHECK(allocate() == cudaSuccess && cudaFree(memory) == cudaSuccess);
  fixture.end(true);
  CHECK(!FakeFixture::violated());
}

void test_captures_belong_to_their_thread() {
  const FakeFixture fixture;
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(fixture.stream, &graph) == cudaErrorStreamCaptureUnmatched);
  fixture.begin();
  std::thread([&] {
    CHECK(cudaStreamEndCapture(fixture.stream, &graph) == cudaErrorStreamCaptureWrongThread);
  }).join();
  fixture.end(true);
  CHECK(cudaGetLastError() == cudaErrorStreamCaptureUnmatched);  // of this thread
  CHECK(cudaGetLastError() == cudaSuccess);
}

void test_events_of_a_capture_cannot_be_waited_for() {
  const FakeFixture fixture;
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming) ==
        cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);  // never recorded
  fixture.begin();
  CHECK(cudaEventRecord(event, fixture.stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  fixture.end(false);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(!FakeFixture::violated());
  CHECK(cudaEventSynchronize(event) == cudaErrorInvalidResourceHandle);
  CHECK(FakeFixture::violated());
}

void test_handles_that_are_not_alive() {
  const FakeFixture fixture;
  fixture.begin();
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(fixture.stream, &graph) == cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphLaunch(executable, fixture.stream) == cudaSuccess);  // needs no graph
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(!FakeFixture::violated());
  CHECK(cudaGraphDestroy(graph) == cudaErrorInvalidResourceHandle && FakeFixture::violated());
  CHECK(cudaGraphLaunch(executable, fixture.stream) == cudaErrorInvalidResourceHandle);
  CHECK(FakeFixture::violated());
  auto* const dead = reinterpret_cast<cudaStream_t>(executable);
  CHECK(cudaMemsetAsync(fixture.memory, 0, 8, dead) == cudaErrorInvalidResourceHandle);
  CHECK(FakeFixture::violated());
}

void test_copies_stay_within_memory() {
  const FakeFixture fixture;
  const auto at = [](void* memory, std::size_t offset) {
    return static_cast<char*>(memory) + offset;
  };
  const auto copy = [&](void* target, const void* source, std::size_t size, cudaMemcpyKind kind) {
    const cudaError_t code = cudaMemcpyAsync(target, source, size, kind, fixture.stream);
    CHECK((code == cudaSuccess) != FakeFixture::violated());
    return code == cudaSuccess;
  };
  CHECK(copy(at(fixture.memory, 60), fixture.pinned, 4, cudaMemcpyHostToDevice));
  CHECK(!copy(at(fixture.memory, 60), fixture.pinned, 5, cudaMemcpyHostToDevice));
  CHECK(!copy(at(fixture.memory, -1), fixture.pinned, 4, cudaMemcpyHostToDevice));
  CHECK(!copy(fixture.memory, fixture.other, 4, cudaMemcpyHostToDevice));
  CHECK(!copy(fixture.pinned, fixture.memory, 65, cudaMemcpyDeviceToHost));
  char pageable[8];
  CHECK(!copy(pageable, fixture.memory, 8, cudaMemcpyDeviceToHost));
  const auto rows = [&](std::size_t target_pitch, std::size_t source_pitch, std::size_t height) {
    return cudaMemcpy2DAsync(fixture.other, target_pitch, fixture.memory, source_pitch, 8, height,
                             cudaMemcpyDeviceToDevice, fixture.stream);
  };
  CHECK(rows(16, 8, 4) == cudaSuccess && !FakeFixture::violated());
  CHECK(rows(16, 8, 5) == cudaErrorInvalidValue && FakeFixture::violated());
  CHECK(rows(7, 8, 1) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(fixture.memory, 0, 65, fixture.stream) == cudaErrorInvalidValue);
  CHECK(FakeFixture::violated());
}

// Errors of executed work are returned later, by any call, and remain.
void test_errors_come_later() {
  for (const bool eager : {false, true}) {
    const FakeFixture fixture;
    fake_cuda().eager = eager;
    CHECK(enqueue(
              fixture.stream, [] { throw std::runtime_error("a bad address"); }, nullptr) ==
          cudaSuccess);
    CHECK(fixture.copy() == (eager ? cudaErrorIllegalAddress : cudaSuccess));
    CHECK(cudaStreamSynchronize(fixture.stream) == cudaErrorIllegalAddress);
    CHECK(fixture.copy() == cudaErrorIllegalAddress);
  }
}

void test_memory_of_each_gpu() {
  const FakeFixture fixture;
  fake_cuda().memory = 1000;
  std::size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess && free == 1000 - 128 && total == 1000);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, free + 1) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&memory, free) == cudaSuccess);
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess && free == 0);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess && free == 1000);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}

}  // namespace

void test_fake_cuda() {
  test_unsafe_calls_invalidate_a_capture();
  test_captures_belong_to_their_thread();
  test_events_of_a_capture_cannot_be_waited_for();
  test_handles_that_are_not_alive();
  test_copies_stay_within_memory();
  test_errors_come_later();
  test_memory_of_each_gpu();
}

}  // namespace translate_trt::runtime
