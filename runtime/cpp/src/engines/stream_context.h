// A stream context: the queue, buffers and captured rounds that batches on a device use in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bundle/profiles.h"
#include "engines/device.h"
#include "engines/device_buffers.h"

namespace translate_trt::runtime {

// Settings of engines.
struct EngineSettings {
  Profiles encoder_profiles, step_profiles;  // at least one each
  std::size_t poll_every = 4;
  bool cuda_graphs = true;
  std::uint64_t scratch_bytes = 0;  // device memory that the device functions allocate in `open`
  bool exact_encoder = false;       // the encoder, too, runs at exactly the sizes of a profile
};

// Logs every distinct message once. Thread-safe.
class LogOnce {
 public:
  explicit LogOnce(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void operator()(const std::string& message);

 private:
  std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  std::set<std::string> told_;
};

// A device's queue, its buffers, and the captured rounds. Used by one thread at a time.
class StreamContext {
 public:
  // settings, steps, log: must outlive this object.
  StreamContext(const tt_device_functions& functions, const Contract& contract,
                const EngineSettings& settings, const StepProfiles& steps, LogOnce& log);

  Device& device() { return device_; }
  DeviceBuffers& buffers() { return buffers_; }
  const Contract& contract() const { return contract_; }
  const Profiles& encoder_profiles() const { return settings_.encoder_profiles; }
  const StepProfiles& step_profiles() const { return steps_; }
  bool exact_encoder() const { return settings_.exact_encoder; }
  std::size_t poll_every() const { return settings_.poll_every; }

  // Pinned host copies of the results and the attention (or null), for two rounds in turn.
  std::byte* results(std::size_t turn) { return results_[turn]; }
  std::byte* attention(std::size_t turn) { return attention_[turn]; }

  // Sizes N, K, S and P of a profile of the step engine; the others are 0.
  Sizes sizes(std::size_t profile) const;

  // Runs `count` steps, as a captured graph if possible: from the first entry of the ring back to
  // the first entry. profile: of the step engine.
  void round(std::size_t profile, std::size_t count);

  // Runs one step with inputs of rules 13 to 15, from the first entry of the ring back to the first
  // entry. It is not captured, since the sizes of these inputs differ from step to step.
  void changed_step(std::size_t profile, const ChangeSizes& changes);

  // Whether an operation has failed, which leaves the device memory in an undefined state.
  bool has_failed = false;

 private:
  using Round = std::pair<std::size_t, std::size_t>;  // step profile, number of steps
  struct Capture {
    DeviceGraph graph = nullptr;
    int attempts = 0;
  };

  void steps(const Round& round);
  // Null if the capture fails, which is logged after the last attempt.
  DeviceGraph captured(const Round& round, bool is_last);

  Device device_;
  Contract contract_;
  const EngineSettings& settings_;
  const StepProfiles& steps_;
  LogOnce& log_;
  DeviceBuffers buffers_;
  std::byte *results_[2], *attention_[2] = {};
  std::map<Round, Capture> captures_;
  // Largest number of steps of a round without a graph, by the profile of the step engine.
  std::map<std::size_t, std::size_t> ran_;
};

}  // namespace translate_trt::runtime
