// ONNX Runtime, loaded at run time: one build works with every version from 1.21 on.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

namespace translate_trt::runtime {

// API version of the oldest supported ONNX Runtime. Later versions only append functions to the
// API.
inline constexpr std::uint32_t kApiVersion = 21;
static_assert(ORT_API_VERSION >= kApiVersion, "the headers are of an ONNX Runtime before 1.21");

// An error that ONNX Runtime returned.
class OnnxRuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Deleter that calls a release function of ONNX Runtime.
template <class T>
struct Release {
  void(ORT_API_CALL* function)(T*) = nullptr;
  void operator()(T* object) const { function(object); }
};

template <class T>
using Owned = std::unique_ptr<T, Release<T>>;

class OnnxRuntimeLibrary {
 public:
  // Opens the library, which stays open until the process ends: its threads may outlive its
  // objects.
  //
  // chosen: path of the library; if empty, $TRANSLATE_TRT_ONNXRUNTIME or the default name on the
  // system's library path. Throws a backend error if the library cannot be loaded or is too old.
  static std::shared_ptr<const OnnxRuntimeLibrary> open(const std::string& chosen);

  const OrtApi& api() const { return *api_; }
  const std::string& version() const { return version_; }
  OrtEnv* environment() const { return environment_.get(); }

  // A function that ONNX Runtime has appended to its API since kApiVersion, by its index in the
  // API's table; null if this ONNX Runtime is older than `version`, the API version of its first
  // release.
  template <class Function>
  Function later(std::uint32_t version, std::size_t index) const {
    if (version > newest_api_) return nullptr;  // GetApi would complain on stderr
    const OrtApi* newer = base_->GetApi(version);
    if (newer == nullptr) return nullptr;
    return reinterpret_cast<Function>(reinterpret_cast<void* const*>(newer)[index]);
  }

  // Registers a plugin provider's library under a name, once. Throws OnnxRuntimeError.
  void register_provider(const std::string& name, const std::string& path) const;

  // Throws OnnxRuntimeError unless the status is a success.
  void check(OrtStatus* status) const;

  // Owns the object that `create` writes to its output pointer; `release` frees it.
  template <class T, class Create>
  Owned<T> make(void(ORT_API_CALL* release)(T*), const Create& create) const {
    T* made = nullptr;
    check(create(&made));
    return Owned<T>(made, Release<T>{release});
  }

 private:
  OnnxRuntimeLibrary(const OrtApiBase* base, const OrtApi* api, std::string version);

  const OrtApiBase* base_;
  const OrtApi* api_;
  std::string version_;
  std::uint32_t newest_api_ = kApiVersion;  // API version of this ONNX Runtime
  Owned<OrtEnv> environment_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::string> providers_;  // paths by name
};

}  // namespace translate_trt::runtime
