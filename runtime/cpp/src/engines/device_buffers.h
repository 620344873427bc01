// Device memory of a batch.
//
// All buffers are allocated once, for the largest profiles of the engines. Tensors are dense for
// the N, S and P of a step, so a smaller profile uses the beginning of each buffer.
//
// State other than the caches is kept in a ring of entries: a step reads one entry and writes the
// next, and the last step of a round writes the first entry. The addresses of a round therefore
// never change, so it can be captured as a CUDA graph, and the results of all its steps are
// downloaded by one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bundle/contract.h"
#include "bundle/profiles.h"
#include "engines/device.h"

namespace translate_trt::runtime {

using Addresses = std::map<std::string, Address>;

std::size_t tensor_bytes(const TensorSpec& spec, const Sizes& sizes);

// Size in bytes of one row of a tensor whose first axis is N.
std::size_t row_bytes(const TensorSpec& spec, Sizes sizes);

// Returns sizes with these B, R, D and U.
Sizes with_change_sizes(Sizes sizes, const ChangeSizes& changes);

// Layout of consecutive tensors, each aligned to kAlignment.
struct Block {
  std::map<std::string, std::size_t> offsets;
  std::size_t size = 0;  // bytes of all tensors

  Block() = default;
  Block(const Specs& specs, const Sizes& sizes);
};

// The buffers of one batch.
class DeviceBuffers {
 public:
  // contract: with fixed numbers of beams and slots. ring_size: entries of the ring, at least 2.
  DeviceBuffers(Device& device, const Contract& contract, const StepProfiles& steps,
                std::size_t ring_size);

  std::size_t ring_size() const { return ring_size_; }
  const Sizes& sizes() const { return sizes_; }  // largest sizes over all buckets
  const Specs& state() const { return state_; }  // without the caches

  // Addresses by tensor name: encoder outputs of the rows, [N, ...]; encoder outputs of sentences
  // being admitted, also used as staging memory for moving rows; and caches.
  const Addresses& cross() const { return cross_; }
  const Addresses& encoded() const { return encoded_; }
  const Addresses& caches() const { return caches_; }
  // Maximum size in bytes of an encoder output over all buckets.
  std::size_t max_bytes(const TensorSpec& spec) const;
  Address blank_bias() const { return blank_bias_; }  // masks all positions of the largest bucket

  Upload& source_ids() { return source_ids_; }
  Upload& source_lengths() { return source_lengths_; }
  // The upload of an input of `Contract::request`.
  Upload& request(const std::string& name) { return requests_.at(name); }

  // Address of a state tensor, or of the parents, in an entry of the ring.
  Address entry_address(const std::string& name, std::size_t entry) const;

  // Address of the initial value of a state tensor, for the maximum number of rows.
  Address initial_state(const std::string& name) const;

  // Uploads the initial values.
  void send_initial_state(std::int64_t start_token);

  // All inputs and outputs of the step that reads an entry of the ring. sizes: of the step.
  std::vector<DeviceTensor> step_tensors(std::size_t entry, const Sizes& sizes) const;

  // Copies an entry of the ring to the first one, where the next round starts.
  void copy_to_first(std::size_t entry);

  // Results of all ring entries.
  Address results() const { return results_; }
  std::size_t results_bytes() const { return ring_size_ * result_block_.size; }

  // Size in bytes of a step's attention, or 0, and its address for the step that wrote an entry.
  std::size_t attention_bytes() const { return attention_bytes_; }
  Address attention(std::size_t entry) const { return attention_[entry]; }

  // Reads the results of the step that wrote an entry. results: host copy of all results.
  // attention: host copy of all attention, or null.
  StepResult read_result(const std::byte* results, const std::byte* attention, std::size_t entry,
                         const Sizes& sizes) const;

  // Reads the finished hypotheses of a row from an entry.
  Pool read_pool(const std::byte* results, std::size_t entry, std::int64_t row) const;

 private:
  Address zeros(std::size_t size);
  const std::byte* result_at(const std::byte* results, const char* name, std::size_t entry) const;

  Device& device_;
  Contract contract_;
  std::size_t ring_size_;
  Sizes sizes_;
  std::int64_t largest_;  // largest N * S over all buckets
  Specs state_;
  Block state_block_, result_block_, rest_block_;
  Addresses cross_, encoded_, caches_;
  Upload source_ids_, source_lengths_, initial_state_;
  std::map<std::string, Upload> requests_;
  Address results_, rest_, blank_bias_;
  std::size_t attention_bytes_ = 0;
  std::vector<Address> attention_;
};

}  // namespace translate_trt::runtime
