// The functions of cuBLASLt that matmuls need. Like CUDA's driver (backends/cuda_driver.h), the
// library is loaded at run time and no header of it is needed: its interface is stable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/cuda_driver.h"
#include "cuda/plan.h"

namespace translate_trt::runtime {

// Types of cublasLt.h. tests/cublaslt_header.cc compares them with the header where it is.
namespace cublaslt {

using Status = int;
struct HandleTag;
struct OperationTag;
struct LayoutTag;
struct PreferenceTag;
using Handle = HandleTag*;
using Operation = OperationTag*;  // cublasLtMatmulDesc_t
using Layout = LayoutTag*;
using Preference = PreferenceTag*;

inline constexpr Status kSuccess = 0, kNotSupported = 15;
inline constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14;  // cudaDataType
inline constexpr int kSumsOfFloat32 = 68;                         // cublasComputeType_t
inline constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;
inline constexpr int kTransposed = 1;                        // cublasOperation_t
inline constexpr int kNoEpilogue = 1, kRelu = 2, kBias = 4;  // both: kRelu | kBias
inline constexpr int kBatchCount = 5, kBatchStep = 6;        // attributes of layouts
// Attributes of preferences.
inline constexpr int kMostWorkspace = 1, kReductions = 3, kAlignmentA = 5;  // B, C and D follow
inline constexpr std::uint32_t kReductionOfSums = 2;  // parts of a sum are added in fp32

struct Algorithm {
  std::uint64_t data[8];
};

// cublasLtMatmulHeuristicResult_t.
struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace;  // bytes
  Status status;
  float waves;
  int reserved[4];
};

}  // namespace cublaslt

// clang-format off
// CALL(member, exported name, parameters) for every function that returns a status.
#define TT_CUBLASLT_FUNCTIONS(CALL)                                                                \
  CALL(create, cublasLtCreate, (cublaslt::Handle*))                                                \
  CALL(destroy, cublasLtDestroy, (cublaslt::Handle))                                               \
  CALL(create_operation, cublasLtMatmulDescCreate, (cublaslt::Operation*, int, int))               \
  CALL(destroy_operation, cublasLtMatmulDescDestroy, (cublaslt::Operation))                        \
  CALL(set_operation, cublasLtMatmulDescSetAttribute,                                              \
       (cublaslt::Operation, int, const void*, std::size_t))                                       \
  CALL(create_layout, cublasLtMatrixLayoutCreate,                                                  \
       (cublaslt::Layout*, int, std::uint64_t, std::uint64_t, std::int64_t))                       \
  CALL(destroy_layout, cublasLtMatrixLayoutDestroy, (cublaslt::Layout))                            \
  CALL(set_layout, cublasLtMatrixLayoutSetAttribute,                                               \
       (cublaslt::Layout, int, const void*, std::size_t))                                          \
  CALL(create_preference, cublasLtMatmulPreferenceCreate, (cublaslt::Preference*))                 \
  CALL(destroy_preference, cublasLtMatmulPreferenceDestroy, (cublaslt::Preference))                \
  CALL(set_preference, cublasLtMatmulPreferenceSetAttribute,                                       \
       (cublaslt::Preference, int, const void*, std::size_t))                                      \
  CALL(choose, cublasLtMatmulAlgoGetHeuristic,                                                     \
       (cublaslt::Handle, cublaslt::Operation, cublaslt::Layout, cublaslt::Layout,                 \
        cublaslt::Layout, cublaslt::Layout, cublaslt::Preference, int, cublaslt::Heuristic*, int*)) \
  CALL(matmul, cublasLtMatmul,                                                                     \
       (cublaslt::Handle, cublaslt::Operation, const void*, const void*, cublaslt::Layout,         \
        const void*, cublaslt::Layout, const void*, const void*, cublaslt::Layout, void*,          \
        cublaslt::Layout, const cublaslt::Algorithm*, void*, std::size_t, cuda::Stream))
// clang-format on

struct CublasLt {
#define TT_CUBLASLT_MEMBER(member, name, parameters) cublaslt::Status(*member) parameters = nullptr;
  TT_CUBLASLT_FUNCTIONS(TT_CUBLASLT_MEMBER)
#undef TT_CUBLASLT_MEMBER
  std::size_t (*version)() = nullptr;

  // Opens the library, once; it stays open until the process ends. Throws a backend error that says
  // what to install if none of kCublasLt is there.
  static const CublasLt& open();

  // Throws a backend error for every failure.
  void check(cublaslt::Status status, const char* what) const;
};

// A handle or a descriptor, freed by one of the functions above.
template <class Tag>
using CublasLtOwned = std::unique_ptr<Tag, cublaslt::Status (*)(Tag*)>;

// Creates a handle on the calling thread's current GPU.
CublasLtOwned<cublaslt::HandleTag> cublaslt_handle();

// A matmul of a plan. Used by one thread at a time, whose GPU is current. cuBLASLt stores matrices
// by columns, so it multiplies the transposes in the other order: out^T = b^T a^T.
class MatmulOperation {
 public:
  explicit MatmulOperation(const Matmul& matmul);

  // Chooses the algorithm that is probably fastest. most_workspace: bytes that it may use. Throws a
  // backend error if there is none.
  cublaslt::Heuristic choose(cublaslt::Handle handle, std::size_t most_workspace);

  struct Addresses {
    cuda::Address a, b, bias, out, workspace;
  };

  // Enqueues the matmul.
  void run(cublaslt::Handle handle, const cublaslt::Heuristic& chosen, const Addresses& addresses,
           cuda::Stream stream);

 private:
  CublasLtOwned<cublaslt::LayoutTag> layout(const Matmul::Matrix& matrix, Type type,
                                            std::int64_t rows, std::int64_t columns) const;
  template <class Value>
  void set(int attribute, Value value);

  const CublasLt& library_;
  Matmul matmul_;
  CublasLtOwned<cublaslt::OperationTag> operation_;
  CublasLtOwned<cublaslt::LayoutTag> a_, b_, out_;
};

}  // namespace translate_trt::runtime
