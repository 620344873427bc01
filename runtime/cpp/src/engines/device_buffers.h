// Where the tensors of a batch lie in a device's memory.
//
// Everything is allocated once, for the largest of the engines' profiles. A tensor of N rows is
// dense for whatever N and S a step has, so that a smaller bucket uses the beginning of each.
//
// What a step hands to the next one, caches apart, has a ring of places: a step reads one and
// writes the one after it, and the last of a round writes the first. So the steps of a round can be
// captured as one CUDA graph, whose addresses never change, and the results of all of them are
// fetched by one copy at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bundle/contract.h"
#include "engines/device.h"

namespace translate_trt::runtime {

// One bucket of shapes that both engines take: everything up to these sizes.
struct Profile {
  std::int64_t batch, source_length;
};

std::string name_of(const Profile& profile);  // such as "64x48"

using Profiles = std::vector<Profile>;
using Addresses = std::map<std::string, Address>;

std::size_t tensor_bytes(const TensorSpec& spec, const Sizes& sizes);

// Of one sentence's part of a tensor whose first axis is N.
std::size_t row_bytes(const TensorSpec& spec, Sizes sizes);

// Tensors of some number of rows, one after another, each at a multiple of kAlignment.
struct Block {
  std::map<std::string, std::size_t> offsets;
  std::size_t size = 0;  // bytes of all

  Block() = default;
  Block(const Specs& specs, const Sizes& sizes);
};

// The memory of one batch.
class DeviceBuffers {
 public:
  // shape: with a number of beams and of slots. places: of the ring, at least 2.
  DeviceBuffers(Device& device, const Contract& contract, const Profiles& profiles,
                std::size_t ring_size);

  std::size_t ring_size() const { return ring_size_; }
  const Sizes& sizes() const { return sizes_; }  // of the largest profiles
  const Specs& state() const { return state_; }  // without the caches

  // By name: what the encoder found, [N, ...] of the rows of a batch; the same of sentences on
  // their way into rows, which is also room for moving rows; caches.
  const Addresses& cross() const { return cross_; }
  const Addresses& encoded() const { return encoded_; }
  const Addresses& caches() const { return caches_; }
  // Bytes of an output of the encoder, in the profile where it is largest.
  std::size_t max_bytes(const TensorSpec& spec) const;
  Address blank_bias() const { return blank_bias_; }  // hides everything, as long as the longest

  Upload& source_ids() { return source_ids_; }
  Upload& source_lengths() { return source_lengths_; }
  // One of the inputs of `Contract::request`.
  Upload& request(const std::string& name) { return requests_.at(name); }

  // A tensor of the state, or the parents, in a place of the ring.
  Address entry_address(const std::string& name, std::size_t entry) const;

  // The same of a sentence before its first step, as many rows as there can be.
  Address initial_state(const std::string& name) const;

  // Sets `fresh`.
  void send_initial_state(std::int64_t start_token);

  // Every input and output of the step that reads that place of the ring; sizes: of the step.
  std::vector<DeviceTensor> step_tensors(std::size_t entry, const Sizes& sizes) const;

  // Copies a place of the ring to the first one, where the next round begins.
  void copy_to_first(std::size_t entry);

  // The results of all places of the ring.
  Address results() const { return results_; }
  std::size_t results_bytes() const { return ring_size_ * result_block_.size; }

  // Bytes of the attention of a step, or 0, and where it is of the step that wrote that place.
  std::size_t attention_bytes() const { return attention_bytes_; }
  Address attention(std::size_t entry) const { return attention_[entry]; }

  // What a step left in the place of the ring that it wrote. results: a copy of results_bytes;
  // attention: a copy of the attention of all places, or null.
  StepResult read_result(const std::byte* results, const std::byte* attention, std::size_t entry,
                         const Sizes& sizes) const;

  // The pool of a row in that place.
  Pool read_pool(const std::byte* results, std::size_t entry, std::int64_t row) const;

 private:
  Address zeros(std::size_t size);
  const std::byte* result_at(const std::byte* results, const char* name, std::size_t entry) const;

  Device& device_;
  Contract contract_;
  std::size_t ring_size_;
  Sizes sizes_;
  std::int64_t largest_;  // N * S of the profile where it is largest
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
