// ONNX Runtime, opened while the program runs: one build serves every version from 1.21 on.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace translate_trt::runtime {

// Of the oldest version that the runtime works with. Later ones have the same functions at the same
// places, and more behind them.
inline constexpr std::uint32_t kApiVersion = 21;
static_assert(ORT_API_VERSION >= kApiVersion, "the headers are of an ONNX Runtime before 1.21");

// What ONNX Runtime says went wrong.
class OnnxRuntimeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Frees what its function is given.
template <class T>
struct Release {
  void(ORT_API_CALL* function)(T*) = nullptr;
  void operator()(T* object) const { function(object); }
};

template <class T>
using Owned = std::unique_ptr<T, Release<T>>;

class OnnxRuntimeLibrary {
 public:
  // Opens the library, which stays open as long as the process lives: threads of its own may
  // outlive what was made with it.
  //
  // chosen: its path; empty: $TRANSLATE_TRT_ONNXRUNTIME, else the name that the system looks for.
  // A backend error if there is none, or one that is too old.
  static std::shared_ptr<const OnnxRuntimeLibrary> open(const std::string& chosen);

  const OrtApi& api() const { return *api_; }
  const std::string& version() const { return version_; }
  OrtEnv* environment() const { return environment_.get(); }

  // Throws OnnxRuntimeError if a call did not succeed.
  void check(OrtStatus* status) const;

  // What a call makes that writes to a pointer, to be freed by `release`.
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
