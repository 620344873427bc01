// A fake of cuBLASLt on the fake driver: multiplies one element after another, with sums in fp32.
// The library of the fake driver exports it, too.
#define FAKE_CUDA_DRIVER_BUILD
#include "cuda/cublaslt.h"

#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "fake_cuda_driver/fake_driver.h"
#include "numbers.h"

namespace translate_trt::runtime::cublaslt {

struct HandleTag {
  int gpu;
};

struct OperationTag {
  std::map<int, std::uint64_t> attributes;
};

struct LayoutTag {
  int type;
  std::uint64_t rows, columns;
  std::int64_t stride;
  std::map<int, std::uint64_t> attributes = {};

  std::int64_t batch() const {
    const auto found = attributes.find(kBatchCount);
    return found == attributes.end() ? 1 : static_cast<std::int64_t>(found->second);
  }

  std::int64_t step() const {
    const auto found = attributes.find(kBatchStep);
    return found == attributes.end() ? 0 : static_cast<std::int64_t>(found->second);
  }

  std::size_t width() const { return type == kFloat32 ? 4 : 2; }

  // Bytes from the first element to the last one.
  std::size_t extent() const {
    const auto count = static_cast<std::size_t>((batch() - 1) * step() +
                                                (static_cast<std::int64_t>(columns) - 1) * stride) +
                       rows;
    return count * width();
  }
};

struct PreferenceTag {
  std::map<int, std::uint64_t> attributes;
};

}  // namespace translate_trt::runtime::cublaslt

namespace rt = translate_trt::runtime;
namespace cuda = rt::cuda;
namespace lt = rt::cublaslt;

namespace {

constexpr lt::Status kInvalidValue = 7;
constexpr std::size_t kWorkspace = 1000;  // bytes that every algorithm needs

using Lock = std::lock_guard<std::recursive_mutex>;

std::uint16_t half_of_float(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  if (value == 0) return sign;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - 11, -24);  // exponent of the last bit
  const auto count = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), -unit)));
  const int bits = (unit + 24) * 1024 + count;
  return static_cast<std::uint16_t>(sign | std::min(bits, 0x7c00));
}

float read(int type, const void* place) {
  std::uint16_t bits = 0;
  float value = 0;
  if (type == lt::kFloat32) {
    std::memcpy(&value, place, sizeof(value));
    return value;
  }
  std::memcpy(&bits, place, sizeof(bits));
  if (type == lt::kFloat16) return translate_trt::float_of_half(bits);
  const std::uint32_t whole = std::uint32_t{bits} << 16;
  std::memcpy(&value, &whole, sizeof(value));
  return value;
}

