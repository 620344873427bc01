#include "bundle/contract_fields.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
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

// A tensor that the host uses, as runtime/interface/tensors.py declares it.
struct Declared {
  const char *group, *name;
  Type type;
  const char *axes, *when;
};

// ---- letters, made by scripts/declare.py ----
constexpr const char* kLetters = "NKSPWBRUD";
constexpr const char* kStatic = "KBRUD";
// ---- end ----

constexpr Declared kTensors[] = {
#include "bundle/tensors.inc"
};

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
    fields.fail("axes", std::string("a list of sizes and of letters of ") + kLetters, value);
  }
  std::vector<std::int64_t> axes;
  for (const Json& item : value) {
    const std::string text = item.is_string() ? item.get<std::string>() : "";
    const bool is_letter = text.size() == 1 && std::strchr(kLetters, text[0]) != nullptr;
    axes.push_back(is_letter ? -text[0] : fields.integer("axes", item, 1));
  }
  return axes;
}

std::string axis_name(std::int64_t axis) {
  return axis < 0 ? std::string(1, static_cast<char>(-axis)) : std::to_string(axis);
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

// What the conditions of the table depend on.
struct Conditions {
  bool shortlist, marks, attention;
  std::int64_t slots;

  bool hold(const std::string& when) const {
    return when.empty() || (when == "shortlist" && shortlist) || (when == "marks" && marks) ||
           (when == "attention" && attention) || (when == "caches" && slots != 0) ||
           (when == "free_slots" && slots == kP);
  }
};

// The axes of a declared tensor. Where a target may have a size of its own in place of a letter,
// that of the first tensor with the letter is the size of all.
Axes declared_axes(const Declared& declared, const Axes& found,
                   std::map<char, std::int64_t>& sizes) {
  Axes axes;
  std::istringstream words(declared.axes);
  for (std::string word; words >> word;) {
    const std::size_t i = axes.size();
    const char letter = word[0];
    std::int64_t axis = letter == '1' ? 1 : -letter;
    if (std::strchr(kStatic, letter) != nullptr) {
      if (i < found.size() && (found[i] > 0 || found[i] == axis)) sizes.emplace(letter, found[i]);
      if (sizes.count(letter) != 0) axis = sizes[letter];
    }
    axes.push_back(axis);
  }
  return axes;
}

// Checks that a group has the tensors that the host uses, and no others that accepts(spec) rejects.
template <class Accepts>
void check(const Fields& contract, const char* name, const Specs& specs,
           const Conditions& conditions, std::map<char, std::int64_t>& sizes,
           const Accepts& accepts) {
  const Fields group = contract.object(name);
  std::set<std::string> known;
  for (const Declared& declared : kTensors) {
    if (declared.group != std::string(name) || !conditions.hold(declared.when)) continue;
    known.insert(declared.name);
    group.object(declared.name);  // throws if it is missing
    const TensorSpec& found = *find(specs, declared.name);
    const auto wanted = described(declared.type, declared_axes(declared, found.axes, sizes));
    if (described(found) != wanted) group.fail(declared.name, wanted, Json(described(found)));
    if (found.in_place) {
      group.fail(declared.name, "a tensor that is not changed in place", Json(described(found)));
    }
  }
  for (const TensorSpec& spec : specs) {
    if (known.count(spec.name) == 0 && !accepts(spec)) {
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
  contract.encoder_inputs = read_specs(fields.object("encoder_inputs"), false);
  contract.encoder_outputs = read_specs(fields.object("encoder_outputs"), false);
  contract.request = read_specs(fields.object("request"), false);
  contract.state = read_specs(fields.object("state"), true);
  contract.results = read_specs(fields.object("results"), false);
  const std::int64_t slots = slots_of_caches(contract.state);
  const bool marks = std::any_of(std::begin(kTensors), std::end(kTensors), [&](const auto& one) {
    return std::string(one.when) == "marks" && find(contract.request, one.name) != nullptr;
  });
  const Conditions given = {contract.shortlist.has_value(), marks, contract.attention(), slots};
  std::map<char, std::int64_t> sizes;
  const auto nothing = [](const TensorSpec&) { return false; };
  check(fields, "encoder_inputs", contract.encoder_inputs, given, sizes, nothing);
  check(fields, "encoder_outputs", contract.encoder_outputs, given, sizes, is_of_source);
  check(fields, "request", contract.request, given, sizes, nothing);
  check(fields, "state", contract.state, given, sizes,
        [&](const TensorSpec& spec) { return is_state(spec, slots); });
  check(fields, "results", contract.results, given, sizes, nothing);
  for (const TensorSpec& spec : contract.encoder_outputs) {
    if (find(contract.state, spec.name) != nullptr) {
      fields.fail("state", "tensors of other names than the encoder's", Json(spec.name));
    }
  }
  return contract;
}

}  // namespace translate_trt::runtime
