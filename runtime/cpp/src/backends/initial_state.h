// What a sentence's row of the state holds before its first step, and its row of the request.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/options.h"
#include "bundle/contract.h"

namespace translate_trt::runtime {

// Writes a row of a tensor of the state (contract.h), which is no cache, of that many elements.
void write_initial(const TensorSpec& spec, std::byte* row, std::size_t size,
                   std::int64_t start_token);

// Writes a row of a tensor of the request, one element. The sentence is free.
void write_request(const TensorSpec& spec, std::byte* row, const SearchOptions& options,
                   std::int64_t max_length);

}  // namespace translate_trt::runtime
