#include "cuda/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/fields.h"
#include "engines/device.h"

namespace translate_trt::runtime {

namespace {

// Limits of numbers in a plan, with which the bytes of a batch of matrices fit in 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 30, kMostMatrices = std::int64_t{1} << 20;
constexpr std::int64_t kLargestStep = std::int64_t{1} << 40;
// Limits of CUDA.
constexpr std::int64_t kMostThreads = 1024, kMostShared = 1 << 20;
constexpr std::int64_t kMostBlocks[] = {std::numeric_limits<std::int32_t>::max(), 65535, 65535};
// Parameters that Triton adds to those of the plan.
constexpr std::size_t kScratchPointers = 2;

struct ParameterType {
  std::string_view name;
  std::size_t size;  // of a number, or of what a pointer points to
};

constexpr ParameterType kTypes[] = {{"i1", 1},  {"i8", 1},   {"u8", 1},   {"i16", 2}, {"i32", 4},
                                    {"i64", 8}, {"fp16", 2}, {"bf16", 2}, {"fp32", 4}};

auto key_of(const Matmul& matmul) {
  const auto matrix = [](const Matmul::Matrix& one) {
    return std::tuple(one.stride, one.step, one.transposed, one.alignment);
  };
  return std::tuple(matmul.rows, matmul.columns, matmul.inner, matmul.batch, matrix(matmul.a),
                    matrix(matmul.b), matrix(matmul.out), matmul.type, matmul.out_type,
                    matmul.has_bias, matmul.relu, matmul.bias_alignment);
}

std::uint32_t alignment_of(const PlanValue& address) {
  const std::uint64_t bits = address.value | kAlignment;  // all bases are aligned
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

std::int64_t integer(const Fields& fields, const std::string& name, std::int64_t smallest,
                     std::int64_t largest) {
  const std::int64_t value = fields.integer(name, smallest);
  if (value > largest) fields.fail(name, "at most " + std::to_string(largest), fields.get(name));
  return value;
}

// ---- kernels ----

const ParameterType* type_of(std::string_view name) {
  if (name.substr(0, 1) == "*") name.remove_prefix(1);
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const ParameterType& type) { return type.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

PlanKernel read_kernel(const Fields& fields, const SafeTensors& weights) {
  PlanKernel kernel;
  kernel.entry = fields.text("entry");
  for (const std::string& name : fields.texts("parameters")) {
    const bool is_pointer = name.substr(0, 1) == "*";
    if (type_of(name) == nullptr || (!is_pointer && name != "i32" && name != "i64")) {
      fields.fail("parameters", "of i32, i64 and pointers such as *fp16", Json(name));
    }
    kernel.parameters.push_back({is_pointer, type_of(name)->size});
  }
  const std::size_t count = kernel.parameters.size();
  if (count < kScratchPointers || !kernel.parameters[count - 1].is_pointer ||
      !kernel.parameters[count - 2].is_pointer) {
    fields.fail("parameters", "a list that ends with two pointers", fields.get("parameters"));
  }
  kernel.threads = static_cast<unsigned int>(integer(fields, "threads", 1, kMostThreads));
  kernel.dependent = fields.values().contains("dependent") && fields.boolean("dependent");
  for (const auto& [capability, cubin] : fields.object("cubins").objects(true)) {
    if (capability.size() < 2 || capability.size() > 3 ||
        capability.find_first_not_of("0123456789") != std::string::npos) {
      fields.fail("cubins", "by compute capability, such as 90 for 9.0", Json(capability));
    }
    const std::string& tensor = cubin.text("tensor");
    if (weights.at(tensor).type != "U8") cubin.fail("tensor", "of type U8", Json(tensor));
    const auto shared = static_cast<unsigned int>(integer(cubin, "shared", 0, kMostShared));
    kernel.cubins[std::stoi(capability)] = {tensor, shared};
  }
  return kernel;
}

// ---- launches ----

class LaunchReader {
 public:
  LaunchReader(Plan& plan, const SafeTensors& weights, WeightBlock& block)
      : plan_(plan), weights_(weights), block_(block) {}

  // Sets the memory that launches may use. tensors: bytes of each of the plan.
  void begin_profile(std::vector<std::uint64_t> tensors, std::uint64_t arena) {
    tensors_ = std::move(tensors);
    arena_ = arena;
  }

  PlanLaunch read(const Fields& fields) {
    const Json& values = fields.values();
    if (values.contains("kernel")) return kernel(fields);
    if (values.contains("matmul")) return matmul(fields.object("matmul"));
    if (values.contains("copy")) {
      const Fields copy = fields.object("copy");
      const auto bytes = static_cast<std::uint64_t>(copy.integer("bytes", 1));
      return CopyLaunch{address(copy, "target", bytes, 1, true), address(copy, "source", bytes, 1),
                        bytes};
    }
    const Fields fill = fields.object("fill");
    const auto bytes = static_cast<std::uint64_t>(fill.integer("bytes", 1));
    return FillLaunch{address(fill, "target", bytes, 1, true),
                      static_cast<int>(integer(fill, "value", 0, 255)), bytes};
  }

 private:
  PlanValue address(const Fields& fields, const std::string& name, std::uint64_t bytes,
                    std::size_t unit, bool is_written = false) {
    return address(fields, name, fields.get(name), bytes, unit, is_written);
  }

  // Reads an address that is followed by so many bytes. unit: it is a multiple of that.
  PlanValue address(const Fields& fields, const std::string& name, const Json& item,
                    std::uint64_t bytes, std::size_t unit, bool is_written) {
    const bool is_list = item.is_array() && !item.empty();
    const bool has_name = is_list && item.size() == 3 && item[1].is_string();
    PlanValue found;
    std::uint64_t size = 0;
    if (is_list && item.size() == 2 && item[0] == "arena") {
      found.base = PlanValue::kArena;
      size = arena_;
    } else if (has_name && item[0] == "weight" && !is_written) {
      found = {PlanValue::kWeights, place(item[1].get<std::string>())};
      size = weights_.at(item[1].get<std::string>()).bytes.size();
    } else if (has_name && item[0] == "tensor") {
      const auto& all = plan_.tensors;
      const auto tensor = std::find(all.begin(), all.end(), item[1].get<std::string>());
      if (tensor == all.end()) fields.fail(name, "a tensor of the graph", item);
      const auto index = static_cast<std::size_t>(tensor - all.begin());
      found.base = PlanValue::kTensors + static_cast<std::uint32_t>(index);
      size = tensors_[index];
    } else {
      fields.fail(name, is_written ? "an address in a tensor or the arena" : "an address", item);
    }
    const auto offset = static_cast<std::uint64_t>(fields.integer(name, item.back(), 0));
    const bool is_behind = offset >= size && offset > 0;  // of an empty tensor, 0 is permitted
    if (is_behind || bytes > size - offset || offset % unit != 0) {
      fields.fail(name,
                  "an address of " + std::to_string(std::max<std::uint64_t>(1, bytes)) +
                      " bytes among " + std::to_string(size) + ", in units of " +
                      std::to_string(unit),
                  item);
    }
    found.value += offset;
    return found;
  }

  std::uint64_t place(const std::string& weight) {
    const std::size_t size = weights_.at(weight).bytes.size();
    const auto [found, is_new] = block_.offsets.emplace(weight, block_.size);
    if (is_new) block_.size += (size + kAlignment - 1) / kAlignment * kAlignment;
    return found->second;
  }

  KernelLaunch kernel(const Fields& fields) {
    KernelLaunch launch = {};
    const auto count = static_cast<std::int64_t>(plan_.kernels.size());
    launch.kernel = static_cast<std::size_t>(integer(fields, "kernel", 0, count - 1));
    const std::vector<std::int64_t> grid = fields.integers("grid", 1);
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (grid.size() != 3 || grid[axis] > kMostBlocks[axis]) {
        fields.fail("grid", "three numbers of blocks", fields.get("grid"));
      }
      launch.grid[axis] = static_cast<unsigned int>(grid[axis]);
    }
    const auto& parameters = plan_.kernels[launch.kernel].parameters;
    const Json& arguments = fields.get("arguments");
    if (!arguments.is_array() || arguments.size() + kScratchPointers != parameters.size()) {
      fields.fail("arguments",
                  "a list of " + std::to_string(parameters.size() - kScratchPointers) +
                      " for the kernel's parameters",
                  arguments);
    }
    for (const Json& item : arguments) {
      const PlanKernel::Parameter& parameter = parameters[launch.arguments.size()];
      if (parameter.is_pointer) {
        launch.arguments.push_back(address(fields, "arguments", item, 0, parameter.size, false));
        continue;
      }
      const std::int64_t value =
          fields.integer("arguments", item, std::numeric_limits<std::int64_t>::min());
      if (parameter.size == sizeof(std::int32_t) && value != static_cast<std::int32_t>(value)) {
        fields.fail("arguments", "a number of 32 bits", item);
      }
      launch.arguments.push_back({PlanValue::kNumber, static_cast<std::uint64_t>(value)});
    }
    return launch;
  }

  // Reads a matrix and checks that its address is followed by all of it.
  PlanValue matrix(const Fields& fields, const std::string& name, std::int64_t rows,
                   std::int64_t columns, std::int64_t batch, Type type, Matmul::Matrix& made) {
    const bool is_written = name == "out";
    made.transposed = !is_written && fields.boolean(name + "_transposed");
    if (made.transposed) std::swap(rows, columns);
    made.stride = integer(fields, name + "_stride", columns, kLargest);
    const std::int64_t extent = (rows - 1) * made.stride + columns;
    const bool is_apart = is_written && batch > 1;
    made.step = integer(fields, name + "_step", is_apart ? extent : 0, kLargestStep);
    const std::int64_t elements = (batch - 1) * made.step + extent;
    const PlanValue found =
        address(fields, name, static_cast<std::uint64_t>(elements) * size_of(type), size_of(type),
                is_written);
    made.alignment = alignment_of(found);
    return found;
  }

  MatmulLaunch matmul(const Fields& fields) {
    const auto type_of = [&](const char* name) {
      const std::string& value = fields.text(name);
      if (value == "fp16") return Type::kFloat16;
      if (value == "bf16") return Type::kBFloat16;
      if (value != "fp32") fields.fail(name, "fp16, bf16 or fp32", Json(value));
      return Type::kFloat32;
    };
    Matmul made = {};
    made.rows = integer(fields, "rows", 1, kLargest);
    made.columns = integer(fields, "columns", 1, kLargest);
    made.inner = integer(fields, "inner", 1, kLargest);
    made.batch = integer(fields, "batch", 1, kMostMatrices);
    made.type = type_of("type");
    made.out_type = type_of("out_type");
    made.relu = fields.boolean("relu");
    made.has_bias = !fields.is_null("bias");
    MatmulLaunch launch;
    launch.a = matrix(fields, "a", made.rows, made.inner, made.batch, made.type, made.a);
    launch.b = matrix(fields, "b", made.inner, made.columns, made.batch, made.type, made.b);
    launch.out =
        matrix(fields, "out", made.rows, made.columns, made.batch, made.out_type, made.out);
    if (made.has_bias) {
      const std::size_t size = size_of(made.out_type);
      launch.bias = address(fields, "bias", static_cast<std::uint64_t>(made.columns) * size, size);
      made.bias_alignment = alignment_of(launch.bias);
    }
    auto& all = plan_.matmuls;
    const auto known = std::find(all.begin(), all.end(), made);
    launch.matmul = static_cast<std::size_t>(known - all.begin());
    if (known == all.end()) all.push_back(made);
    return launch;
  }

  Plan& plan_;
  const SafeTensors& weights_;
  WeightBlock& block_;
  std::vector<std::uint64_t> tensors_;
  std::uint64_t arena_ = 0;
};

// ---- profiles ----

// Checks that a profile of the plan has these sizes.
void check_sizes(const Fields& fields, const Sizes& sizes) {
  for (const auto& [name, size] : {std::pair{"N", sizes.n}, {"S", sizes.s}, {"P", sizes.p}}) {
    if (size == 0 || fields.integer(name, 0) == size) continue;
    fields.fail(name, std::to_string(size) + ", as in the manifest", fields.get(name));
  }
}

std::vector<std::uint64_t> bytes_of(const Specs& specs, const Sizes& sizes) {
  std::vector<std::uint64_t> all;
  for (const TensorSpec& spec : specs) {
    std::uint64_t bytes = size_of(spec.type);
    for (const std::int64_t axis : spec.sized(sizes)) {
      const auto count = static_cast<std::uint64_t>(axis);
      if (count > 0 && bytes > static_cast<std::uint64_t>(kLargestStep) / count) {
        throw bundle_error("the tensor " + in_quotes(spec.name) +
                           " of the manifest is too large. " + kRemedy);
      }
      bytes *= count;
    }
    all.push_back(bytes);
  }
  return all;
}

}  // namespace

bool operator==(const Matmul& left, const Matmul& right) { return key_of(left) == key_of(right); }

Plan read_plan(const std::filesystem::path& path, const Specs& inputs, const Specs& outputs,
               const Profiles& profiles, std::int64_t beams, const SafeTensors& weights,
               WeightBlock& block) {
  const Json content = parse_json(std::string(map_file(path)->bytes()), path);
  const Fields fields(content, path);
  const std::string format = std::to_string(fields.integer("format", 1));
  if (format != kPlanFormat) {
    throw bundle_error(path.u8string() + " is a plan of format " + format +
                       ", this libtranslate_trt reads " + kPlanFormat +
                       ". Export the model again, or upgrade the library.");
  }
  Specs specs = inputs;
  specs.insert(specs.end(), outputs.begin(), outputs.end());
  Plan plan;
  for (const TensorSpec& spec : specs) plan.tensors.push_back(spec.name);
  for (const Fields& kernel : fields.list("kernels")) {
    plan.kernels.push_back(read_kernel(kernel, weights));
  }
  const std::vector<Fields> all = fields.list("profiles");
  if (all.size() != profiles.size()) {
    fields.fail("profiles", "the " + std::to_string(profiles.size()) + " of the manifest",
                Json(all.size()));
  }
  LaunchReader reader(plan, weights, block);
  for (std::size_t index = 0; index < all.size(); ++index) {
    const Profile& profile = profiles[index];
    Sizes sizes;
    sizes.n = profile.batch, sizes.k = beams, sizes.s = profile.source_length;
    sizes.p = profile.slots;
    if (!profile.changes.empty()) {
      throw bundle_error(
          "plans do not have the inputs of all options; export the target without "
          "--all-options.");
    }
    check_sizes(all[index].object("sizes"), sizes);
    const auto arena = static_cast<std::uint64_t>(integer(all[index], "arena", 0, kLargestStep));
    plan.arena = std::max(plan.arena, arena);
    reader.begin_profile(bytes_of(specs, sizes), arena);
    auto& launches = plan.profiles.emplace_back();
    for (const Fields& launch : all[index].list("launches")) {
      launches.push_back(reader.read(launch));
    }
  }
  return plan;
}

}  // namespace translate_trt::runtime
