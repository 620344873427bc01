#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/platform.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace translate_trt::runtime {

void* open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* message = dlerror();
  throw std::runtime_error(message != nullptr ? message : "unknown error");
}

void close_library(void* library) { dlclose(library); }

void* find_function(void* library, const char* name) { return dlsym(library, name); }

std::filesystem::path library_of(const void* function) {
  Dl_info found;
  return dladdr(function, &found) == 0 ? "" : found.dli_fname;
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string system_name() {
  utsname names = {};
  if (uname(&names) != 0) return "unknown";
  std::string name = std::string(names.sysname) + "-" + names.machine;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return name;
}

int process_id() { return getpid(); }

int available_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::byte* map_pages(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

void unmap_pages(std::byte* data, std::size_t bytes) { munmap(data, bytes); }

std::byte* remap_pages([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes,
                       [[maybe_unused]] std::size_t new_bytes) {
#ifdef MREMAP_MAYMOVE  // Linux
  void* moved = mremap(data, bytes, new_bytes, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(moved);
#else
  return nullptr;
#endif
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [](int reason) {
    throw std::runtime_error(std::generic_category().message(reason));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    const int reason = errno;
    if (file >= 0) close(file);
    fail(reason);
  }
  size_ = static_cast<std::size_t>(status.st_size);
  data_ = size_ == 0 ? nullptr : mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const int reason = errno;
  close(file);
  if (data_ == MAP_FAILED) fail(reason);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace translate_trt::runtime
