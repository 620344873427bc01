// Kernels that are a library beside this one, or another one.

#include "backends/kernel_library.h"

#include <filesystem>
#include <stdexcept>

#include "../../format_version.h"
#include "base/errors.h"
#include "base/platform.h"
#include "base/utf8.h"
#include "translate_trt/translate_trt.h"

namespace translate_trt::runtime {

namespace fs = std::filesystem;

namespace {

fs::path beside_this_library() {
  const fs::path here = library_of(reinterpret_cast<const void*>(&tt_version));
  if (here.empty()) return {};
  std::error_code error;
  const fs::path path = fs::weakly_canonical(here, error).parent_path() / kKernelsFile;
  return !error && fs::is_regular_file(path, error) ? path : fs::path();
}

// Opens the library and asks it for its name and its functions.
void open_kernels(CompiledKernels& kernels) {
  const std::string& path = kernels.path;
  const std::string remedy =
      std::string(". Build it again with scripts/build_kernels.sh, or run without compiled ") +
      "kernels: the option kernels, or " + kKernelsVariable + ", set to none";
  void* library = nullptr;
  try {
    library = open_library(path);
  } catch (const std::runtime_error& error) {
    throw backend_error(
        path + " is no library of compiled kernels that loads here: " + error.what() + remedy);
  }
  const auto ask =
      reinterpret_cast<const char* (*)()>(find_function(library, "translate_trt_kernels"));
  if (ask == nullptr) {
    close_library(library);
    throw backend_error(path + " is no library of compiled kernels: it has no function " +
                        "translate_trt_kernels" + remedy);
  }
  const auto ask_format =
      reinterpret_cast<std::int32_t (*)()>(find_function(library, "translate_trt_kernels_format"));
  const std::int32_t built_for = ask_format == nullptr ? 0 : ask_format();
  if (built_for != kFormatVersion) {
    close_library(library);
    throw backend_error(path + " was built for bundles of format " + std::to_string(built_for) +
                        ", and this libtranslate_trt reads format " +
                        std::to_string(kFormatVersion) + remedy);
  }
  // The library stays open: ONNX Runtime opens and closes it itself, and every unloading leaks 72
  // KiB of its C++ runtime.
  kernels.name = ask();
  const auto ask_nodes = reinterpret_cast<const NodeFunctions* (*)()>(
      find_function(library, "translate_trt_kernels_nodes"));
  if (ask_nodes != nullptr) kernels.nodes = ask_nodes();
}

}  // namespace

CompiledKernels load_kernels(const std::string& given, const std::string& source) {
  CompiledKernels kernels;
  std::error_code error;
  if (given.empty()) {
    kernels.path = beside_this_library().u8string();
  } else if (fs::is_regular_file(fs::u8path(given), error)) {
    kernels.path = fs::absolute(fs::u8path(given)).u8string();
  } else {
    throw option_error(source + " is " + in_quotes(given) + ", and there is no such file; name " +
                       "one that scripts/build_kernels.sh made, or write none, or leave it out.");
  }
  if (!kernels.path.empty()) open_kernels(kernels);
  return kernels;
}

}  // namespace translate_trt::runtime
