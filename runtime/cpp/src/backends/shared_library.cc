#include "backends/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace translate_trt::runtime {

void* open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* message = dlerror();
  throw std::runtime_error(message != nullptr ? message : "unknown error");
}

void* find_function(void* library, const char* name) { return dlsym(library, name); }

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace translate_trt::runtime
