#include "initial_state.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace translate_trt::runtime {

namespace {

template <class T>
T* as(std::byte* row) {
  return reinterpret_cast<T*>(row);
}

}  // namespace

void write_initial(const TensorSpec& spec, std::byte* row, std::size_t size,
                   std::int64_t start_token) {
  constexpr float kImpossible = -std::numeric_limits<float>::infinity();
  const std::string& name = spec.name;
  if (name == "tokens") {
    std::fill_n(as<std::int64_t>(row), size, start_token);
  } else if (name == "log_probs") {  // one live hypothesis
    std::fill_n(as<float>(row), size, kImpossible);
    as<float>(row)[0] = 0;
  } else if (name == "finished_scores") {
    std::fill_n(as<float>(row), size, kImpossible);
  } else if (name == "ancestry") {  // nothing is written yet
    std::fill_n(as<float>(row), size, kMasked);
  } else if (name == "slots") {
    std::iota(as<std::int64_t>(row), as<std::int64_t>(row) + size, 0);
  } else {
    std::fill_n(row, size * size_of(spec.type), std::byte{0});
  }
}

void write_request(const TensorSpec& spec, std::byte* row, const SearchOptions& options,
                   std::int64_t max_length) {
  const std::string& name = spec.name;
  if (name == "forced_tokens") {
    *as<std::int64_t>(row) = kFree;
  } else if (name == "min_lengths") {
    *as<std::int64_t>(row) = options.min_length;
  } else if (name == "max_lengths") {
    *as<std::int64_t>(row) = max_length;
  } else if (name == "length_penalty_alpha") {
    *as<float>(row) = static_cast<float>(options.length_penalty);
  } else if (name == "length_penalty_beta") {
    *as<float>(row) = static_cast<float>(options.length_penalty_beta());
  } else {
    *as<bool>(row) = options.early_stopping;
  }
}

}  // namespace translate_trt::runtime
