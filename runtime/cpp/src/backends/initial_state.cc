#include "backends/initial_state.h"

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
  switch (spec.initial) {
    case Initial::kZeros:
      std::fill_n(row, size * size_of(spec.type), std::byte{0});
      break;
    case Initial::kStartToken:
      std::fill_n(as<std::int64_t>(row), size, start_token);
      break;
    case Initial::kMasked:
      std::fill_n(as<float>(row), size, kMasked);
      break;
    case Initial::kMinusInfinity:
      std::fill_n(as<float>(row), size, kImpossible);
      break;
    case Initial::kFirstLives:
      std::fill_n(as<float>(row), size, kImpossible);
      as<float>(row)[0] = 0;
      break;
    case Initial::kAscending:
      std::iota(as<std::int64_t>(row), as<std::int64_t>(row) + size, 0);
      break;
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
  } else if (name == "num_hypotheses") {
    *as<std::int64_t>(row) = options.num_hypotheses;
  } else if (name == "early_stopping") {
    *as<bool>(row) = options.early_stopping;
  } else if (name == "sampling_temperature") {
    *as<float>(row) = static_cast<float>(options.sampling_temperature);
  } else if (name == "sampling_top_p") {
    *as<float>(row) = static_cast<float>(options.sampling_top_p);
  }
}

}  // namespace translate_trt::runtime
