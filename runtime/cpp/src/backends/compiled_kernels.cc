#include "backends/kernel_library.h"
#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

constexpr const char* kNone = "none";
// Kernels for any CPU: only the operators of the beam search and the embedding.
constexpr const char* kPortable = "portable";

}  // namespace

std::string CompiledKernels::status() const {
  if (!name.empty()) return name;
  if (!path.empty()) return "none (no kernels for this CPU)";
  return switched_off ? "none (disabled)" : "none (no library)";
}

bool CompiledKernels::has_attention() const { return !name.empty() && name != kPortable; }

CompiledKernels find_kernels(const std::string& chosen) {
  const std::string given = chosen.empty() ? environment_value(kKernelsVariable) : chosen;
  if (given != kNone) return load_kernels(given, chosen.empty() ? kKernelsVariable : "kernels");
  CompiledKernels kernels;
  kernels.switched_off = true;
  return kernels;
}

}  // namespace translate_trt::runtime
