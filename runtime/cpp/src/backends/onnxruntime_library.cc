#include "backends/onnxruntime_library.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "backends/onnxruntime_plugins.h"
#include "base/errors.h"
#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

constexpr const char* kLibraryVariable = "TRANSLATE_TRT_ONNXRUNTIME";

// The attention operator of 1.20.1 gave wrong translations, without an error; 1.21.1 does not.
constexpr int kOldest[] = {1, 21};

// Major and minor number of a version; zeros if it has none.
std::pair<int, int> numbers_of(const std::string& version) {
  int major = 0, minor = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) != 2) return {0, 0};
  return {major, minor};
}

bool is_too_old(const std::string& version) {
  const auto numbers = numbers_of(version);
  return numbers != std::pair(0, 0) && numbers < std::pair(kOldest[0], kOldest[1]);
}

const OrtApiBase* open_base(const std::string& path) {
  const std::string remedy =
      std::string(" Give the path of its library: the option onnxruntime, or ") + kLibraryVariable +
      ".";
  void* library = nullptr;
  try {
    library = open_library(path);
  } catch (const std::runtime_error& error) {
    throw backend_error("cannot load ONNX Runtime: " + std::string(error.what()) + "." + remedy);
  }
  const auto get_base =
      reinterpret_cast<const OrtApiBase* (*)()>(find_function(library, "OrtGetApiBase"));
  if (get_base == nullptr) {
    throw backend_error(path + " is not ONNX Runtime: it has no OrtGetApiBase." + remedy);
  }
  return get_base();
}

}  // namespace

std::shared_ptr<const OnnxRuntimeLibrary> OnnxRuntimeLibrary::open(const std::string& chosen) {
  using Opened = std::map<std::string, std::shared_ptr<const OnnxRuntimeLibrary>>;
  // Never destroyed: the order in which a process unloads libraries is unspecified.
  static auto* const opened = new Opened();
  static auto* const mutex = new std::mutex();
  std::string path = chosen.empty() ? environment_value(kLibraryVariable) : chosen;
  if (path.empty()) path = kOnnxRuntimeFile;
  const std::lock_guard lock(*mutex);
  const auto found = opened->find(path);
  if (found != opened->end()) return found->second;
  const OrtApiBase* base = open_base(path);
  const std::string version = base->GetVersionString();
  const OrtApi* api = is_too_old(version) ? nullptr : base->GetApi(kApiVersion);
  if (api == nullptr) {
    throw backend_error(path + " is ONNX Runtime " + version + ", whose attention is wrong; this " +
                        "needs 1.21 or newer.");
  }
  std::shared_ptr<const OnnxRuntimeLibrary> library(new OnnxRuntimeLibrary(base, api, version));
  opened->emplace(path, library);
  return library;
}

OnnxRuntimeLibrary::OnnxRuntimeLibrary(const OrtApiBase* base, const OrtApi* api,
                                       std::string version)
    : base_(base), api_(api), version_(std::move(version)) {
  const auto [major, minor] = numbers_of(version_);
  if (major == 1) newest_api_ = static_cast<std::uint32_t>(minor);
  environment_ = make<OrtEnv>(api_->ReleaseEnv, [this](OrtEnv** made) {
    // Errors are returned with the same message, so nothing is logged to stderr.
    return api_->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "translate_trt", made);
  });
}

void OnnxRuntimeLibrary::register_provider(const std::string& name, const std::string& path) const {
  const auto add = later<RegisterProvider>(kPluginApiVersion, kRegisterProvider);
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = providers_.emplace(name, path);
  if (!is_new) {
    if (entry->second == path) return;
    throw OnnxRuntimeError("this process uses the one of " + entry->second + " already");
  }
  try {
    check(add(environment(), name.c_str(), std::filesystem::u8path(path).c_str()));
  } catch (const OnnxRuntimeError&) {
    providers_.erase(entry);
    throw;
  }
}

void OnnxRuntimeLibrary::check(OrtStatus* status) const {
  if (status == nullptr) return;
  const std::string message = api_->GetErrorMessage(status);
  api_->ReleaseStatus(status);
  throw OnnxRuntimeError(message);
}

}  // namespace translate_trt::runtime