void write(int type, void* place, float value) {
  if (type == lt::kFloat32) {
    std::memcpy(place, &value, sizeof(value));
    return;
  }
  std::uint16_t bits = half_of_float(value);
  if (type == lt::kBFloat16) {
    std::uint32_t whole = 0;
    std::memcpy(&whole, &value, sizeof(whole));
    bits = static_cast<std::uint16_t>((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
  }
  std::memcpy(place, &bits, sizeof(bits));
}

// An element of a matrix of a batch, by its row and column.
std::byte* element(const void* data, const lt::LayoutTag& layout, std::int64_t batch,
                   std::int64_t row, std::int64_t column) {
  const std::int64_t index = batch * layout.step() + column * layout.stride + row;
  return static_cast<std::byte*>(const_cast<void*>(data)) +
         index * static_cast<std::int64_t>(layout.width());
}

std::uint64_t attribute(const lt::OperationTag& operation, int which) {
  const auto found = operation.attributes.find(which);
  return found == operation.attributes.end() ? 0 : found->second;
}

template <class Tag>
lt::Status set(Tag* object, int which, const void* value, std::size_t size) {
  if (size > sizeof(std::uint64_t)) return kInvalidValue;
  std::uint64_t bits = 0;
  std::memcpy(&bits, value, size);
  object->attributes[which] = bits;
  return lt::kSuccess;
}

template <class Tag>
lt::Status destroy(Tag* object) {
  const Lock lock(rt::fake_mutex());
  --rt::fake_cuda().alive["of cuBLASLt"];
  delete object;
  return lt::kSuccess;
}

template <class Tag, class... Values>
lt::Status create(Tag** made, const Values&... values) {
  const Lock lock(rt::fake_mutex());
  ++rt::fake_cuda().alive["of cuBLASLt"];
  *made = new Tag{values...};
  return lt::kSuccess;
}

// A matmul, as its call describes it.
struct Call {
  lt::LayoutTag a, b, out;
  bool transposes_a, transposes_b, relu, has_bias;
  const void *bias, *a_data, *b_data;
  void* out_data;
  std::int64_t inner;

  void run() const {
    const std::size_t bias_size = has_bias ? out.rows * out.width() : 0;
    for (const auto& [what, data, size] :
         {std::tuple{"a matmul reads a", a_data, a.extent()},
          {"a matmul reads b", b_data, b.extent()},
          {"a matmul reads a bias", bias, bias_size},
          {"a matmul writes", static_cast<const void*>(out_data), out.extent()}}) {
      if (size > 0 && !rt::check_memory(what, data, size, false)) {
        throw std::runtime_error("an illegal address");
      }
    }
    for (std::int64_t batch = 0; batch < out.batch(); ++batch) {
      for (std::int64_t column = 0; column < static_cast<std::int64_t>(out.columns); ++column) {
        for (std::int64_t row = 0; row < static_cast<std::int64_t>(out.rows); ++row) {
          float sum = 0;
          for (std::int64_t i = 0; i < inner; ++i) {
            sum += read(a.type, transposes_a ? element(a_data, a, batch, i, row)
                                             : element(a_data, a, batch, row, i)) *
                   read(b.type, transposes_b ? element(b_data, b, batch, column, i)
                                             : element(b_data, b, batch, i, column));
          }
          if (has_bias) {
            const auto* values = static_cast<const std::byte*>(bias);
            sum += read(out.type, values + row * static_cast<std::int64_t>(out.width()));
          }
          if (relu && sum < 0) sum = 0;
          write(out.type, element(out_data, out, batch, row, column), sum);
        }
      }
    }
  }
};

// Content of an algorithm: the matmul that it was chosen for, to compare with that of the call.
lt::Algorithm algorithm_of(const lt::OperationTag& operation, const lt::LayoutTag& a,
                           const lt::LayoutTag& b, const lt::LayoutTag& out) {
  return {{a.rows, a.columns, b.rows, b.columns, out.rows, out.columns,
           attribute(operation, lt::kTransposeA) * 2 + attribute(operation, lt::kTransposeB),
           attribute(operation, lt::kEpilogue)}};
}

}  // namespace

extern "C" {

FAKE_API std::size_t cublasLtGetVersion() { return 130100; }

FAKE_API lt::Status cublasLtCreate(lt::Handle* handle) { return create(handle, rt::current_gpu()); }
FAKE_API lt::Status cublasLtDestroy(lt::Handle handle) { return destroy(handle); }

FAKE_API lt::Status cublasLtMatmulDescCreate(lt::Operation* operation, int sums, int scale) {
  if (sums != lt::kSumsOfFloat32 || scale != lt::kFloat32) return kInvalidValue;
  return create(operation);
}
FAKE_API lt::Status cublasLtMatmulDescDestroy(lt::Operation operation) {
  return destroy(operation);
}
FAKE_API lt::Status cublasLtMatmulDescSetAttribute(lt::Operation operation, int which,
                                                   const void* value, std::size_t size) {
  const std::size_t expected = which == lt::kBiasPointer ? sizeof(void*) : sizeof(std::int32_t);
  return size == expected ? set(operation, which, value, size) : kInvalidValue;
}

FAKE_API lt::Status cublasLtMatrixLayoutCreate(lt::Layout* layout, int type, std::uint64_t rows,
                                               std::uint64_t columns, std::int64_t stride) {
  if (stride < static_cast<std::int64_t>(rows)) return kInvalidValue;
  return create(layout, type, rows, columns, stride);
}
FAKE_API lt::Status cublasLtMatrixLayoutDestroy(lt::Layout layout) { return destroy(layout); }
FAKE_API lt::Status cublasLtMatrixLayoutSetAttribute(lt::Layout layout, int which,
                                                     const void* value, std::size_t size) {
  const std::size_t expected =
      which == lt::kBatchStep ? sizeof(std::int64_t) : sizeof(std::int32_t);
  return size == expected ? set(layout, which, value, size) : kInvalidValue;
}

FAKE_API lt::Status cublasLtMatmulPreferenceCreate(lt::Preference* preference) {
  return create(preference);
}
FAKE_API lt::Status cublasLtMatmulPreferenceDestroy(lt::Preference preference) {
  return destroy(preference);
}
FAKE_API lt::Status cublasLtMatmulPreferenceSetAttribute(lt::Preference preference, int which,
                                                         const void* value, std::size_t size) {
  const std::size_t expected =
      which == lt::kMostWorkspace ? sizeof(std::uint64_t) : sizeof(std::uint32_t);
  return size == expected ? set(preference, which, value, size) : kInvalidValue;
}

FAKE_API lt::Status cublasLtMatmulAlgoGetHeuristic(lt::Handle handle, lt::Operation operation,
                                                   lt::Layout a, lt::Layout b, lt::Layout c,
                                                   lt::Layout out, lt::Preference preference,
                                                   int count, lt::Heuristic* results, int* found) {
  const Lock lock(rt::fake_mutex());
  ++rt::fake_cuda().calls["cublasLtMatmulAlgoGetHeuristic"];
  if (handle->gpu != rt::current_gpu() || count < 1 || c != out) return kInvalidValue;
  const auto failing = rt::fake_cuda().failing.find("cublasLtMatmulAlgoGetHeuristic");
  if (failing != rt::fake_cuda().failing.end()) return failing->second;
  *found = preference->attributes[lt::kMostWorkspace] >= kWorkspace ? 1 : 0;
  results[0] = {algorithm_of(*operation, *a, *b, *out), kWorkspace, lt::kSuccess, 1, {}};
  return lt::kSuccess;
}

FAKE_API lt::Status cublasLtMatmul(lt::Handle handle, lt::Operation operation, const void* alpha,
                                   const void* a_data, lt::Layout a, const void* b_data,
                                   lt::Layout b, const void* beta, const void* c_data, lt::Layout c,
                                   void* out_data, lt::Layout out, const lt::Algorithm* algorithm,
                                   void* workspace, std::size_t workspace_size,
                                   cuda::Stream stream) {
  const Lock lock(rt::fake_mutex());
  rt::FakeCuda& fake = rt::fake_cuda();
  ++fake.calls["cublasLtMatmul"];
  const int epilogue = static_cast<int>(attribute(*operation, lt::kEpilogue));
  const bool transposes_a = attribute(*operation, lt::kTransposeA) == lt::kTransposed;
  const bool transposes_b = attribute(*operation, lt::kTransposeB) == lt::kTransposed;
  const std::uint64_t inner = transposes_a ? a->rows : a->columns;
  fake.history.push_back("cublasLtMatmul(" + std::to_string(out->rows) + ", " +
                         std::to_string(out->columns) + ", " + std::to_string(inner) + ", " +
                         std::to_string(epilogue) + ")");
  const lt::Algorithm expected = algorithm_of(*operation, *a, *b, *out);
  if (std::memcmp(algorithm, &expected, sizeof(expected)) != 0) {
    rt::violation("a matmul with the algorithm of another one");
  }
  if (handle->gpu != rt::gpu_of(stream) || workspace_size < kWorkspace ||
      !rt::check_memory("a matmul's workspace", workspace, workspace_size, false)) {
    return kInvalidValue;
  }
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0 ||
      c_data != out_data || c != out || inner != (transposes_b ? b->columns : b->rows) ||
      out->rows != (transposes_a ? a->columns : a->rows) ||
      out->columns != (transposes_b ? b->rows : b->columns) || a->batch() != out->batch() ||
      b->batch() != out->batch() || a->type != b->type) {
    return kInvalidValue;
  }
  const auto* bias = reinterpret_cast<const void*>(attribute(*operation, lt::kBiasPointer));
  const Call call = {*a,
                     *b,
                     *out,
                     transposes_a,
                     transposes_b,
                     (epilogue & lt::kRelu) != 0,
                     (epilogue & lt::kBias) != 0,
                     bias,
                     a_data,
                     b_data,
                     out_data,
                     static_cast<std::int64_t>(inner)};
  return rt::enqueue(
             stream, [=] { call.run(); }, nullptr) == cuda::kSuccess
             ? lt::kSuccess
             : kInvalidValue;
}

}  // extern "C"
