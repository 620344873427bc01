// Processor time of the calling thread.
#pragma once

#include <time.h>

namespace translate_trt::runtime {

// Seconds since the thread began.
inline double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace translate_trt::runtime
