// A batch in the host's memory.
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

// Both graphs of a target on arrays of the host.
class Graphs {
 public:
  virtual ~Graphs() = default;

  // Runs the encoder; its outputs are written into the given arrays.
  virtual void encode(const Arrays& inputs, const Arrays& outputs) = 0;

  // A call that runs the step from these arrays into those, as often as it is called.
  virtual std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) = 0;
};

class HostBatch : public Batch {
 public:
  // spare_slots: that caches get beyond what their rows need at once.
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
  // Of a row, its first slots, from one array into the other.
  void copy_slots(const Tensor& from, std::int64_t from_row, const Tensor& to, std::int64_t to_row,
                  std::int64_t used) const;
  // Of a row, what a source of so many tokens fills, from one array into the other.
  void copy_source(const TensorSpec& spec, const Tensor& from, std::int64_t from_row, Tensor& to,
                   std::int64_t to_row, std::int64_t width) const;
  std::int64_t slot_capacity(std::int64_t slots) const;
  std::int64_t source_size(const Rows& keep, const Sources& arriving) const;
  void start(const Rows& rows, const Sources& arriving);
  void encode(const Rows& rows, const Sources& arriving, std::size_t first, std::size_t count);
  bool is_source(const TensorSpec& spec) const;
  bool is_large(const TensorSpec& spec) const;
  Array make(const TensorSpec& spec);
  void reset(std::int64_t row);  // to the state before the first step
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
  std::optional<std::int64_t> slots_;  // if it is one number
  Sizes sizes_;
  Arrays now_;                           // every input of the next step
  Arrays other_;                         // what it does not write in place is written here
  Arrays results_;                       // outputs that are no state
  StepResults result_ = StepResults(1);  // of the last step
  std::set<std::int64_t> nan_rows_;      // since rows were assigned last
  double graph_seconds_ = 0;
  // Of caches and of what the encoder found: what is hidden there need only be finite.
  std::map<Type, std::shared_ptr<BlockPool>> blocks_;
  std::shared_ptr<BlockPool> encoder_blocks_;  // what is there, the encoder overwrites
  std::vector<std::function<void()>> runs_;    // from now to other, and the other way round
};

}  // namespace translate_trt::runtime
