// A stream context: the queue, buffers and captured rounds that batches on a device use in turn.
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

// Settings of engines.
struct EngineSettings {
  Profiles profiles;  // of both engines, at least one
  std::size_t poll_every = 4;
  bool cuda_graphs = true;
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
  // settings, log: must outlive this object.
  StreamContext(const tt_device_functions& functions, const Contract& contract,
                const EngineSettings& settings, LogOnce& log);

  Device& device() { return device_; }
  DeviceBuffers& buffers() { return buffers_; }
  const Contract& contract() const { return contract_; }
  const Profiles& profiles() const { return settings_.profiles; }
  std::size_t poll_every() const { return settings_.poll_every; }

  // Pinned host copies of the results and the attention (or null), for two rounds in turn.
  std::byte* results(std::size_t turn) { return results_[turn]; }
  std::byte* attention(std::size_t turn) { return attention_[turn]; }

  // Index of the smallest profile for that many sentences of that length. Throws a backend error if
  // no profile is large enough.
  std::size_t bucket(std::int64_t sentences, std::int64_t longest) const;

  // Sizes N, K and S of a bucket.
  Sizes sizes(std::size_t bucket) const;

  // Runs `poll_every` steps, as a captured graph if possible.
  void round(std::size_t bucket);

  // Runs `count` steps, from the first entry of the ring back to the first entry.
  void steps(std::size_t bucket, std::size_t count);

  // Whether an operation has failed, which leaves the device memory in an undefined state.
  bool has_failed = false;

 private:
  DeviceGraph captured(std::size_t bucket);

  Device device_;
  Contract contract_;
  const EngineSettings& settings_;
  LogOnce& log_;
  DeviceBuffers buffers_;
  std::byte *results_[2], *attention_[2] = {};
  std::map<std::size_t, DeviceGraph> rounds_;  // by bucket; null if the capture failed
  std::set<std::size_t> ran_;                  // buckets that have run
};

}  // namespace translate_trt::runtime
