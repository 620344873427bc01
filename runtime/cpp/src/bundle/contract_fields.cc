#include "bundle/contract_fields.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

template <class T>
using Named = std::vector<std::pair<std::string, T>>;

const Named<Type>& types() {
  static const Named<Type> all = {{"int64", Type::kInt64},
                                  {"bool", Type::kBool},
                                  {"float32", Type::kFloat32},
                                  {"float16", Type::kFloat16},
                                  {"bfloat16", Type::kBFloat16}};
  return all;
}

const Named<Initial>& initials() {
  static const Named<Initial> all = {{"zeros", Initial::kZeros},
                                     {"start_token", Initial::kStartToken},
                                     {"masked", Initial::kMasked},
                                     {"minus_infinity", Initial::kMinusInfinity},
                                     {"first_lives", Initial::kFirstLives},
                                     {"ascending", Initial::kAscending}};
  return all;
}

constexpr std::array<std::pair<char, Letter>, 9> kLetters = {{{'N', kN},
                                                              {'K', kK},
                                                              {'S', kS},
                                                              {'P', kP},
                                                              {'W', kW},
                                                              {'B', kB},
                                                              {'R', kR},
                                                              {'U', kU},
                                                              {'D', kD}}};

template <class T>
T choice(const Fields& fields, const std::string& field, const Named<T>& choices) {
  const std::string& value = fields.text(field);
  std::vector<std::string> names;
  for (const auto& [name, one] : choices) {
    if (name == value) return one;
    names.push_back(name);
  }
  fields.fail(field, "one of " + join(names, ", "), Json(value));
}

std::vector<std::int64_t> read_axes(const Fields& fields) {
  const Json& value = fields.get("axes");
  if (!value.is_array() || value.empty()) {
    fields.fail("axes", "a list of sizes and of N, K, S, P, W, B, R", value);
  }
  std::vector<std::int64_t> axes;
  for (const Json& item : value) {
    const std::string text = item.is_string() ? item.get<std::string>() : "";
    const auto letter = std::find_if(kLetters.begin(), kLetters.end(), [&](const auto& one) {
      return text == std::string(1, one.first);
    });
    axes.push_back(letter == kLetters.end() ? fields.integer("axes", item, 1) : letter->second);
  }
  return axes;
}

std::string axis_name(std::int64_t axis) {
  for (const auto& [name, letter] : kLetters) {
    if (axis == letter) return std::string(1, name);
  }
  return std::to_string(axis);
}

std::string type_name(Type type) {
  for (const auto& [name, one] : types()) {
    if (one == type) return name;
  }
  return "";
}

// Formats a tensor as in "float32 [N, 1, 1, S]".
std::string described(Type type, const std::vector<std::int64_t>& axes) {
  std::vector<std::string> names;
  for (const std::int64_t axis : axes) names.push_back(axis_name(axis));
  return type_name(type) + " [" + join(names, ", ") + "]";
}

std::string described(const TensorSpec& spec) { return described(spec.type, spec.axes); }

// The element type that an initial value requires; zeros have any type.
Type type_of(Initial initial, Type any) {
  switch (initial) {
    case Initial::kZeros:
      return any;
    case Initial::kStartToken:
    case Initial::kAscending:
      return Type::kInt64;
    case Initial::kMasked:
    case Initial::kMinusInfinity:
    case Initial::kFirstLives:
      return Type::kFloat32;
  }
  return any;
}

