#include "contract.h"

namespace translate_trt::runtime {

namespace {

void append(Specs& specs, const Specs& more) {
  specs.insert(specs.end(), more.begin(), more.end());
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

std::optional<Type> cache_type_named(const std::string& name) {
  if (name == "float32") return Type::kFloat32;
  if (name == "float16") return Type::kFloat16;
  if (name == "bfloat16") return Type::kBFloat16;
  return std::nullopt;
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
    default:
      return axis;
  }
}

std::vector<std::int64_t> TensorSpec::sized(const Sizes& sizes) const {
  std::vector<std::int64_t> shape;
  for (const auto axis : axes) shape.push_back(sizes.of(axis));
  return shape;
}

std::int64_t GraphForm::choices(std::int64_t vocabulary_size) const {
  return shortlist ? shortlist->always : vocabulary_size;
}

Sizes GraphForm::with_source(Sizes sizes, std::int64_t source_size) const {
  sizes.s = source_size;
  sizes.w = shortlist ? shortlist->places(source_size) : 0;
  return sizes;
}

Specs GraphShape::encoder_inputs() const {
  return {{"source_ids", Type::kInt64, {kN, kS}}, {"source_lengths", Type::kInt64, {kN}}};
}

Specs GraphShape::encoder_outputs() const {
  Specs specs = {{"source_bias", Type::kFloat32, {kN, 1, 1, kS}}};
  if (form.shortlist) specs.push_back({"shortlist", Type::kInt64, {kN, kW}});
  for (std::int64_t layer = 0; layer < decoder_layers; ++layer) {
    const std::string number = std::to_string(layer);
    specs.push_back({"cross_key_" + number, form.cache_type, {kN, heads, kS, key_size}});
    specs.push_back({"cross_value_" + number, form.cache_type, {kN, heads, kS, value_size}});
  }
  return specs;
}

Specs GraphShape::request() const {
  return {
      {"forced_tokens", Type::kInt64, {kN}},         {"min_lengths", Type::kInt64, {kN}},
      {"max_lengths", Type::kInt64, {kN}},           {"length_penalty_alpha", Type::kFloat32, {kN}},
      {"length_penalty_beta", Type::kFloat32, {kN}}, {"early_stopping", Type::kBool, {kN}}};
}

Specs GraphShape::caches() const {
  const std::int64_t p = form.slots.value_or(kP);
  Specs specs;
  for (std::int64_t layer = 0; layer < decoder_layers; ++layer) {
    const std::string number = std::to_string(layer);
    specs.push_back({"self_key_" + number, form.cache_type, {kN, heads, p, key_size}});
    specs.push_back({"self_value_" + number, form.cache_type, {kN, heads, p, value_size}});
  }
  return specs;
}

Specs GraphShape::state() const {
  const std::int64_t k = form.beams.value_or(kK), p = form.slots.value_or(kP);
  Specs specs = {{"tokens", Type::kInt64, {kN, k}},
                 {"log_probs", Type::kFloat32, {kN, k}},
                 {"positions", Type::kInt64, {kN}},
                 {"done", Type::kBool, {kN}},
                 {"finished_scores", Type::kFloat32, {kN, k}},
                 {"finished_lengths", Type::kInt64, {kN, k}},
                 {"finished_parents", Type::kInt64, {kN, k}},
                 {"finished_truncated", Type::kBool, {kN, k}},
                 {"ancestry", Type::kFloat32, {kN, k, p}}};
  if (!form.slots) specs.push_back({"slots", Type::kInt64, {kN, k}});
  append(specs, caches());
  return specs;
}

Specs GraphShape::step_inputs() const {
  Specs specs = encoder_outputs();
  append(specs, request());
  append(specs, state());
  return specs;
}

Specs GraphShape::step_outputs() const {
  const std::int64_t k = form.beams.value_or(kK);
  Specs specs = {{"parents", Type::kInt64, {kN, k}}};
  for (const TensorSpec& spec : state()) specs.push_back({kNext + spec.name, spec.type, spec.axes});
  if (!form.slots) specs.push_back({"full", Type::kBool, {kN}});
  if (attention) specs.push_back({"attention", Type::kFloat32, {kN, k, kS}});
  return specs;
}

}  // namespace translate_trt::runtime
