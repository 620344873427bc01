#include "tensorrt/tensorrt_engine.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

namespace {

// Keeps the last error messages of all threads.
class TensorRtLog : public nvinfer1::ILogger {
 public:
  // The logger of the process, which is never freed: TensorRT keeps the first logger that it gets
  // and ignores later ones.
  static TensorRtLog& instance() {
    static auto* const log = new TensorRtLog;
    return *log;
  }

  void log(Severity severity, const char* message) noexcept override {
    if (severity > Severity::kERROR || message == nullptr) return;  // not an error
    try {
      const std::lock_guard lock(mutex_);
      lines_.push_back({std::this_thread::get_id(), message});
      if (lines_.size() > kLines) lines_.pop_front();
    } catch (...) {  // out of memory: drop the message
    }
  }

  std::string reasons() {
    const std::lock_guard lock(mutex_);
    const auto mine = [id = std::this_thread::get_id()](const Line& line) {
      return line.thread == id;
    };
    const bool any_of_mine = std::any_of(lines_.begin(), lines_.end(), mine);
    std::vector<std::string> found;
    for (const Line& line : lines_) {
      if (any_of_mine && !mine(line)) continue;
      if (std::find(found.begin(), found.end(), line.text) == found.end()) {
        found.push_back(line.text);
      }
    }
    if (found.size() > kTold) found.erase(found.begin(), found.end() - kTold);
    lines_.erase(std::remove_if(lines_.begin(), lines_.end(),
                                [&](const Line& line) { return !any_of_mine || mine(line); }),
                 lines_.end());
    return found.empty() ? "(no reason given)" : join(found, " | ");
  }

 private:
  struct Line {
    std::thread::id thread;
    std::string text;
  };

  static constexpr std::size_t kLines = 32;
  static constexpr std::ptrdiff_t kTold = 3;

  TensorRtLog() = default;

  std::mutex mutex_;
  std::deque<Line> lines_;
};

std::vector<char> read_engine(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::vector<char> content((std::istreambuf_iterator<char>(file)), {});
  if (file.bad() || !file.is_open()) {
    throw bundle_error("cannot read " + path.u8string() + ": " + std::strerror(errno) + ". " +
                       kRemedy);
  }
  return content;
}

// Mode, type and location of an engine's tensor.
using Kind = std::tuple<nvinfer1::TensorIOMode, nvinfer1::DataType, nvinfer1::TensorLocation>;

nvinfer1::DataType data_type(Type type) {
  switch (type) {
    case Type::kInt64:
      return nvinfer1::DataType::kINT64;
    case Type::kFloat32:
      return nvinfer1::DataType::kFLOAT;
    case Type::kFloat16:
      return nvinfer1::DataType::kHALF;
    case Type::kBFloat16:
      return nvinfer1::DataType::kBF16;
    case Type::kBool:
      return nvinfer1::DataType::kBOOL;
  }
  return nvinfer1::DataType::kINT8;  // a type that no contract uses
}

}  // namespace

std::string tensorrt_version() {
  const std::int32_t version = getInferLibVersion();  // since version 10, 101501 means 10.15.1
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string tensorrt_reasons() { return TensorRtLog::instance().reasons(); }

TensorRtEngine::TensorRtEngine(const std::filesystem::path& file, const Specs& inputs,
                               const Specs& outputs)
    : runtime_(nvinfer1::createInferRuntime(TensorRtLog::instance())) {
  if (runtime_ == nullptr) {
    throw backend_error(
        "TensorRT " + tensorrt_version() + " cannot be used: " + tensorrt_reasons() +
        ". This library was built with the headers of " + std::to_string(NV_TENSORRT_MAJOR) + "." +
        std::to_string(NV_TENSORRT_MINOR) + "; build it again if that is another version.");
  }
  const std::vector<char> content = read_engine(file);
  engine_.reset(runtime_->deserializeCudaEngine(content.data(), content.size()));
  if (engine_ == nullptr) {
    throw bundle_error(file.u8string() + " does not load. TensorRT says: " + tensorrt_reasons() +
                       " Export the bundle again, on this machine.");
  }
  check_tensors(inputs, outputs);
}

void TensorRtEngine::check_tensors(const Specs& inputs, const Specs& outputs) const {
  std::map<std::string, Kind> declared, found;
  for (const auto& [mode, specs] : {std::pair{nvinfer1::TensorIOMode::kINPUT, &inputs},
                                    std::pair{nvinfer1::TensorIOMode::kOUTPUT, &outputs}}) {
    for (const TensorSpec& spec : *specs) {
      declared[spec.name] = {mode, data_type(spec.type), nvinfer1::TensorLocation::kDEVICE};
    }
  }
  for (std::int32_t index = 0; index < engine_->getNbIOTensors(); ++index) {
    const char* name = engine_->getIOTensorName(index);
    found[name] = {engine_->getTensorIOMode(name), engine_->getTensorDataType(name),
                   engine_->getTensorLocation(name)};
  }
  std::set<std::string> differing;
  for (const auto& [own, other] : {std::pair{&declared, &found}, std::pair{&found, &declared}}) {
    for (const auto& [name, kind] : *own) {
      const auto match = other->find(name);
      if (match == other->end() || match->second != kind) differing.insert(name);
    }
  }
  if (differing.empty()) return;
  throw bundle_error(
      "an engine of tensorrt does not have the inputs and outputs that this version expects (they "
      "differ in " +
      join({differing.begin(), differing.end()}, ", ") +
      "); it was exported by another version. Export the bundle again.");
}

void TensorRtEngine::check_profiles(std::size_t count) const {
  const std::int32_t found = engine_->getNbOptimizationProfiles();
  if (found == static_cast<std::int32_t>(count)) return;
  throw bundle_error("an engine of tensorrt has " + std::to_string(found) +
                     " profiles, the manifest says " + std::to_string(count) +
                     ". Export the bundle again.");
}

// Versions before 11 cannot report aliased tensors.
void TensorRtEngine::check_aliases(const Specs& caches) const {
#if NV_TENSORRT_MAJOR >= 11
  for (const TensorSpec& cache : caches) {
    const char* input = engine_->getAliasedInputTensor((kNext + cache.name).c_str());
    if (input != nullptr && input == cache.name) continue;
    throw bundle_error("the step engine does not write " + cache.name +
                       " in place, which this version relies on. Export the bundle again.");
  }
#else
  static_cast<void>(caches);
#endif
}

std::size_t TensorRtEngine::scratch_bytes() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(0, engine_->getDeviceMemorySizeV2()));
}

std::unique_ptr<nvinfer1::IExecutionContext> TensorRtEngine::context(std::size_t index,
                                                                     const std::string& profile,
                                                                     cuda::Stream stream) {
  std::unique_ptr<nvinfer1::IExecutionContext> made;
  {
    const std::lock_guard lock(mutex_);
    made.reset(engine_->createExecutionContext(
        nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
  }
  if (made != nullptr &&
      made->setOptimizationProfileAsync(static_cast<std::int32_t>(index), stream)) {
    return made;
  }
  throw backend_error("TensorRT has no context for the profile " + profile + ": " +
                      tensorrt_reasons() + " If memory ran out, lower workers.");
}

}  // namespace translate_trt::runtime
