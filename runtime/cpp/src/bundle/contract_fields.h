// Reads a `Contract` from a manifest (runtime/bundle/contract_fields.py).
#pragma once

#include "bundle/contract.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

// Reads the object `contract` of a target. Throws a bundle error if a tensor that the host uses is
// missing, or if there is a tensor that this version does not know.
Contract read_contract(const Fields& fields);

}  // namespace translate_trt::runtime
