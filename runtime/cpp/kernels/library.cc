// The functions that the library exports.

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "../format_version.h"
#include "exported.h"
#include "kernels.h"
#include "operator.h"
#include "processor.h"

namespace translate_trt {

namespace {

const Kernels* choose() {
#ifdef TRANSLATE_TRT_PLAIN
  return &plain;
#else
#ifdef TRANSLATE_TRT_I8MM
  if (has_i8mm()) return &neon_i8mm;
#endif
#ifdef TRANSLATE_TRT_NEON
  if (has_dot_products()) return &neon_dotprod;
#endif
#ifdef TRANSLATE_TRT_WASM
  return &wasm_simd128;
#endif
#ifdef TRANSLATE_TRT_AVX512
  if (has_avx512_vnni()) {
#ifdef TRANSLATE_TRT_AMX
    if (has_amx_int8()) {
      return !request_tiles()    ? &amx_not_permitted
             : !amx_is_correct() ? &amx_not_correct
                                 : &amx_int8;
    }
#endif
    return &avx512_vnni;
  }
#endif
#ifdef TRANSLATE_TRT_AVX_VNNI
  if (has_avx_vnni()) return &avx2_vnni;
#endif
#ifdef TRANSLATE_TRT_AVX2
  if (has_avx2()) return &avx2_fma;
#endif
  return &portable;
#endif
}

}  // namespace

const Kernels portable = {"portable"};

const Kernels& host_kernels() {
  static const auto* const here = choose();
  return *here;
}

}  // namespace translate_trt

// Name of the kernels that RegisterCustomOps registers on this processor.
TRANSLATE_TRT_EXPORT const char* translate_trt_kernels() {
  return translate_trt::host_kernels().name;
}

// The bundles' format version whose graphs the operators are for: their inputs and attributes
// change with it.
TRANSLATE_TRT_EXPORT std::int32_t translate_trt_kernels_format() {
  return translate_trt::kFormatVersion;
}

// Names of the operators that have kernels on this processor, one per line.
// tests/export/fused_ops/test_declarations.py compares them with the declarations.
TRANSLATE_TRT_EXPORT const char* translate_trt_kernels_operators() {
  static const std::string names = [] {
    std::string lines;
    for (const auto& one : translate_trt::host_operators().operators()) {
      lines += one->declaration().name + '\n';
    }
    return lines;
  }();
  return names.c_str();
}

namespace translate_trt {
namespace {

// A node of an executor's graph.
class ExecutorNode final : public NodeInfo {
 public:
  ExecutorNode(const NodeDescription& node, const Declaration& declaration)
      : NodeInfo(declaration), node_(node) {
    require(node.input_count == declaration.inputs.size() &&
                node.output_count == declaration.outputs.size(),
            "a node has another number of inputs or outputs than its operator");
    for (std::size_t i = 0; i < node.input_count; ++i) {
      require(node.inputs[i].type == declaration.inputs[i],
              "an input of a node has another type than its operator's");
    }
    std::copy(declaration.outputs.begin(), declaration.outputs.end(), node.outputs);
  }

 private:
  const NodeAttribute& find(const char* name) const {
    for (std::size_t i = 0; i < node_.attribute_count; ++i) {
      if (std::string_view(node_.attributes[i].name) == name) return node_.attributes[i];
    }
    throw std::invalid_argument("translate_trt: a node has no attribute " + std::string(name));
  }

  float read_number(const char* name) const override { return find(name).number; }

  std::vector<std::int64_t> read_integers(const char* name) const override {
    const auto& found = find(name);
    return {found.integers, found.integers + found.count};
  }

  NodeTensor read_constant(std::size_t input) const override { return node_.inputs[input]; }

  const NodeDescription& node_;
};

// Calls a function. Returns the text of its exception, or null.
template <class Function>
const char* error_of(const Function& function) {
  thread_local std::string message;
  try {
    function();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

void* make_kernel(const NodeDescription& node, const char** error) {
  std::unique_ptr<NodeKernel> made;
  *error = error_of([&] {
    for (const auto& one : host_operators().operators()) {
      if (one->declaration().name != node.name) continue;
      made = one->make(ExecutorNode(node, one->declaration()));
      return;
    }
  });
  return made.release();
}

const char* run_kernel(const void* kernel, const NodeHost& host) {
  return error_of([&] { static_cast<const NodeKernel*>(kernel)->run(host); });
}

void destroy_kernel(void* kernel) { delete static_cast<NodeKernel*>(kernel); }

}  // namespace
}  // namespace translate_trt

// Called by libtranslate_trt.
TRANSLATE_TRT_EXPORT const translate_trt::NodeFunctions* translate_trt_kernels_nodes() {
  static const translate_trt::NodeFunctions functions = {
      translate_trt::make_kernel, translate_trt::run_kernel, translate_trt::destroy_kernel};
  return &functions;
}
