// A batch that lives on a device: the host sends sentences, and fetches tokens and `done`.
//
// Steps go to the device in rounds of `poll_every`, each captured once per bucket and replayed.
// While the host reads the results of one round the device is at work on the next. Caches and
// cross-attention never leave the device; rows are moved there.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "engines/stream_context.h"

namespace translate_trt::runtime {

// Stream contexts that no batch has. Any thread.
class StreamContextPool {
 public:
  StreamContextPool(const tt_device_functions& functions, const Contract& contract,
                    EngineSettings settings, std::function<void(const std::string&)> log);

  // A free one, or a new one.
  std::unique_ptr<StreamContext> acquire();

  // Keeps it for others, unless it has failed.
  void release(std::unique_ptr<StreamContext> context);

 private:
  const tt_device_functions functions_;
  const Contract contract_;
  const EngineSettings settings_;
  LogOnce log_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<StreamContext>> free_;
};

class DeviceBatch : public Batch {
 public:
  // options: of sentences that come without any; beam size and attention are those of all.
  DeviceBatch(std::shared_ptr<StreamContextPool> pool, const SearchOptions& options,
              std::int64_t start_token);
  ~DeviceBatch() override;

  std::int64_t rows() const override;
  std::optional<std::int64_t> capacity_for(std::int64_t longest) const override;
  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override;
  const StepResults& step(const std::vector<std::int64_t>& forced) override;
  const StepResults& drain() override;
  Pool pool(std::int64_t row) const override;
  void retire(std::int64_t row) override;

 private:
  // A sentence in a row.
  struct Row {
    std::int64_t length;  // source tokens, the end symbol included
    std::int64_t most;    // tokens of its translation, at most
    std::int64_t left;    // steps that it may still need
    SearchOptions options;
  };

  // Steps on their way.
  struct InFlight {
    std::size_t count;
    Event arrived;         // when the copies have been made
    std::byte* results;    // copy of all places of the ring
    std::byte* attention;  // the same; null: not asked for
  };

  template <class Work>
  auto failing(const Work& work);
  void begin(std::int64_t start_token);
  void enqueue(std::size_t count);
  void collect();
  void check_collected(const char* what) const;
  void clear_nan(const Rows& keep);
  Rows rearrange(const Rows& keep, std::size_t bucket);
  void repack(const TensorSpec& spec, const Rows& keep, const Rows& kept, const Sizes& past,
              const Sizes& now);
  void copy_rows(const TensorSpec& spec, Address target, const Sizes& target_sizes, Address source,
                 const Sizes& source_sizes, std::int64_t rows);
  void blank(const TensorSpec& spec, Address target, std::int64_t rows, const Sizes& sizes);
  void start(const Rows& rows, const Sources& arriving);
  Sizes encode(const Sources& arriving, const Sizes& sizes);
  void reset(const Rows& rows);
  void make_idle(const Rows& rows);
  void send_request();
  Address address(const TensorSpec& spec) const;

  std::shared_ptr<StreamContextPool> pool_;
  std::unique_ptr<StreamContext> context_;
  Device& device_;
  DeviceBuffers& buffers_;
  SearchOptions options_;
  Specs encoder_outputs_,
      step_specs_;  // with a row for each sentence: encoder outputs, and the rest
  std::optional<std::size_t> bucket_;
  std::map<std::int64_t, Row> rows_;
  std::deque<InFlight> in_flight_;
  std::size_t turn_ = 0;  // of the two places that results are copied to
  StepResults results_;
  std::map<std::int64_t, Pool> pools_;                  // of the rows that are done
  std::map<std::string, std::vector<std::byte>> sent_;  // the request that the device has
  std::set<std::int64_t> nan_rows_;                     // since rows were assigned last
  bool forced_ = false;                                 // the device has forced tokens
};

// Engines as a backend. A batch gives its stream context back: memory and captured steps serve one
// after another.
class DeviceBackend : public Backend {
 public:
  DeviceBackend(const tt_device_functions& functions, const Contract& contract,
                EngineSettings settings, std::function<void(const std::string&)> log);

  std::unique_ptr<Batch> batch(const SearchOptions& options,
                               std::int64_t start_token) const override;

 private:
  std::shared_ptr<StreamContextPool> pool_;
};

}  // namespace translate_trt::runtime
