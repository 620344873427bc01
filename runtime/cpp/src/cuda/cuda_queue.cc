#include "cuda/cuda_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

// The PTX of copy_kernel.cu.
constexpr const char* kCopyKernel =
#include "cuda/copy_kernel.inc"
    ;

// Wider rows are copied by the driver, at the speed of the memory; the kernel would use one block
// for a row.
constexpr std::size_t kWidestRow = 64 * 1024;

// The bytes from the first row to the last one.
std::uint64_t extent(const CopyTask& task, std::uint64_t pitch) {
  return (task.height - 1) * pitch + task.width;
}

bool overlaps(std::uint64_t first, std::uint64_t size, std::uint64_t second,
              std::uint64_t second_size) {
  return first < second + second_size && second < first + size;
}

}  // namespace

CudaQueue::CudaQueue(std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)), driver_(context_->driver()) {
  activate();
  cuda::Stream stream = nullptr;
  // The default stream, and streams that synchronize with it, cannot be captured.
  driver_.check(driver_.create_stream(&stream, cuda::kNonBlocking), "cuStreamCreate");
  stream_ = {driver_, stream};
  cuda::Module module = nullptr;
  if (driver_.load_module(&module, kCopyKernel) != cuda::kSuccess) return;
  module_ = {driver_, module};
  driver_.check(driver_.get_function(&copy_kernel_, module, "copy_kernel"), "cuModuleGetFunction");
}

// Members are destroyed before the objects that they use; the stream is last.
CudaQueue::~CudaQueue() { finish(); }

void CudaQueue::finish() {
  pending_count_ = 0;
  static_cast<void>(driver_.wait_for_stream(stream()));
  graphs_.clear();
}

void CudaQueue::activate() { context_->activate(); }

void CudaQueue::refuse_capture(const char* function) const {
  if (!capturing_) return;
  throw backend_error(std::string(function) + " is not permitted during a capture.");
}

std::uint64_t CudaQueue::allocate(std::size_t size) {
  refuse_capture("cuMemAlloc");
  cuda::Address address = 0;
  const cuda::Result result = driver_.allocate(&address, std::max<std::size_t>(1, size));
  if (result == cuda::kOutOfMemory) {
    throw backend_error("the GPU is out of memory: " + std::to_string(size) +
                        " bytes are needed, and " + std::to_string(free_memory()) + " are free. " +
                        kUseLessMemory);
  }
  driver_.check(result, "cuMemAlloc");
  OwnedMemory owned(driver_, address);
  memory_.push_back(std::move(owned));
  return address;
}

void* CudaQueue::pin(std::size_t size) {
  refuse_capture("cuMemHostAlloc");
  void* memory = nullptr;
  const cuda::Result result = driver_.allocate_pinned(&memory, std::max<std::size_t>(1, size), 0);
  if (result == cuda::kOutOfMemory) {
    throw Error(TT_MEMORY_ERROR, "the host has no " + std::to_string(size) +
                                     " bytes of memory left that can be pinned. " + kUseLessMemory);
  }
  driver_.check(result, "cuMemHostAlloc");
  OwnedPinned owned(driver_, memory);
  pinned_.push_back(std::move(owned));
  return memory;
}

void CudaQueue::copy_in(std::uint64_t target, const void* source, std::size_t size) {
  flush();
  driver_.check(driver_.copy_in(target, source, size, stream()), "cuMemcpyHtoDAsync");
}

void CudaQueue::copy_out(void* target, std::uint64_t source, std::size_t size) {
  flush();
  driver_.check(driver_.copy_out(target, source, size, stream()), "cuMemcpyDtoHAsync");
}

void CudaQueue::copy(std::uint64_t target, std::uint64_t source, std::size_t width,
                     std::size_t height, std::size_t target_pitch, std::size_t source_pitch) {
  if (width == 0 || height == 0) return;
  CopyTask task = {target, source, width, height, target_pitch, source_pitch};
  if (height == 1 || (width == target_pitch && width == source_pitch)) {
    task = {target, source, width * height, 1, 0, 0};
  }
  if (copy_kernel_ == nullptr || task.width > kWidestRow) {
    flush();
    driver_.copy_rows(target, target_pitch, source, source_pitch, width, height, stream());
    return;
  }
  if (depends_on_pending(task)) flush();
  pending_.tasks[pending_count_++] = task;
  if (pending_count_ == kCopyTasks) flush();
}

