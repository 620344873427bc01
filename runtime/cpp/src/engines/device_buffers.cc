#include "engines/device_buffers.h"

#include <algorithm>
#include <utility>

#include "backends/initial_state.h"

namespace translate_trt::runtime {

namespace {

// Tensors that the host reads after a step.
constexpr const char* kResults[] = {
    "parents",         "tokens",           "log_probs",        "done",
    "finished_scores", "finished_lengths", "finished_parents", "finished_truncated"};

bool is_result(const std::string& name) {
  return std::any_of(std::begin(kResults), std::end(kResults),
                     [&](const char* one) { return name == one; });
}

std::size_t elements(const TensorSpec& spec, const Sizes& sizes) {
  std::size_t count = 1;
  for (const std::int64_t axis : spec.sized(sizes)) count *= static_cast<std::size_t>(axis);
  return count;
}

Specs without_caches(const Contract& contract) {
  Specs specs;
  std::copy_if(contract.state.begin(), contract.state.end(), std::back_inserter(specs),
               [](const TensorSpec& spec) { return !spec.in_place; });
  return specs;
}

Specs result_specs(const Contract& contract, const Specs& state) {
  Specs specs;
  std::copy_if(contract.results.begin(), contract.results.end(), std::back_inserter(specs),
               [](const TensorSpec& spec) { return spec.name == "parents"; });
  std::copy_if(state.begin(), state.end(), std::back_inserter(specs),
               [](const TensorSpec& spec) { return is_result(spec.name); });
  return specs;
}

Specs rest_specs(const Specs& state) {
  Specs specs;
  std::copy_if(state.begin(), state.end(), std::back_inserter(specs),
               [](const TensorSpec& spec) { return !is_result(spec.name); });
  return specs;
}

Sizes largest_sizes(const Contract& contract, const StepProfiles& steps) {
  Sizes sizes;
  sizes.k = *contract.beams();
  sizes.p = *contract.slots();
  for (const Profile& one : steps.buckets()) {
    sizes.n = std::max(sizes.n, one.batch);
    sizes.s = std::max(sizes.s, one.source_length);
  }
  return with_change_sizes(sizes, steps.changes());
}

template <class T>
std::vector<T> array_at(const std::byte* content, std::size_t count) {
  const auto* values = reinterpret_cast<const T*>(content);
  return {values, values + count};
}

}  // namespace

std::size_t tensor_bytes(const TensorSpec& spec, const Sizes& sizes) {
  return elements(spec, sizes) * size_of(spec.type);
}

std::size_t row_bytes(const TensorSpec& spec, Sizes sizes) {
  sizes.n = 1;
  return tensor_bytes(spec, sizes);
}

Sizes with_change_sizes(Sizes sizes, const ChangeSizes& changes) {
  sizes.b = changes.marked_tokens;
  sizes.r = changes.sampled_ranks;
  sizes.d = changes.tail_tokens;
  sizes.u = changes.constraint_tokens;
  return sizes;
}

Block::Block(const Specs& specs, const Sizes& sizes) {
  for (const TensorSpec& spec : specs) {
    offsets[spec.name] = size;
    size += (tensor_bytes(spec, sizes) + kAlignment - 1) / kAlignment * kAlignment;
  }
}

DeviceBuffers::DeviceBuffers(Device& device, const Contract& contract, const StepProfiles& steps,
                             std::size_t ring_size)
    : device_(device),
      contract_(contract),
      ring_size_(ring_size),
      sizes_(largest_sizes(contract, steps)),
      largest_(largest_source(steps.buckets())),
      state_(without_caches(contract)),
      state_block_(state_, sizes_),
      result_block_(result_specs(contract, state_), sizes_),
      rest_block_(rest_specs(state_), sizes_),
      source_ids_(device, sizeof(std::int64_t) * static_cast<std::size_t>(largest_)),
      source_lengths_(device, sizeof(std::int64_t) * static_cast<std::size_t>(sizes_.n)),
      initial_state_(device, state_block_.size),
      results_(zeros(ring_size * result_block_.size)),
      rest_(zeros(ring_size * rest_block_.size)) {
  for (const TensorSpec& spec : contract.encoder_outputs) {
    cross_[spec.name] = zeros(max_bytes(spec));
    encoded_[spec.name] = zeros(max_bytes(spec));
  }
  for (const TensorSpec& spec : contract.caches()) {
    caches_[spec.name] = zeros(tensor_bytes(spec, sizes_));
  }
  for (const TensorSpec& spec : contract.request) {
    requests_.emplace(spec.name, Upload(device, tensor_bytes(spec, sizes_)));
  }
  if (contract.attention()) {
    attention_bytes_ = sizeof(float) * static_cast<std::size_t>(sizes_.k * largest_);
    for (std::size_t i = 0; i < ring_size; ++i) {
      attention_.push_back(device.allocate(attention_bytes_));
    }
  }
  const std::vector<float> masked(static_cast<std::size_t>(largest_), kMasked);
  Upload blank(device, sizeof(float) * masked.size());
  blank.send(masked.data(), sizeof(float) * masked.size());
  blank_bias_ = blank.target();
}

Address DeviceBuffers::entry_address(const std::string& name, std::size_t entry) const {
  const auto found = result_block_.offsets.find(name);
  if (found != result_block_.offsets.end()) {
    return results_ + entry * result_block_.size + found->second;
  }
  return rest_ + entry * rest_block_.size + rest_block_.offsets.at(name);
}

Address DeviceBuffers::initial_state(const std::string& name) const {
  return initial_state_.target() + state_block_.offsets.at(name);
}

void DeviceBuffers::send_initial_state(std::int64_t start_token) {
  std::vector<std::byte> content(state_block_.size);
  for (const TensorSpec& spec : state_) {
    const std::size_t size = row_bytes(spec, sizes_);
    std::byte* row = content.data() + state_block_.offsets.at(spec.name);
    for (std::int64_t i = 0; i < sizes_.n; ++i, row += size) {
      write_initial(spec, row, size / size_of(spec.type), start_token);
    }
  }
  initial_state_.send(content.data(), content.size());
}

std::vector<DeviceTensor> DeviceBuffers::step_tensors(std::size_t entry, const Sizes& sizes) const {
  const std::size_t next_entry = (entry + 1) % ring_size_;
  std::vector<DeviceTensor> tensors;
  for (const TensorSpec& spec : contract_.step_inputs()) {
    const std::string& name = spec.name;
    Address address = 0;
    if (const auto cross = cross_.find(name); cross != cross_.end()) {
      address = cross->second;
    } else if (const auto request = requests_.find(name); request != requests_.end()) {
      address = request->second.target();
    } else if (const auto cache = caches_.find(name); cache != caches_.end()) {
      address = cache->second;
      tensors.push_back({kNext + name, {}, address});
    } else {
      address = entry_address(name, entry);
      tensors.push_back({kNext + name, {}, entry_address(name, next_entry)});
    }
    tensors.push_back({name, spec.sized(sizes), address});
  }
  tensors.push_back({"parents", {}, entry_address("parents", next_entry)});
  if (!attention_.empty()) tensors.push_back({"attention", {}, attention_[next_entry]});
  return tensors;
}

void DeviceBuffers::copy_to_first(std::size_t entry) {
  device_.copy(results_, results_ + entry * result_block_.size, result_block_.size);
  device_.copy(rest_, rest_ + entry * rest_block_.size, rest_block_.size);
}

StepResult DeviceBuffers::read_result(const std::byte* results, const std::byte* attention,
                                      std::size_t entry, const Sizes& sizes) const {
  const auto rows = static_cast<std::size_t>(sizes.n);
  const std::size_t beams = rows * static_cast<std::size_t>(sizes.k);
  const auto at = [&](const char* name) { return result_at(results, name, entry); };
  StepResult result;
  result.tokens = array_at<std::int64_t>(at("tokens"), beams);
  result.parents = array_at<std::int64_t>(at("parents"), beams);
  result.log_probs = array_at<float>(at("log_probs"), beams);
  result.done = array_at<char>(at("done"), rows);
  if (attention != nullptr) {
    result.source_size = sizes.s;
    result.attention = array_at<float>(attention + entry * attention_bytes_,
                                       beams * static_cast<std::size_t>(sizes.s));
  }
  return result;
}

Pool DeviceBuffers::read_pool(const std::byte* results, std::size_t entry, std::int64_t row) const {
  const auto beams = static_cast<std::size_t>(sizes_.k);
  const auto read = [&](const char* name, auto one) {
    const std::byte* all = result_at(results, name, entry);
    return array_at<decltype(one)>(all + sizeof(one) * beams * static_cast<std::size_t>(row),
                                   beams);
  };
  return {read("finished_scores", float()), read("finished_lengths", std::int64_t()),
          read("finished_parents", std::int64_t()), read("finished_truncated", char())};
}

const std::byte* DeviceBuffers::result_at(const std::byte* results, const char* name,
                                          std::size_t entry) const {
  return results + entry * result_block_.size + result_block_.offsets.at(name);
}

// Maximum size in bytes of a tensor with axes N and S over all profiles.
std::size_t DeviceBuffers::max_bytes(const TensorSpec& spec) const {
  Sizes sizes = sizes_;
  sizes.n = 1;
  sizes.s = largest_;
  return tensor_bytes(spec, sizes);
}

// Allocates zeros, since masked values must be finite.
Address DeviceBuffers::zeros(std::size_t size) {
  const Address address = device_.allocate(size);
  device_.fill(address, 0, size);
  return address;
}

}  // namespace translate_trt::runtime
