// A batch in device memory. The host uploads sentences and downloads tokens and `done`.
//
// Steps are enqueued in rounds of `poll_every`, which are captured once per profile and replayed.
// While the host reads the results of one round, the device runs the next one. Caches and encoder
// outputs stay on the device, where rows are moved.
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
#include "engines/context_memory.h"
#include "engines/stream_context.h"

namespace translate_trt::runtime {

// A pool of stream contexts for batches. Thread-safe.
class StreamContextPool {
 public:
  // Throws a bundle error if the profiles of the engines do not fit together.
  StreamContextPool(const tt_device_functions& functions, const Contract& contract,
                    EngineSettings settings, std::function<void(const std::string&)> log);

  // Returns a free context, or creates one.
  std::unique_ptr<StreamContext> acquire();

  // Returns a context to the pool, unless it has failed.
  void release(std::unique_ptr<StreamContext> context);

  const Profiles& buckets() const { return steps_.buckets(); }  // of the step engine
  const ChangeSizes& changes() const { return steps_.changes(); }

  // See Backend::fitting_batches.
  int fitting_batches(int workers, int batches);

 private:
  std::optional<GpuMemory> device_memory() const;
  void check_fits(const GpuMemory& memory, std::uint64_t contexts) const;

  const tt_device_functions functions_;
  const Contract contract_;
  const EngineSettings settings_;
  const ContextMemory each_;  // memory of a stream context
  const StepProfiles steps_;
  LogOnce log_;
  std::mutex mutex_, creation_;
  std::vector<std::unique_ptr<StreamContext>> free_;
};

class DeviceBatch : public Batch {
 public:
  // options: defaults for sentences without options of their own; beam size and attention apply to
  // all.
  DeviceBatch(std::shared_ptr<StreamContextPool> pool, const SearchOptions& options,
              std::int64_t start_token);
  ~DeviceBatch() override;

  std::int64_t rows() const override;
  std::optional<std::int64_t> capacity_for(std::int64_t longest) const override;
  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override;
  const StepResults& step(const StepInputs& inputs) override;
  const StepResults& drain() override;
  Pool pool(std::int64_t row) const override;
  void retire(std::int64_t row) override;
  void drop(std::int64_t row, std::int64_t beam) override;

 private:
  // A sentence in a row.
  struct Row {
    std::int64_t length;  // source tokens, the end symbol included
    std::int64_t most;    // maximum tokens of its translation
    std::int64_t left;    // maximum remaining steps
    SearchOptions options;
  };

  // Enqueued steps whose results have not been collected.
  struct InFlight {
    std::size_t count;
    Event arrived;         // passed once the results are on the host
    std::byte* results;    // host copy of all ring entries
    std::byte* attention;  // host copy of the attention; null if not requested
  };

  // Results of the last step that was collected: the host copy of a ring and the step's entry.
  struct Collected {
    const std::byte* results = nullptr;
    std::size_t entry = 0;
  };

  template <class Work>
  auto failing(const Work& work);
  void begin(std::int64_t start_token);
  void force(const std::vector<std::int64_t>& tokens);
  void change(const StepInputs& inputs);
  void clear_progress();
  void enqueue(std::size_t count);
  void collect();
  void check_collected(const char* what) const;
  void clear_nan(const Rows& keep);
  Sizes sizes() const;
  Rows rearrange(const Rows& keep, std::size_t bucket);
  void repack(const TensorSpec& spec, const Rows& keep, const Rows& kept, const Sizes& past,
              const Sizes& now);
  void copy_rows(const TensorSpec& spec, Address target, const Sizes& target_sizes, Address source,
                 const Sizes& source_sizes, std::int64_t rows);
  void blank(const TensorSpec& spec, Address target, std::int64_t rows, const Sizes& sizes);
  std::int64_t slots_needed(std::size_t steps) const;
  void set_slots(std::int64_t needed);
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
  Specs encoder_outputs_, step_specs_;  // tensors with a row per sentence
  std::optional<std::size_t> bucket_;   // of the step engine
  std::int64_t slots_;                  // cache slots that steps read, P
  std::map<std::int64_t, Row> rows_;
  std::deque<InFlight> in_flight_;
  std::size_t turn_ = 0;  // index of the host copy to use next, 0 or 1
  StepResults results_;
  Collected collected_;
  std::map<std::int64_t, Pool> pools_;                  // by finished row
  std::map<std::string, std::vector<std::byte>> sent_;  // request values on the device
  std::set<std::int64_t> nan_rows_;                     // since the last update
  bool forced_ = false;                                 // whether forced tokens are on the device
  ChangeSizes changes_;                                 // of the next steps
};

// The backend of engines. Batches return their stream contexts, so that later batches reuse the
// memory and the captured rounds.
class DeviceBackend : public Backend {
 public:
  DeviceBackend(const tt_device_functions& functions, const Contract& contract,
                EngineSettings settings, std::function<void(const std::string&)> log);

  std::unique_ptr<Batch> batch(const SearchOptions& options,
                               std::int64_t start_token) const override;

  // The tokens of the largest profile: a step takes the time of all rows of its bucket, whether
  // they are in use or not, so only the profiles should limit a batch.
  std::int64_t default_batch_tokens() const override;

  std::optional<std::int64_t> most_constraint_tokens() const override {
    return pool_->changes().constraint_tokens;
  }

  int fitting_batches(int workers, int batches) const override {
    return pool_->fitting_batches(workers, batches);
  }

 private:
  std::shared_ptr<StreamContextPool> pool_;
};

}  // namespace translate_trt::runtime
