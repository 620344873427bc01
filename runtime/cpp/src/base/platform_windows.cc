#include <windows.h>

#include <algorithm>
#include <cstdint>
#include <cwctype>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

namespace fs = std::filesystem;

// Longest path and longest value of an environment variable, in UTF-16 units.
constexpr DWORD kLongest = 32768;

std::wstring wide(const char* text) { return fs::u8path(text).wstring(); }

[[noreturn]] void fail(const std::string& prefix) {
  wchar_t message[512];
  DWORD size = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr,
                              GetLastError(), 0, message, std::size(message), nullptr);
  while (size > 0 && (std::iswspace(message[size - 1]) || message[size - 1] == L'.')) --size;
  const std::string text = fs::path(std::wstring(message, size)).u8string();
  throw std::runtime_error(prefix + (text.empty() ? "unknown error" : text));
}

struct Close {
  void operator()(HANDLE file) const { CloseHandle(file); }
};
using File = std::unique_ptr<void, Close>;

}  // namespace

void* open_library(const std::string& path) {
  const fs::path file = fs::u8path(path);
  // Libraries beside one of a full path are found, too.
  const DWORD flags = file.is_absolute() ? LOAD_WITH_ALTERED_SEARCH_PATH : 0;
  HMODULE library = LoadLibraryExW(file.c_str(), nullptr, flags);
  if (library == nullptr) fail(path + ": ");
  return library;
}

void close_library(void* library) { FreeLibrary(static_cast<HMODULE>(library)); }

void* find_function(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

fs::path library_of(const void* function) {
  HMODULE library = nullptr;
  std::wstring path(kLongest, L'\0');
  if (GetModuleHandleExW(
          GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
          static_cast<const wchar_t*>(function), &library) == 0) {
    return {};
  }
  path.resize(GetModuleFileNameW(library, path.data(), kLongest));
  return path;
}

std::string environment_value(const char* name) {
  std::wstring value(kLongest, L'\0');
  value.resize(GetEnvironmentVariableW(wide(name).c_str(), value.data(), kLongest));
  return fs::path(value).u8string();
}

std::string system_name() {
#if defined(__aarch64__)
  return "win32-arm64";
#else
  return "win32-amd64";
#endif
}

int process_id() { return static_cast<int>(GetCurrentProcessId()); }

int available_cores() {
  DWORD_PTR process = 0, system = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system) != 0 && process != 0) {
    return __builtin_popcountll(process);
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Advances in steps of a tick of the system, about 16 ms.
double thread_seconds() {
  FILETIME created, ended, kernel = {}, user = {};
  GetThreadTimes(GetCurrentThread(), &created, &ended, &kernel, &user);
  const auto seconds = [](const FILETIME& time) {
    return 1e-7 *
           static_cast<double>(std::uint64_t{time.dwHighDateTime} << 32 | time.dwLowDateTime);
  };
  return seconds(kernel) + seconds(user);
}

std::byte* map_pages(std::size_t bytes) {
  void* data = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (data == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

void unmap_pages(std::byte* data, std::size_t) { VirtualFree(data, 0, MEM_RELEASE); }

std::byte* remap_pages(std::byte*, std::size_t, std::size_t) { return nullptr; }

MappedFile::MappedFile(const fs::path& path) {
  HANDLE opened = CreateFileW(path.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE,
                              nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (opened == INVALID_HANDLE_VALUE) fail("");
  const File file(opened);
  LARGE_INTEGER size = {};
  if (GetFileSizeEx(file.get(), &size) == 0) fail("");
  size_ = static_cast<std::size_t>(size.QuadPart);
  if (size_ == 0) return;
  const File mapping(CreateFileMappingW(file.get(), nullptr, PAGE_READONLY, 0, 0, nullptr));
  if (mapping == nullptr) fail("");
  data_ = MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, 0);
  if (data_ == nullptr) fail("");
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) UnmapViewOfFile(data_);
}

}  // namespace translate_trt::runtime
