// Comparison of a graph with the contract of its target.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "bundle/contract.h"

namespace translate_trt::runtime {

// Types of a graph's inputs or outputs by name, as `name_of` writes them.
using GraphTypes = std::map<std::string, std::string>;

// Throws a bundle error unless the inputs or outputs of a graph are those of its contract. kind:
// "inputs" or "outputs". more_is_fine: whether the graph may have others, too.
void hold_to_contract(const std::filesystem::path& path, const char* kind, const Specs& specs,
                      GraphTypes found, bool more_is_fine);

}  // namespace translate_trt::runtime
