// ONNX Runtime, loaded at run time: one build works with every version from 1.21 on.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <memory>
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
  OnnxRuntimeLibrary(const OrtApi* api, std::string version);

  const OrtApi* api_;
  std::string version_;
  Owned<OrtEnv> environment_;
};

}  // namespace translate_trt::runtime
