#include "bundle/contract.h"

#include <algorithm>
#include <iterator>

namespace translate_trt::runtime {

namespace {

void append(Specs& specs, const Specs& more) {
  specs.insert(specs.end(), more.begin(), more.end());
}

// The size of a tensor's axis, if it is fixed.
std::optional<std::int64_t> fixed(const Specs& specs, const char* name, std::size_t axis) {
  for (const TensorSpec& spec : specs) {
    if (spec.name == name && spec.axes.at(axis) > 0) return spec.axes[axis];
  }
  return std::nullopt;
}

}  // namespace

std::size_t size_of(Type type) {
  switch (type) {
    case Type::kInt64:
      return 8;
    case Type::kFloat32:
      return 4;
    case Type::kFloat16:
    case Type::kBFloat16:
      return 2;
    case Type::kBool:
      return 1;
  }
  return 0;
}

std::string name_of(Type type) {
  switch (type) {
    case Type::kInt64:
      return "tensor(int64)";
    case Type::kFloat32:
      return "tensor(float)";
    case Type::kFloat16:
      return "tensor(float16)";
    case Type::kBFloat16:
      return "tensor(bfloat16)";
    case Type::kBool:
      return "tensor(bool)";
  }
  return "";
}

std::int64_t Sizes::of(std::int64_t axis) const {
  switch (axis) {
    case kN:
      return n;
    case kK:
      return k;
    case kS:
      return s;
    case kP:
      return p;
    case kW:
      return w;
    case kB:
      return b;
    case kR:
      return r;
    case kU:
      return u;
    case kD:
      return d;
    default:
      return axis;
  }
}

std::vector<std::int64_t> TensorSpec::sized(const Sizes& sizes) const {
  std::vector<std::int64_t> shape;
  for (const auto axis : axes) shape.push_back(sizes.of(axis));
  return shape;
}

std::optional<std::int64_t> Contract::beams() const { return fixed(state, "tokens", 1); }

std::optional<std::int64_t> Contract::slots() const {
  for (const TensorSpec& spec : state) {
    if (spec.in_place) return spec.axes[2] > 0 ? std::optional(spec.axes[2]) : std::nullopt;
  }
  return 0;
}

bool Contract::attention() const {
  return std::any_of(results.begin(), results.end(),
                     [](const TensorSpec& spec) { return spec.name == "attention"; });
}

bool Contract::marks() const {
  return std::any_of(request.begin(), request.end(),
                     [](const TensorSpec& spec) { return spec.name == kMarkedTokens; });
}

Specs Contract::caches() const {
  Specs specs;
  std::copy_if(state.begin(), state.end(), std::back_inserter(specs),
               [](const TensorSpec& spec) { return spec.in_place; });
  return specs;
}

Specs Contract::step_inputs() const {
  Specs specs = encoder_outputs;
  append(specs, request);
  append(specs, state);
  return specs;
}

Specs Contract::step_outputs() const {
  Specs specs = results;
  for (const TensorSpec& spec : state) specs.push_back({kNext + spec.name, spec.type, spec.axes});
  return specs;
}

std::int64_t Contract::choices(std::int64_t vocabulary_size) const {
  return shortlist ? shortlist->always : vocabulary_size;
}

Sizes Contract::with_source(Sizes sizes, std::int64_t source_size) const {
  sizes.s = source_size;
  sizes.w = shortlist ? shortlist->width(source_size) : 0;
  return sizes;
}

}  // namespace translate_trt::runtime
