// A batch whose steps the host runs one by one, with arrays in host memory or on a GPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/device_memory.h"
#include "backends/state_mirror.h"
#include "backends/tensor.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Both graphs of a target.
class Graphs {
 public:
  virtual ~Graphs() = default;

  // Runs the encoder on arrays in host memory and writes its outputs to the given arrays.
  virtual void encode(const Arrays& inputs, const Arrays& outputs) = 0;

  // Binds the step graph to arrays. Every call of the returned function runs a step on them.
  virtual std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) = 0;
};

// Sizes of the arrays of a batch. They cost a CPU time and memory at every step, so there they are
// close to what is needed. A GPU computes on what it would otherwise leave idle, but growing and
// moving arrays costs, and so do kernels for new shapes: sizes are powers of two.
struct ArraySizes {
  std::int64_t spare_slots = 0;  // slots that caches get beyond what their rows need at present
  bool buckets = false;          // whether N, S and P are powers of two
  std::int64_t max_source = 0;   // largest S of a bucket; 0: no limit

  std::int64_t rows(std::int64_t needed) const;
  std::int64_t source(std::int64_t needed) const;
  std::int64_t slots(std::int64_t needed) const;
  // The largest S and P of arrays worth keeping when S = `needed`, or that many slots, would do.
  std::int64_t most_source(std::int64_t needed) const;
  std::int64_t most_slots(std::int64_t needed) const;
};

// Where a batch keeps its arrays.
struct ArrayPlace {
  // Memory of caches, encoder outputs and state; null: host memory.
  std::shared_ptr<DeviceMemory> device = nullptr;
  ArraySizes sizes = {};
  // Whether the step graph may write a cache to the memory from which it reads it. If not, there
  // are two copies, which change places with every step.
  bool in_place = true;
};

// The place of a batch on a CPU. skips_hidden_slots: whether attention reads visible slots only, so
// that spare ones cost no time.
ArrayPlace host_place(bool skips_hidden_slots);

// Returns memory that loading needed temporarily to the system; glibc would keep it.
void return_memory();

class HostBatch : public Batch {
 public:
  HostBatch(std::unique_ptr<Graphs> graphs, const Contract& contract, const SearchOptions& options,
            std::int64_t start_token, ArrayPlace place);

  std::int64_t rows() const override { return sizes_.n; }
  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override;
  const StepResults& step(const StepInputs& inputs) override;
  Pool pool(std::int64_t row) const override;
  void retire(std::int64_t row) override;
  void drop(std::int64_t row, std::int64_t beam) override;
  double graph_seconds() const override { return graph_seconds_; }

 private:
  void bind();
  std::pair<Rows, Rows> assign(const Rows& keep, Rows leaving, const Sources& arriving);
  void allocate_small();
  void move(const Rows& keep, std::int64_t rows, std::int64_t source_size);
  bool can_shrink(const Rows& keep, std::int64_t rows) const;
  Rows shrink(const Rows& keep, std::int64_t rows, std::int64_t source_size);
  void repack_source(Arrays past, const Rows& keep, const Rows& rows_now, std::int64_t source_size);
  std::int64_t used_slots(std::int64_t row) const;
  void copy_row(const TensorSpec& spec, const Tensor& old, std::int64_t from, std::int64_t to,
                std::int64_t used, std::int64_t width);
  // Copies the first `used` slots of a row between two caches.
  void copy_slots(const Tensor& from, std::int64_t from_row, const Tensor& to, std::int64_t to_row,
                  std::int64_t used) const;
  // Copies the entries of the first `width` source tokens of a row between two arrays.
  void copy_source(const TensorSpec& spec, const Tensor& from, std::int64_t from_row, Tensor& to,
                   std::int64_t to_row, std::int64_t width) const;
  bool keeps_rows(std::int64_t rows, const Rows& keep) const;
  std::int64_t max_used_slots(const Rows& rows) const;
  void mask_source(const Tensor& bias, std::int64_t row) const;
  std::int64_t source_size(const Rows& keep, const Sources& arriving) const;
  void start(const Rows& rows, const Sources& arriving);
  void encode(const Rows& rows, const Sources& arriving, std::size_t first, std::size_t count);
  bool is_source(const TensorSpec& spec) const;
  bool is_recurrent(const TensorSpec& spec) const;
  bool is_large(const TensorSpec& spec) const;
  Array make(const TensorSpec& spec);
  void reset(std::int64_t row);  // resets the state to that before the first step
  void request(std::int64_t row, const SearchOptions& options, std::int64_t max_length);
  void mark(const MarkedTokens& marked);
  void sample(const SamplingNoise& noise);
  void constrain(const ConstraintProgress& progress);
  void resize(std::int64_t& size, std::int64_t wanted, Letter letter);
  void keep_result();
  void leave(const TensorSpec& spec, const Tensor& array, std::int64_t row) const;
  void leave_others() const;
  void grow_if_full();
  void grow(const std::vector<char>& full);

  std::unique_ptr<Graphs> graphs_;
  Contract contract_;
  SearchOptions options_;
  std::int64_t start_token_;
  ArrayPlace place_;
  Specs encoder_outputs_, caches_, recurrent_, request_, small_state_, by_sentence_;
  Specs swapped_;  // state of which there are two copies, which change places with every step
  std::optional<std::int64_t> slots_;  // if fixed
  Sizes sizes_;
  std::vector<std::int64_t> lengths_;    // source tokens by row
  Arrays now_;                           // all inputs of the next step
  Arrays other_;                         // the copies of swapped_ that the next step writes
  Arrays results_;                       // outputs other than the state
  std::optional<StateMirror> mirror_;    // of the small arrays, if the arrays are on a device
  StepResults result_ = StepResults(1);  // of the last step
  std::set<std::int64_t> nan_rows_;      // since the last update
  bool is_forced_ = false;               // whether the last step had forced tokens
  double graph_seconds_ = 0;
  // Memory of caches and encoder outputs, whose masked values need only be finite.
  std::map<Type, std::shared_ptr<BlockPool>> blocks_;
  std::shared_ptr<BlockPool> encoder_blocks_;  // memory that the encoder overwrites entirely
  std::vector<std::function<void()>> runs_;    // a step from now_ to other_, and one back
};

}  // namespace translate_trt::runtime
