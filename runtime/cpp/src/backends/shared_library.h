// Libraries that are opened while the program runs.
#pragma once

#include <string>

namespace translate_trt::runtime {

// A handle, as of dlopen; throws std::runtime_error with the system's message.
void* open_library(const std::string& path);

// A function of it; nullptr if it has none of that name.
void* find_function(void* library, const char* name);

// Of an environment variable; "" if it is not set.
std::string environment_value(const char* name);

}  // namespace translate_trt::runtime
