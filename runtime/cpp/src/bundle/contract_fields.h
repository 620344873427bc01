// `Contract` in a manifest (runtime/bundle/contract_fields.py).
#pragma once

#include "bundle/contract.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

// From the object `contract` of a target. A bundle error if a tensor is missing that the host deals
// with, or one is there that it does not know what to do with.
Contract read_contract(const Fields& fields);

}  // namespace translate_trt::runtime
