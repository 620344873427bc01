// A batch in host memory.
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
#include "backends/tensor.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Both graphs of a target, on host arrays.
class Graphs {
 public:
  virtual ~Graphs() = default;

  // Runs the encoder and writes its outputs to the given arrays.
  virtual void encode(const Arrays& inputs, const Arrays& outputs) = 0;

  // Binds the step graph to arrays. Every call of the returned function runs a step on them.
  virtual std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) = 0;
};

class HostBatch : public Batch {
 public:
  // spare_slots: slots that caches get beyond what their rows need at present.
  HostBatch(std::unique_ptr<Graphs> graphs, const Contract& contract, const SearchOptions& options,
            std::int64_t start_token, std::int64_t spare_slots);

  std::int64_t rows() const override { return sizes_.n; }
  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override;
  const StepResults& step(const std::vector<std::int64_t>& forced) override;
  Pool pool(std::int64_t row) const override;
  void retire(std::int64_t row) override;
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
  std::int64_t slot_capacity(std::int64_t slots) const;
  std::int64_t source_size(const Rows& keep, const Sources& arriving) const;
  void start(const Rows& rows, const Sources& arriving);
  void encode(const Rows& rows, const Sources& arriving, std::size_t first, std::size_t count);
  bool is_source(const TensorSpec& spec) const;
  bool is_large(const TensorSpec& spec) const;
  Array make(const TensorSpec& spec);
  void reset(std::int64_t row);  // resets the state to that before the first step
  void request(std::int64_t row, const SearchOptions& options, std::int64_t max_length);
  void keep_result();
  void leave(const TensorSpec& spec, const Tensor& array, std::int64_t row) const;
  void grow_if_full();
  void grow(const std::vector<char>& full);

  std::unique_ptr<Graphs> graphs_;
  Contract contract_;
  SearchOptions options_;
  std::int64_t start_token_, spare_slots_;
  Specs encoder_outputs_, caches_, request_, small_state_, by_sentence_;
  std::optional<std::int64_t> slots_;  // if fixed
  Sizes sizes_;
  Arrays now_;                           // all inputs of the next step
  Arrays other_;                         // targets of state that a step does not update in place
  Arrays results_;                       // outputs other than the state
  StepResults result_ = StepResults(1);  // of the last step
  std::set<std::int64_t> nan_rows_;      // since the last update
  double graph_seconds_ = 0;
  // Memory of caches and encoder outputs, whose masked values need only be finite.
  std::map<Type, std::shared_ptr<BlockPool>> blocks_;
  std::shared_ptr<BlockPool> encoder_blocks_;  // memory that the encoder overwrites entirely
  std::vector<std::function<void()>> runs_;    // a step from now_ to other_, and one back
};

}  // namespace translate_trt::runtime