Specs read_specs(const Fields& group, bool is_state) {
  Specs specs;
  for (const auto& [name, fields] : group.objects()) {
    TensorSpec spec = {name, choice(fields, "dtype", types()), read_axes(fields)};
    if (is_state) {
      spec.initial = choice(fields, "initial", initials());
      if (type_of(spec.initial, spec.type) != spec.type) {
        fields.fail("initial", "a value of " + type_name(spec.type), fields.get("initial"));
      }
      spec.in_place = fields.boolean("in_place");
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

const TensorSpec* find(const Specs& specs, const std::string& name) {
  const auto found = std::find_if(specs.begin(), specs.end(),
                                  [&](const TensorSpec& spec) { return spec.name == name; });
  return found == specs.end() ? nullptr : &*found;
}

// The size of an axis of a required tensor: a number, or the given letter.
std::int64_t size_of_axis(const Fields& group, const Specs& specs, const char* name,
                          std::size_t axis, Letter letter) {
  const Fields fields = group.object(name);
  const auto& axes = find(specs, name)->axes;
  if (axis >= axes.size() || (axes[axis] < 0 && axes[axis] != letter)) {
    fields.fail("axes", "axes of which number " + std::to_string(axis) + " is " + axis_name(letter),
                fields.get("axes"));
  }
  return axes[axis];
}

std::vector<std::int64_t> letters_of(const TensorSpec& spec) {
  std::vector<std::int64_t> letters;
  std::copy_if(spec.axes.begin(), spec.axes.end(), std::back_inserter(letters),
               [](std::int64_t axis) { return axis < 0; });
  return letters;
}

// Number of slots of the caches, or kP; 0 without caches.
std::int64_t slots_of_caches(const Specs& state) {
  std::int64_t slots = 0;
  for (const TensorSpec& spec : state) {
    if (!spec.in_place) continue;
    if (spec.axes.size() > 2) return spec.axes[2];
    slots = kP;  // a cache of wrong axes, which is refused later
  }
  return slots;
}

using Axes = std::vector<std::int64_t>;

bool is_of_source(const TensorSpec& spec) {
  return spec.axes[0] == kN && letters_of(spec) == Axes({kN, kS});
}

// Whether a tensor is a cache [N, H, P, D], or has one entry per sentence or beam.
bool is_state(const TensorSpec& spec, std::int64_t slots) {
  const Axes letters = letters_of(spec);
  if (spec.axes[0] != kN) return false;
  if (!spec.in_place) return letters == Axes({kN}) || letters == Axes({kN, kK});
  return spec.axes.size() == 4 && spec.axes[2] == slots &&
         (letters == Axes({kN}) || letters == Axes({kN, kP}));
}

// Checks that a group has the tensors that the host uses, and no others that accepts(spec) rejects.
template <class Accepts>
void check(const Fields& group, const Specs& specs, const Specs& required, const Accepts& accepts) {
  for (const TensorSpec& wanted : required) {
    group.object(wanted.name);  // throws if it is missing
    const TensorSpec& found = *find(specs, wanted.name);
    if (described(found) != described(wanted)) {
      group.fail(wanted.name, described(wanted), Json(described(found)));
    }
    if (found.in_place) {
      group.fail(wanted.name, "a tensor that is not changed in place", Json(described(found)));
    }
  }
  for (const TensorSpec& spec : specs) {
    if (find(required, spec.name) == nullptr && !accepts(spec)) {
      group.fail(spec.name, "a tensor that this version knows", Json(described(spec)));
    }
  }
}

}  // namespace

Contract read_contract(const Fields& fields) {
  Contract contract;
  if (!fields.is_null("shortlist")) {
    const Fields sizes = fields.object("shortlist");
    contract.shortlist = ShortlistSize{sizes.integer("always", 1), sizes.integer("each", 1)};
  }
  const Fields inputs = fields.object("encoder_inputs"), outputs = fields.object("encoder_outputs"),
               request = fields.object("request"), state = fields.object("state"),
               results = fields.object("results");
  contract.encoder_inputs = read_specs(inputs, false);
  contract.encoder_outputs = read_specs(outputs, false);
  contract.request = read_specs(request, false);
  contract.state = read_specs(state, true);
  contract.results = read_specs(results, false);
  const std::int64_t k = size_of_axis(state, contract.state, "tokens", 1, kK);
  const std::int64_t capacity = slots_of_caches(contract.state);
  Specs of_outputs = {{"source_bias", Type::kFloat32, {kN, 1, 1, kS}}};
  Specs of_state = {{"tokens", Type::kInt64, {kN, k}},
                    {"log_probs", Type::kFloat32, {kN, k}},
                    {"positions", Type::kInt64, {kN}},
                    {"done", Type::kBool, {kN}},
                    {"finished_scores", Type::kFloat32, {kN, k}},
                    {"finished_lengths", Type::kInt64, {kN, k}},
                    {"finished_parents", Type::kInt64, {kN, k}},
                    {"finished_truncated", Type::kBool, {kN, k}}};
  Specs of_results = {{"parents", Type::kInt64, {kN, k}}};
  if (capacity != 0) of_state.push_back({"ancestry", Type::kFloat32, {kN, k, kP}});
  if (capacity == kP) {
    of_state.push_back({"slots", Type::kInt64, {kN, k}});
    of_results.push_back({"full", Type::kBool, {kN}});
  }
  if (contract.attention()) of_results.push_back({"attention", Type::kFloat32, {kN, k, kS}});
  if (contract.shortlist) of_outputs.push_back({"shortlist", Type::kInt64, {kN, kW}});
  const auto nothing = [](const TensorSpec&) { return false; };
  check(inputs, contract.encoder_inputs,
        {{"source_ids", Type::kInt64, {kN, kS}}, {"source_lengths", Type::kInt64, {kN}}}, nothing);
  check(outputs, contract.encoder_outputs, of_outputs, is_of_source);
  Specs of_request = {
      {"forced_tokens", Type::kInt64, {kN}},         {"min_lengths", Type::kInt64, {kN}},
      {"max_lengths", Type::kInt64, {kN}},           {"length_penalty_alpha", Type::kFloat32, {kN}},
      {"length_penalty_beta", Type::kFloat32, {kN}}, {"early_stopping", Type::kBool, {kN}}};
  constexpr const char* kOfChanges[] = {
      kMarkedTokens, kMarkedFactors, kSamplingNoise,    kSamplingTemperature, kSamplingTopP,
      kTailTokens,   kTailNoise,     kConstraintTokens, kConstraintProgress,  kOtherProgress};
  if (std::any_of(std::begin(kOfChanges), std::end(kOfChanges),
                  [&](const char* name) { return find(contract.request, name) != nullptr; })) {
    const std::int64_t b = size_of_axis(request, contract.request, kMarkedTokens, 2, kB);
    const std::int64_t r = size_of_axis(request, contract.request, kSamplingNoise, 1, kR);
    const std::int64_t d = size_of_axis(request, contract.request, kTailTokens, 1, kD);
    const std::int64_t u = size_of_axis(request, contract.request, kConstraintTokens, 1, kU);
    of_request.push_back({kMarkedTokens, Type::kInt64, {kN, k, b}});
    of_request.push_back({kMarkedFactors, Type::kFloat32, {kN, k, b}});
    of_request.push_back({kSamplingNoise, Type::kFloat32, {kN, r}});
    of_request.push_back({kSamplingTemperature, Type::kFloat32, {kN}});
    of_request.push_back({kSamplingTopP, Type::kFloat32, {kN}});
    of_request.push_back({kTailTokens, Type::kInt64, {kN, d}});
    of_request.push_back({kTailNoise, Type::kFloat32, {kN, d}});
    of_request.push_back({kConstraintTokens, Type::kInt64, {kN, u}});
    of_request.push_back({kConstraintProgress, Type::kInt64, {kN, k, u}});
    of_request.push_back({kOtherProgress, Type::kInt64, {kN, k}});
  }
  check(request, contract.request, of_request, nothing);
  check(state, contract.state, of_state,
        [&](const TensorSpec& spec) { return is_state(spec, capacity); });
  check(results, contract.results, of_results, nothing);
  for (const TensorSpec& spec : contract.encoder_outputs) {
    if (find(contract.state, spec.name) != nullptr) {
      fields.fail("state", "tensors of other names than the encoder's", Json(spec.name));
    }
  }
  return contract;
}

}  // namespace translate_trt::runtime