// Whether a task must run after a collected one.
bool CudaQueue::depends_on_pending(const CopyTask& task) const {
  const std::uint64_t written = extent(task, task.target_pitch);
  const std::uint64_t read = extent(task, task.source_pitch);
  return std::any_of(pending_.tasks, pending_.tasks + pending_count_, [&](const CopyTask& other) {
    const std::uint64_t other_written = extent(other, other.target_pitch);
    return overlaps(task.target, written, other.target, other_written) ||
           overlaps(task.source, read, other.target, other_written) ||
           overlaps(task.target, written, other.source, extent(other, other.source_pitch));
  });
}

void CudaQueue::flush() {
  const unsigned count = std::exchange(pending_count_, 0);
  if (count == 0) return;
  void* arguments[] = {&pending_};
  driver_.check(driver_.launch(copy_kernel_, count, kCopyBlocks, 1, kCopyThreads, 1, 1, 0, stream(),
                               arguments, nullptr),
                "cuLaunchKernel");
}

void CudaQueue::fill(std::uint64_t target, int value, std::size_t size) {
  flush();
  driver_.check(driver_.fill(target, static_cast<unsigned char>(value), size, stream()),
                "cuMemsetD8Async");
}

cuda::Event CudaQueue::record() {
  // An event of a capture cannot be waited for.
  refuse_capture("cuEventRecord");
  flush();
  if (spare_events_.empty()) {
    cuda::Event made = nullptr;
    // Blocking sync: waiting threads sleep, since the device already has its next round.
    driver_.check(driver_.create_event(&made, cuda::kBlockingSync | cuda::kDisableTiming),
                  "cuEventCreate");
    OwnedEvent owned(driver_, made);
    spare_events_.reserve(events_.size() + 1);  // so that `wait` does not allocate
    events_.push_back(std::move(owned));
    spare_events_.push_back(made);
  }
  const cuda::Event event = spare_events_.back();
  driver_.check(driver_.record_event(event, stream()), "cuEventRecord");
  spare_events_.pop_back();
  return event;
}

void CudaQueue::wait(cuda::Event event) {
  refuse_capture("cuEventSynchronize");
  spare_events_.push_back(event);  // it is recorded again only after this call
  driver_.check(driver_.wait_for_event(event), "cuEventSynchronize");
}

void CudaQueue::begin_capture() {
  flush();
  // Thread-local: calls of other threads do not invalidate the capture.
  driver_.check(driver_.begin_capture(stream(), cuda::kThreadLocal), "cuStreamBeginCapture");
  capturing_ = true;
}

cuda::GraphExec CudaQueue::end_capture() {
  try {
    flush();
  } catch (const Error&) {
    discard_capture();
    throw;
  }
  capturing_ = false;
  cuda::Graph captured = nullptr;
  driver_.check(driver_.end_capture(stream(), &captured), "cuStreamEndCapture");
  const OwnedGraph graph(driver_, captured);
  cuda::GraphExec executable = nullptr;
  driver_.check(driver_.instantiate(&executable, captured, 0), "cuGraphInstantiateWithFlags");
  OwnedGraphExec owned(driver_, executable);
  graphs_.push_back(std::move(owned));
  return executable;
}

void CudaQueue::discard_capture() {
  capturing_ = false;
  pending_count_ = 0;
  cuda::Graph captured = nullptr;
  static_cast<void>(driver_.end_capture(stream(), &captured));
  const OwnedGraph graph(driver_, captured);
}

std::size_t CudaQueue::free_memory() {
  refuse_capture("cuMemGetInfo");
  std::size_t free = 0, total = 0;
  driver_.check(driver_.memory_info(&free, &total), "cuMemGetInfo");
  return free;
}

void CudaQueue::replay(cuda::GraphExec graph) {
  flush();
  driver_.check(driver_.launch_graph(graph, stream()), "cuGraphLaunch");
}

}  // namespace translate_trt::runtime
