// The part of ONNX Runtime's API for plugin providers. It is younger than the oldest headers that
// the library is built with, so functions are found by their index in the API's table, which never
// changes: ONNX Runtime only appends.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <cstdint>

namespace translate_trt::runtime {

// TensorRT-RTX's plugin needs this API version; the functions are from 1.22 and 1.23.
inline constexpr std::uint32_t kPluginApiVersion = 24;

struct ProviderDevice;  // OrtEpDevice: a device that a provider can use

inline constexpr std::size_t kRegisterProvider = 301;  // RegisterExecutionProviderLibrary
using RegisterProvider = OrtStatus*(ORT_API_CALL*)(OrtEnv*, const char* name,
                                                   const ORTCHAR_T* path);

inline constexpr std::size_t kProviderDevices = 303;  // GetEpDevices
using ProviderDevices = OrtStatus*(ORT_API_CALL*)(const OrtEnv*,
                                                  const ProviderDevice* const** devices,
                                                  std::size_t* count);

// SessionOptionsAppendExecutionProvider_V2
inline constexpr std::size_t kAppendProvider = 304;
using AppendProvider = OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, OrtEnv*,
                                                 const ProviderDevice* const* devices,
                                                 std::size_t device_count, const char* const* names,
                                                 const char* const* values, std::size_t count);

inline constexpr std::size_t kProviderName = 312;  // EpDevice_EpName
using ProviderName = const char*(ORT_API_CALL*)(const ProviderDevice*);

inline constexpr std::size_t kCreateMemoryInfo = 320;  // CreateMemoryInfo_V2
using CreateMemoryInfo = OrtStatus*(ORT_API_CALL*)(const char* name, int device_type,
                                                   std::uint32_t vendor, std::int32_t device,
                                                   int memory_type, std::size_t alignment,
                                                   OrtAllocatorType, OrtMemoryInfo**);

// Values of its enumerations.
inline constexpr int kGpuDevice = 1, kDefaultMemory = 0;
inline constexpr std::uint32_t kNvidia = 0x10DE;  // PCI vendor

#if ORT_API_VERSION >= 24
#define TT_CHECK_INDEX(index, function) \
  static_assert(offsetof(OrtApi, function) / sizeof(void*) == (index))
TT_CHECK_INDEX(kRegisterProvider, RegisterExecutionProviderLibrary);
TT_CHECK_INDEX(kProviderDevices, GetEpDevices);
TT_CHECK_INDEX(kAppendProvider, SessionOptionsAppendExecutionProvider_V2);
TT_CHECK_INDEX(kProviderName, EpDevice_EpName);
TT_CHECK_INDEX(kCreateMemoryInfo, CreateMemoryInfo_V2);
#undef TT_CHECK_INDEX
#endif

}  // namespace translate_trt::runtime
