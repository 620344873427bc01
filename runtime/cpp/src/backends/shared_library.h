// Loading of shared libraries at run time.
#pragma once

#include <string>

namespace translate_trt::runtime {

// Opens a library with dlopen; throws std::runtime_error with the system's message.
void* open_library(const std::string& path);

// Looks up a function of a library; nullptr if it is missing.
void* find_function(void* library, const char* name);

// Value of an environment variable; "" if it is not set.
std::string environment_value(const char* name);

}  // namespace translate_trt::runtime
