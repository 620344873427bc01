// What batches on a device use in turn: its queue, its memory and its captured steps.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engines/device.h"
#include "engines/device_buffers.h"

namespace translate_trt::runtime {

// How engines run.
struct EngineSettings {
  Profiles profiles;  // of both engines, at least one
  std::size_t poll_every = 4;
  bool cuda_graphs = true;
};

// Tells a log each message once, whoever meets it. Any thread.
class LogOnce {
 public:
  explicit LogOnce(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void operator()(const std::string& message);

 private:
  std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  std::set<std::string> told_;
};

// A device's queue, its memory, and the captured rounds. By one thread at a time.
class StreamContext {
 public:
  // settings, log: outlive it.
  StreamContext(const tt_device_functions& functions, const Contract& contract,
                const EngineSettings& settings, LogOnce& log);

  Device& device() { return device_; }
  DeviceBuffers& buffers() { return buffers_; }
  const Contract& contract() const { return contract_; }
  const Profiles& profiles() const { return settings_.profiles; }
  std::size_t poll_every() const { return settings_.poll_every; }

  // Pinned copies of the results, and of the attention or null, of two rounds in turn.
  std::byte* results(std::size_t turn) { return results_[turn]; }
  std::byte* attention(std::size_t turn) { return attention_[turn]; }

  // Index of the smallest profile that takes so many sentences of up to that length. A backend
  // error if there is none.
  std::size_t bucket(std::int64_t sentences, std::int64_t longest) const;

  // N, K and S of the steps of a bucket.
  Sizes sizes(std::size_t bucket) const;

  // Takes `poll_every` steps.
  void round(std::size_t bucket);

  // Takes so many steps, beginning at the first place of the ring and ending there.
  void steps(std::size_t bucket, std::size_t count);

  // An error has been met: the device's memory is in an undefined state.
  bool has_failed = false;

 private:
  DeviceGraph captured(std::size_t bucket);

  Device device_;
  Contract contract_;
  const EngineSettings& settings_;
  LogOnce& log_;
  DeviceBuffers buffers_;
  std::byte *results_[2], *attention_[2] = {};
  std::map<std::size_t, DeviceGraph> rounds_;  // by bucket; null: it cannot be captured
  std::set<std::size_t> ran_;                  // buckets
};

}  // namespace translate_trt::runtime
