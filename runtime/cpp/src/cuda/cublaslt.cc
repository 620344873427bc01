#include "cuda/cublaslt.h"

#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

constexpr const char* kInstall =
    ". Install it, with pip install nvidia-cublas or CUDA's toolkit, and put its folder where the "
    "system looks for libraries (LD_LIBRARY_PATH, or PATH on Windows), or choose an onnx target.";

void* open_cublaslt() {
  const std::string given = environment_value("TRANSLATE_TRT_CUBLASLT");  // for tests
  std::vector<std::string> names(std::begin(kCublasLt), std::end(kCublasLt));
  if (!given.empty()) names = {given};
  std::string reasons;
  for (const std::string& name : names) {
    try {
      return open_library(name);
    } catch (const std::runtime_error& error) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  throw backend_error("cuBLASLt, which multiplies the matrices of this target, does not load: " +
                      reasons + kInstall);
}

CublasLt load_cublaslt() {
  void* library = open_cublaslt();
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(find_function(library, name));
    if (function != nullptr) return;
    throw backend_error("the installed cuBLASLt has no function " + std::string(name) + kInstall);
  };
  CublasLt found;
#define TT_CUBLASLT_FIND(member, name, parameters) find(#name, found.member);
  TT_CUBLASLT_FUNCTIONS(TT_CUBLASLT_FIND)
#undef TT_CUBLASLT_FIND
  find("cublasLtGetVersion", found.version);
  return found;
}

int data_type(Type type) {
  return type == Type::kFloat16    ? cublaslt::kFloat16
         : type == Type::kBFloat16 ? cublaslt::kBFloat16
                                   : cublaslt::kFloat32;
}

// Creates an object of cuBLASLt. create(&handle): returns the status.
template <class Tag, class Create>
CublasLtOwned<Tag> created(const Create& create, cublaslt::Status (*free)(Tag*)) {
  Tag* handle = nullptr;
  CublasLt::open().check(create(&handle), "a handle");
  return {handle, free};
}

const void* pointer_of(cuda::Address address) { return reinterpret_cast<const void*>(address); }

}  // namespace

const CublasLt& CublasLt::open() {
  // Never destroyed, like the library itself.
  static const auto* const opened = new CublasLt(load_cublaslt());
  return *opened;
}

void CublasLt::check(cublaslt::Status status, const char* what) const {
  if (status == cublaslt::kSuccess) return;
  throw backend_error("cuBLASLt " + std::to_string(version()) + " refused " + what +
                      " (CUBLAS_STATUS " + std::to_string(status) +
                      "). Update the GPU's driver, or lower workers if memory ran out.");
}

CublasLtOwned<cublaslt::HandleTag> cublaslt_handle() {
  const CublasLt& library = CublasLt::open();
  return created<cublaslt::HandleTag>(library.create, library.destroy);
}

MatmulOperation::MatmulOperation(const Matmul& matmul)
    : library_(CublasLt::open()),
      matmul_(matmul),
      operation_(created<cublaslt::OperationTag>(
          [&](cublaslt::Operation* made) {
            return library_.create_operation(made, cublaslt::kSumsOfFloat32, cublaslt::kFloat32);
          },
          library_.destroy_operation)),
      a_(layout(matmul.a, matmul.type, matmul.rows, matmul.inner)),
      b_(layout(matmul.b, matmul.type, matmul.inner, matmul.columns)),
      out_(layout(matmul.out, matmul.out_type, matmul.rows, matmul.columns)) {
  if (matmul.b.transposed) set(cublaslt::kTransposeA, std::int32_t{cublaslt::kTransposed});
  if (matmul.a.transposed) set(cublaslt::kTransposeB, std::int32_t{cublaslt::kTransposed});
  const int epilogue =
      (matmul.relu ? cublaslt::kRelu : 0) | (matmul.has_bias ? cublaslt::kBias : 0);
  set(cublaslt::kEpilogue, epilogue == 0 ? cublaslt::kNoEpilogue : epilogue);
}

CublasLtOwned<cublaslt::LayoutTag> MatmulOperation::layout(const Matmul::Matrix& matrix, Type type,
                                                           std::int64_t rows,
                                                           std::int64_t columns) const {
  if (matrix.transposed) std::swap(rows, columns);
  auto made = created<cublaslt::LayoutTag>(
      [&](cublaslt::Layout* layout) {
        return library_.create_layout(layout, data_type(type), static_cast<std::uint64_t>(columns),
                                      static_cast<std::uint64_t>(rows), matrix.stride);
      },
      library_.destroy_layout);
  if (matmul_.batch == 1) return made;
  const auto batch = static_cast<std::int32_t>(matmul_.batch);
  library_.check(library_.set_layout(made.get(), cublaslt::kBatchCount, &batch, sizeof(batch)),
                 "a batch");
  library_.check(
      library_.set_layout(made.get(), cublaslt::kBatchStep, &matrix.step, sizeof(matrix.step)),
      "a batch");
  return made;
}

template <class Value>
void MatmulOperation::set(int attribute, Value value) {
  library_.check(library_.set_operation(operation_.get(), attribute, &value, sizeof(value)),
                 "an attribute of a matmul");
}

cublaslt::Heuristic MatmulOperation::choose(cublaslt::Handle handle, std::size_t most_workspace) {
  const auto preference =
      created<cublaslt::PreferenceTag>(library_.create_preference, library_.destroy_preference);
  const auto prefer = [&](int attribute, auto value) {
    library_.check(library_.set_preference(preference.get(), attribute, &value, sizeof(value)),
                   "a preference");
  };
  prefer(cublaslt::kMostWorkspace, std::uint64_t{most_workspace});
  prefer(cublaslt::kReductions, cublaslt::kReductionOfSums);
  int attribute = cublaslt::kAlignmentA;
  for (const Matmul::Matrix* matrix : {&matmul_.b, &matmul_.a, &matmul_.out, &matmul_.out}) {
    prefer(attribute++, matrix->alignment);
  }
  // The choice depends on the alignment of the bias, which is not read.
  if (matmul_.has_bias) set(cublaslt::kBiasPointer, pointer_of(matmul_.bias_alignment));
  cublaslt::Heuristic chosen = {};
  int count = 0;
  const cublaslt::Status status =
      library_.choose(handle, operation_.get(), b_.get(), a_.get(), out_.get(), out_.get(),
                      preference.get(), 1, &chosen, &count);
  if (status != cublaslt::kNotSupported) library_.check(status, "the choice of an algorithm");
  if (count > 0 && chosen.status == cublaslt::kSuccess) return chosen;
  throw backend_error("cuBLASLt " + std::to_string(library_.version()) +
                      " has no algorithm for a matmul of " + std::to_string(matmul_.rows) + " x " +
                      std::to_string(matmul_.inner) + " x " + std::to_string(matmul_.columns) +
                      " on this GPU. Install another version, or choose another target.");
}

void MatmulOperation::run(cublaslt::Handle handle, const cublaslt::Heuristic& chosen,
                          const Addresses& addresses, cuda::Stream stream) {
  if (matmul_.has_bias) set(cublaslt::kBiasPointer, pointer_of(addresses.bias));
  const float one = 1, zero = 0;
  void* out = reinterpret_cast<void*>(addresses.out);
  library_.check(
      library_.matmul(handle, operation_.get(), &one, pointer_of(addresses.b), b_.get(),
                      pointer_of(addresses.a), a_.get(), &zero, out, out_.get(), out, out_.get(),
                      &chosen.algorithm, reinterpret_cast<void*>(addresses.workspace),
                      chosen.workspace, stream),
      "a matmul");
}

}  // namespace translate_trt::runtime
