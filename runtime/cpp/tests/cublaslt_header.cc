// Compares cublaslt.h with cuBLASLt's own header. Compiled only where that header is found.

#include <cublasLt.h>

#include <cstddef>

#include "cuda/cublaslt.h"
#include "same_call.h"

namespace translate_trt::runtime {

namespace {

#define TT_SAME(member, name, parameters) TT_SAME_CALL(CublasLt, member, name, #name)
TT_CUBLASLT_FUNCTIONS(TT_SAME)
TT_SAME_CALL(CublasLt, version, cublasLtGetVersion, "cublasLtGetVersion")

static_assert(cublaslt::kSuccess == CUBLAS_STATUS_SUCCESS);
static_assert(cublaslt::kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(cublaslt::kFloat32 == CUDA_R_32F && cublaslt::kFloat16 == CUDA_R_16F);
static_assert(cublaslt::kBFloat16 == CUDA_R_16BF);
static_assert(cublaslt::kSumsOfFloat32 == CUBLAS_COMPUTE_32F);
static_assert(cublaslt::kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(cublaslt::kTransposeB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(cublaslt::kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(cublaslt::kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(cublaslt::kTransposed == CUBLAS_OP_T);
static_assert(cublaslt::kNoEpilogue == CUBLASLT_EPILOGUE_DEFAULT);
static_assert(cublaslt::kRelu == CUBLASLT_EPILOGUE_RELU);
static_assert(cublaslt::kBias == CUBLASLT_EPILOGUE_BIAS);
static_assert((cublaslt::kRelu | cublaslt::kBias) == CUBLASLT_EPILOGUE_RELU_BIAS);
static_assert(cublaslt::kBatchCount == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(cublaslt::kBatchStep == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(cublaslt::kMostWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(cublaslt::kReductions == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(cublaslt::kReductionOfSums == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(cublaslt::kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(cublaslt::kAlignmentA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

static_assert(sizeof(cublaslt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(cublaslt::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(cublaslt::Heuristic, workspace) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(cublaslt::Heuristic, status) ==
              offsetof(cublasLtMatmulHeuristicResult_t, state));

}  // namespace

}  // namespace translate_trt::runtime
