// The part of the TensorRT API that libtranslate_trt calls, as documented, implemented by
// fake_tensorrt.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

// NVIDIA's header includes that of the CUDA runtime for this type.
typedef struct CUstream_st* cudaStream_t;

#define NV_TENSORRT_MAJOR 11
#define NV_TENSORRT_MINOR 0

namespace nvinfer1 {

// Implementations of the classes below.
class FakeRuntimeState;
class FakeEngineState;
class FakeContextState;

using AsciiChar = char;

class Dims64 {
 public:
  static constexpr int32_t MAX_DIMS{8};
  int32_t nbDims;
  int64_t d[MAX_DIMS];
};
using Dims = Dims64;

enum class DataType : int32_t {
  kFLOAT = 0,
  kHALF = 1,
  kINT8 = 2,
  kINT32 = 3,
  kBOOL = 4,
  kBF16 = 7,
  kINT64 = 8
};
enum class TensorLocation : int32_t { kDEVICE = 0, kHOST = 1 };
enum class TensorIOMode : int32_t { kNONE = 0, kINPUT = 1, kOUTPUT = 2 };
enum class ExecutionContextAllocationStrategy : int32_t {
  kSTATIC = 0,
  kON_PROFILE_CHANGE = 1,
  kUSER_MANAGED = 2
};

class ILogger {
 public:
  enum class Severity : int32_t {
    kINTERNAL_ERROR = 0,
    kERROR = 1,
    kWARNING = 2,
    kINFO = 3,
    kVERBOSE = 4
  };
  virtual void log(Severity severity, AsciiChar const* msg) noexcept = 0;
  ILogger() = default;
  virtual ~ILogger() = default;
};

class INoCopy {
 protected:
  INoCopy() = default;
  virtual ~INoCopy() = default;
  INoCopy(INoCopy const&) = delete;
  INoCopy& operator=(INoCopy const&) = delete;
};

class IExecutionContext : public INoCopy {
 public:
  explicit IExecutionContext(FakeEngineState& engine);
  ~IExecutionContext() noexcept override;
  void setDeviceMemoryV2(void* memory, int64_t size) noexcept;
  bool setOptimizationProfileAsync(int32_t profileIndex, cudaStream_t stream) noexcept;
  Dims getTensorShape(char const* tensorName) const noexcept;
  bool setInputShape(char const* tensorName, Dims const& dims) noexcept;
  bool setTensorAddress(char const* tensorName, void* data) noexcept;
  bool enqueueV3(cudaStream_t stream) noexcept;

 private:
  std::unique_ptr<FakeContextState> state_;
};

class ICudaEngine : public INoCopy {
 public:
  explicit ICudaEngine(std::unique_ptr<FakeEngineState> state);
  ~ICudaEngine() noexcept override;
  int32_t getNbIOTensors() const noexcept;
  char const* getIOTensorName(int32_t index) const noexcept;
  TensorIOMode getTensorIOMode(char const* tensorName) const noexcept;
  DataType getTensorDataType(char const* tensorName) const noexcept;
  TensorLocation getTensorLocation(char const* tensorName) const noexcept;
  char const* getAliasedInputTensor(char const* tensorName) const noexcept;
  int32_t getNbOptimizationProfiles() const noexcept;
  int64_t getDeviceMemorySizeV2() const noexcept;
  IExecutionContext* createExecutionContext(
      ExecutionContextAllocationStrategy strategy =
          ExecutionContextAllocationStrategy::kSTATIC) noexcept;

 private:
  std::unique_ptr<FakeEngineState> state_;
};

class IRuntime : public INoCopy {
 public:
  explicit IRuntime(ILogger& logger);
  ~IRuntime() noexcept override;
  ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept;

 private:
  std::unique_ptr<FakeRuntimeState> state_;
};

IRuntime* createInferRuntime(ILogger& logger) noexcept;

}  // namespace nvinfer1

extern "C" int32_t getInferLibVersion() noexcept;
