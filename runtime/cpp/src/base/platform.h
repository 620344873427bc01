// What differs between operating systems (platform_posix.cc, platform_windows.cc). Text is UTF-8.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace translate_trt::runtime {

// Default names of the libraries that are loaded at run time.
#if defined(_WIN32)
inline constexpr const char* kKernelsFile = "translate_trt_kernels.dll";
inline constexpr const char* kOnnxRuntimeFile = "onnxruntime.dll";
inline constexpr const char* kCudaDriver = "nvcuda.dll";
inline constexpr const char* kCublasLt[] = {"cublasLt64_13.dll", "cublasLt64_12.dll"};
#else
inline constexpr const char* kKernelsFile = "libtranslate_trt_kernels.so";  // on macOS, too
inline constexpr const char* kOnnxRuntimeFile = "libonnxruntime.so.1";
inline constexpr const char* kCudaDriver = "libcuda.so.1";
inline constexpr const char* kCublasLt[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
#endif

// Whether threads can be started. The WebAssembly of browsers has them only on pages with special
// headers.
#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__)
inline constexpr bool kHasThreads = false;
#else
inline constexpr bool kHasThreads = true;
#endif

// Opens a library; throws std::runtime_error with the system's message.
void* open_library(const std::string& path);

void close_library(void* library);

// Looks up a function of a library; nullptr if it is missing.
void* find_function(void* library, const char* name);

// Path of the library that contains a function; empty if it is unknown.
std::filesystem::path library_of(const void* function);

// Value of an environment variable; "" if it is not set.
std::string environment_value(const char* name);

// Operating system and processor, such as "linux-x86_64" (sys.platform and platform.machine of
// Python).
std::string system_name();

int process_id();

// Number of processor cores that this process may use.
int available_cores();

// CPU time in seconds that the calling thread has used.
double thread_seconds();

// Maps pages of zeros, which use memory once they are written. Throws std::bad_alloc.
std::byte* map_pages(std::size_t bytes);

void unmap_pages(std::byte* data, std::size_t bytes);

// Moves pages to a mapping of another size. Throws std::bad_alloc; returns nullptr if the system
// cannot do this.
std::byte* remap_pages(std::byte* data, std::size_t bytes, std::size_t new_bytes);

// A file that is mapped as long as this lives.
class MappedFile {
 public:
  // Throws std::runtime_error with the system's message.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;  // null for an empty file
  std::size_t size_ = 0;
};

}  // namespace translate_trt::runtime
