#include "backends/backend.h"

#include <algorithm>
#include <cmath>

namespace translate_trt::runtime {

void add_nan_rows(const StepResult& step, std::int64_t beams, std::set<std::int64_t>& rows) {
  const auto is_nan = [](float value) { return std::isnan(value); };
  const auto begin = step.log_probs.begin(), end = step.log_probs.end();
  for (auto found = std::find_if(begin, end, is_nan); found != end;
       found = std::find_if(found + 1, end, is_nan)) {
    rows.insert((found - begin) / beams);
  }
}

}  // namespace translate_trt::runtime
