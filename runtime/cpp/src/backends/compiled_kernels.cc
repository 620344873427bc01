#include "backends/kernel_library.h"

namespace translate_trt::runtime {

namespace {

// Kernels for any CPU: only the operators of the beam search and the embedding.
constexpr const char* kPortable = "portable";

}  // namespace

std::string CompiledKernels::status() const {
  if (!name.empty()) return name;
  if (!path.empty()) return "none (no kernels for this CPU)";
  return switched_off ? "none (disabled)" : "none (no library)";
}

bool CompiledKernels::has_attention() const { return !name.empty() && name != kPortable; }

}  // namespace translate_trt::runtime
