#include "backends/graph_check.h"

#include <vector>

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

void hold_to_contract(const std::filesystem::path& path, const char* kind, const Specs& specs,
                      GraphTypes found, bool more_is_fine) {
  std::vector<std::string> differing;
  for (const TensorSpec& spec : specs) {
    const auto here = found.find(spec.name);
    if (here == found.end()) {
      differing.push_back(spec.name + " is missing");
    } else if (here->second != name_of(spec.type)) {
      differing.push_back(spec.name + " is " + here->second + " and not " + name_of(spec.type));
    }
    if (here != found.end()) found.erase(here);
  }
  for (const auto& [name, type] : found) {
    if (!more_is_fine) differing.push_back(name + " is not expected");
  }
  if (differing.empty()) return;
  throw bundle_error(path.u8string() + " does not have the " + kind + " this version expects (" +
                     join(differing, ", ") + "); it was exported by another version. Export the " +
                     "bundle again.");
}

}  // namespace translate_trt::runtime
