// CPU time of the calling thread.
#pragma once

#include <time.h>

namespace translate_trt::runtime {

// CPU time in seconds that the thread has used.
inline double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace translate_trt::runtime
