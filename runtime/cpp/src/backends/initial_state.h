// Initial values of a sentence's rows of the state and the request.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/options.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Writes the initial row, of `size` elements, of a state tensor (contract.h) that is not a cache.
void write_initial(const TensorSpec& spec, std::byte* row, std::size_t size,
                   std::int64_t start_token);

// Writes the row, of one element, of a request tensor, without a forced token.
void write_request(const TensorSpec& spec, std::byte* row, const SearchOptions& options,
                   std::int64_t max_length);

}  // namespace translate_trt::runtime
