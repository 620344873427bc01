#include "engines/stream_context.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

// What else runs on the GPU can invalidate a capture, so a round that failed is captured once more.
constexpr int kCaptureAttempts = 2;

}  // namespace

void LogOnce::operator()(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_.insert(message).second) return;
  }
  log_(message);
}

StreamContext::StreamContext(const tt_device_functions& functions, const Contract& contract,
                             const EngineSettings& settings, const StepProfiles& steps,
                             LogOnce& log)
    : device_(functions),
      contract_(contract),
      settings_(settings),
      steps_(steps),
      log_(log),
      buffers_(device_, contract, steps, std::max<std::size_t>(2, settings.poll_every)) {
  const std::size_t attention = buffers_.attention_bytes() * buffers_.ring_size();
  for (const std::size_t turn : {0, 1}) {
    results_[turn] = device_.pin(buffers_.results_bytes());
    if (attention > 0) attention_[turn] = device_.pin(attention);
  }
}

Sizes StreamContext::sizes(std::size_t profile) const {
  Sizes sizes = buffers_.sizes();
  const Profile& one = steps_.profile(profile);
  sizes.n = one.batch, sizes.s = one.source_length, sizes.p = one.slots;
  return with_change_sizes(sizes, {});
}

// The first round of a profile is not captured: TensorRT must have run with its shapes before a
// capture, and PyTorch each step of the round, whose tensors differ.
void StreamContext::round(std::size_t profile, std::size_t count) {
  const Round round = {profile, count};
  Capture& capture = captures_[round];
  if (settings_.cuda_graphs && capture.graph == nullptr && capture.attempts < kCaptureAttempts &&
      ran_[profile] >= count) {
    capture.attempts += 1;
    capture.graph = captured(round, capture.attempts == kCaptureAttempts);
  }
  if (capture.graph != nullptr) {
    device_.replay(capture.graph);
  } else {
    steps(round);
    ran_[profile] = std::max(ran_[profile], count);
  }
}

void StreamContext::steps(const Round& round) {
  const auto [profile, count] = round;
  const Sizes sizes = this->sizes(profile);
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t entry = index % buffers_.ring_size();
    device_.launch(TT_ENGINE_STEP, profile, buffers_.step_tensors(entry, sizes));
  }
  if (const std::size_t end = count % buffers_.ring_size()) buffers_.copy_to_first(end);
}

void StreamContext::changed_step(std::size_t profile, const ChangeSizes& changes) {
  const Sizes sizes = with_change_sizes(this->sizes(profile), changes);
  device_.launch(TT_ENGINE_STEP, profile, buffers_.step_tensors(0, sizes));
  buffers_.copy_to_first(1);
}

DeviceGraph StreamContext::captured(const Round& round, bool is_last) {
  try {
    return device_.capture([&] { steps(round); });
  } catch (const Error& error) {
    if (is_last) {
      log_("steps of " + name_of(steps_.profile(round.first)) +
           " run without a CUDA graph, which is slower: " + error.what());
    }
    return nullptr;
  }
}

}  // namespace translate_trt::runtime
