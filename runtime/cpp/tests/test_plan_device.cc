// Targets of the backend `cuda`: plans of tracing graphs, on the fake driver and cuBLASLt.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/settings.h"
#include "base/errors.h"
#include "bundle/safetensors.h"
#include "check.h"
#include "cuda/cublaslt.h"
#include "cuda/cuda_queue.h"
#include "engine_bundle.h"
#include "engines/device_batch.h"
#include "engines/engine_loader.h"
#include "gpu_fixture.h"
#include "numbers.h"
#include "translate_trt/translate_trt.hpp"

namespace translate_trt::runtime {

namespace {

// ---- files ----

// A tensor of a safetensors file, whose type and shape may be wrong.
struct FileTensor {
  std::string name, type;
  Json shape;
  std::string bytes;
};

std::string safetensors(const std::vector<FileTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const FileTensor& one : tensors) {
    const std::size_t begin = data.size();
    data += one.bytes;
    header[one.name] = {
        {"dtype", one.type}, {"shape", one.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string size(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) size[i] = static_cast<char>(text.size() >> (8 * i) & 255);
  return size + text + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// fp16 of -4, -3, ..., 4.
constexpr std::uint16_t kHalves[] = {0xc400, 0xc200, 0xc000, 0xbc00, 0,
                                     0x3c00, 0x4000, 0x4200, 0x4400};

std::string halves(const std::vector<int>& values) {
  std::vector<std::uint16_t> bits;
  for (const int value : values) bits.push_back(kHalves[value + 4]);
  return bytes_of(bits);
}

// left [2, 4] times the transpose of right [3, 4], plus bias, without negative numbers.
const std::vector<float> kSums = {1.5F, 0, 11, 0, 0, 0};

std::vector<FileTensor> file_tensors() {
  std::vector<FileTensor> tensors = {
      {"left", "F16", {2, 4}, halves({1, 2, 3, 4, -1, -2, -3, -4})},
      {"right", "F16", {3, 4}, halves({1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1})},
      {"bias", "F32", {3}, bytes_of<float>({0.5F, -3, 1})}};
  for (const char* kernel : {"encode", "sums", "step"}) {
    for (const char* capability : {"80", "86", "90"}) {
      const std::string content = std::string("cubin ") + capability + " of " + kernel;
      tensors.push_back({std::string(kernel) + "." + capability, "U8", {content.size()}, content});
    }
  }
  return tensors;
}

Json kernel(const std::string& name, const Specs& tensors, std::size_t numbers, int shared = 0) {
  Json made = {{"entry", name + "_kernel"}, {"parameters", Json::array()}, {"threads", 64}};
  for (const TensorSpec& spec : tensors) {
    const std::size_t size = size_of(spec.type);
    made["parameters"].push_back(size == 8 ? "*i64" : size == 4 ? "*fp32" : "*i1");
  }
  for (std::size_t i = 0; i < numbers; ++i) made["parameters"].push_back("i32");
  for (int i = 0; i < 2; ++i) made["parameters"].push_back("*i8");
  for (const char* capability : {"80", "86", "90"}) {
    made["cubins"][capability] = {{"tensor", name + "." + capability}, {"shared", shared}};
  }
  return made;
}

Json arguments(const Specs& tensors, const std::vector<std::int64_t>& numbers) {
  Json made = Json::array();
  for (const TensorSpec& spec : tensors) made.push_back({"tensor", spec.name, 0});
  for (const std::int64_t number : numbers) made.push_back(number);
  return made;
}

Specs joined(Specs first, const Specs& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Specs encoder_tensors() {
  const Contract contract = tracing_shape();
  return joined(contract.encoder_inputs, contract.encoder_outputs);
}

Specs step_tensors() {
  const Contract contract = tracing_shape();
  return joined(contract.step_inputs(), contract.step_outputs());
}

Json encoder_plan(const Profiles& profiles = kTracedEncoder) {
  Json plan = {{"format", 1}, {"kernels", {kernel("encode", encoder_tensors(), 2)}}};
  for (const Profile& one : profiles) {
    const std::int64_t n = one.batch, s = one.source_length;
    plan["profiles"].push_back({{"sizes", {{"N", n}, {"S", s}}},
                                {"arena", 0},
                                {"launches",
                                 {{{"kernel", 0},
                                   {"grid", {n, 1, 1}},
                                   {"arguments", arguments(encoder_tensors(), {n, s})}}}}});
  }
  return plan;
}

// Every step also multiplies weights, in whose result a kernel finds kSums.
Json step_plan(const Profiles& profiles = kTracedStep) {
  const TensorSpec sums = {"", Type::kFloat32, {}};
  Json plan = {
      {"format", 1},
      {"kernels", {kernel("sums", {sums, sums}, 1, 65536), kernel("step", step_tensors(), 3)}}};
  const Json matmul = {{"rows", 2},
                       {"columns", 3},
                       {"inner", 4},
                       {"a", {"weight", "left", 0}},
                       {"b", {"weight", "right", 0}},
                       {"out", {"arena", 256}},
                       {"bias", {"weight", "bias", 0}},
                       {"relu", true},
                       {"a_stride", 4},
                       {"b_stride", 4},
                       {"out_stride", 3},
                       {"a_transposed", false},
                       {"b_transposed", true},
                       {"batch", 1},
                       {"a_step", 0},
                       {"b_step", 0},
                       {"out_step", 0},
                       {"type", "fp16"},
                       {"out_type", "fp32"}};
  for (const Profile& one : profiles) {
    const std::int64_t n = one.batch, s = one.source_length, p = one.slots;
    plan["profiles"].push_back(
        {{"sizes", {{"N", n}, {"S", s}, {"P", p}}},
         {"arena", 1024},
         {"launches",
          {{{"fill", {{"target", {"arena", 512}}, {"value", 0}, {"bytes", 64}}}},
           {{"matmul", matmul}},
           {{"copy", {{"target", {"arena", 516}}, {"source", {"arena", 256}}, {"bytes", 24}}}},
           {{"kernel", 0},
            {"grid", {1, 2, 3}},
            {"arguments", {{"arena", 516}, {"weight", "bias", 4}, -7}}},
           {{"kernel", 1},
            {"grid", {n, 1, 1}},
            {"arguments", arguments(step_tensors(), {n, s, p})}}}}});
  }
  return plan;
}

BundleTarget plan_target() {
  Json encoder = engine_record_json(), step = engine_record_json(kTracedStep);
  encoder["package"] = step["package"] = "cuda";
  encoder["version"] = step["version"] = "1";
  return {"cuda-fp32",
          "cuda",
          tracing_shape(),
          {{"encoder", encoder_plan().dump()},
           {"step", step_plan().dump()},
           {"weights", safetensors(file_tensors())}},
          {{"encoder", encoder}, {"step", step}}};
}

// ---- the machine ----

// Reads the parameters of a launch in order.
class Parameters {
 public:
  explicit Parameters(const FakeLaunch& launch) : block_(launch.parameters) {}

  template <class T>
  T next() {
    at_ = (at_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T value = {};
    if (at_ + sizeof(T) > block_.size()) throw std::runtime_error("too few parameters");
    std::memcpy(&value, block_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  // The end: Triton's two scratch pointers.
  bool ends() { return next<Address>() == 0 && next<Address>() == 0 && at_ == block_.size(); }

 private:
  std::vector<std::byte> block_;
  std::size_t at_ = 0;
};

// Runs a tracing graph with the tensors and sizes of its parameters.
template <class Trace>
FakeWork traced(const FakeLaunch& launch, const Specs& specs, const Trace& trace) {
  Parameters parameters(launch);
  TracedTensors tensors;
  for (const TensorSpec& spec : specs) tensors.addresses[spec.name] = parameters.next<Address>();
  tensors.rows = parameters.next<std::int32_t>();
  tensors.columns = parameters.next<std::int32_t>();
  if (specs.size() > encoder_tensors().size()) tensors.slots = parameters.next<std::int32_t>();
  CHECK(parameters.ends() && launch.grid_x == tensors.rows && launch.block_x == 64);
  return [=] { trace(tensors); };
}

FakeWork check_sums(const FakeLaunch& launch) {
  Parameters parameters(launch);
  const auto sums = parameters.next<Address>(), bias = parameters.next<Address>();
  CHECK(parameters.next<std::int32_t>() == -7 && parameters.ends());
  CHECK(launch.grid_x == 1 && launch.grid_y == 2 && launch.grid_z == 3 && launch.shared == 65536);
  return [=] {
    const auto* found = reinterpret_cast<const float*>(sums);
    CHECK(std::vector<float>(found, found + kSums.size()) == kSums);
    CHECK(found[-1] == 0 && *reinterpret_cast<const float*>(bias) == -3);
  };
}

// A machine whose kernels are those of the plans.
struct PlanFixture : GpuFixture {
  std::vector<std::pair<std::int64_t, std::int64_t>> encoded;  // N and S of the encoder's runs
  Settings settings;

  PlanFixture() {
    cuda.kernels["encode_kernel"] = [this](const FakeLaunch& launch) {
      return traced(launch, encoder_tensors(), [this](const TracedTensors& given) {
        encoded.emplace_back(given.rows, given.columns);
        trace_encoder(given);
      });
    };
    cuda.kernels["sums_kernel"] = check_sums;
    cuda.kernels["step_kernel"] = [](const FakeLaunch& launch) {
      return traced(launch, step_tensors(), trace_step);
    };
    settings.log = [this](const std::string& message) { messages.push_back(message); };
  }

  std::unique_ptr<Backend> load(const BundleTarget& target = plan_target()) {
    const EngineBundle bundle(target);
    return load_plans(bundle.path(), read_manifest(bundle.path()).target(std::nullopt, false),
                      settings);
  }

  std::string loading_error(const BundleTarget& target = plan_target()) {
    return thrown([&] { load(target); });
  }
};

// ---- execution ----

// The first load of the process, as a later one has cuBLASLt.
void test_a_machine_without_cublaslt() {
  PlanFixture fixture;
  set_variable("TRANSLATE_TRT_CUBLASLT", "/there/is/none.so");
  const std::string error = fixture.loading_error();
  CHECK(contains(error, "TT_BACKEND_ERROR cuBLASLt, which multiplies the matrices"));
  CHECK(contains(error, "pip install nvidia-cublas"));
  set_variable("TRANSLATE_TRT_CUBLASLT", FAKE_CUDA_DRIVER);
}

void test_a_search_on_plans() {
  PlanFixture fixture;
  const auto backend = fixture.load();
  in_a_worker([&] { search_in_all_buckets(*backend->batch(greedy(), 2)); });
  using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;
  CHECK(fixture.encoded == Shapes({{6, 48}, {6, 24}, {1, 48}}));  // exactly those of profiles
  CHECK(fixture.cuda.calls["cuGraphLaunch"] > 0 && fixture.messages.empty());
}

void test_captured_plans() {
  PlanFixture fixture;
  const auto backend = fixture.load();
  in_a_worker([&] {
    for (int i = 0; i < 2; ++i) run_steps(*backend, 5);
  });
  CHECK(fixture.cuda.calls["cuStreamBeginCapture"] == 2);  // with 8 and with 24 slots
  CHECK(fixture.cuda.calls["cuGraphLaunch"] > 5 && fixture.messages.empty());
  CHECK(fixture.cuda.calls["cublasLtMatmulAlgoGetHeuristic"] == 1);
}

void test_workers_share_weights_and_kernels() {
  PlanFixture fixture;
  const auto backend = fixture.load();
  const int modules = fixture.cuda.made["module"];
  const auto work = [&] { run_steps(*backend, 5); };
  std::thread first(work), second(work);
  first.join();
  second.join();
  CHECK(fixture.cuda.made["module"] <= modules + 2);  // the copy kernel of each queue
}

void test_translating_with_plans() {
  PlanFixture fixture;
  const EngineBundle bundle(plan_target());
  translate_trt::LoadOptions load;
  load.device = "cuda:1";
  load.workers = 2;
  load.check_hashes = false;
  const auto error = [&]() -> std::string {
    try {
      translate_trt::Translator(bundle.path(), load);
    } catch (const translate_trt::Error& refused) {
      return refused.what();
    }
    return "";
  };
  {
    const translate_trt::Translator translator(bundle.path(), load);
    translate_trt::SearchOptions search;
    search.beam_size = 1;
    search.max_length = 9;
    const auto found = translator.translate({"w5", "w7 w7 w7"}, search);
    CHECK(found[0].text().rfind("w5", 0) == 0 && found[1].text().rfind("w7", 0) == 0);
  }
  load.device = "cpu";
  CHECK(contains(error(), "this target runs on a GPU alone; choose an onnx target"));
  load.device = "cuda:7";
  CHECK(contains(error(), "there is no GPU cuda:7"));
}

// Matrices of a batch, between whose rows and themselves are elements that stay as they are.
struct Matrices {
  std::int64_t rows, columns;
  Matmul::Matrix form;
  std::vector<float> values;

  Matrices(std::int64_t of_rows, std::int64_t of_columns, std::int64_t batch, bool transposed,
           Numbers& numbers)
      : rows(of_rows), columns(of_columns) {
    const std::int64_t width = transposed ? rows : columns, height = rows + columns - width;
    form = {width + 1, height * (width + 1) + 2, transposed, 4};
    values = numbers.floats(static_cast<std::size_t>(batch * form.step));
  }

  float& at(std::int64_t batch, std::int64_t row, std::int64_t column) {
    if (form.transposed) std::swap(row, column);
    return values[static_cast<std::size_t>(batch * form.step + row * form.stride + column)];
  }
};

void multiply_in_all_forms() {
  Numbers numbers;
  CudaQueue queue(std::make_shared<CudaContext>(0));
  const auto handle = cublaslt_handle();
  const auto copied = [&](const std::vector<float>& values) {
    const Address address = queue.allocate(sizeof(float) * values.size());
    queue.copy_in(address, values.data(), sizeof(float) * values.size());
    return address;
  };
  for (int form = 0; form < 16; ++form) {
    const bool has_bias = (form & 4) != 0, relu = (form & 8) != 0;
    const std::int64_t rows = 3, columns = 5, inner = 4, batch = 1 + form % 3;
    Matrices a(rows, inner, batch, form & 1, numbers), b(inner, columns, batch, form & 2, numbers);
    Matrices out(rows, columns, batch, false, numbers);
    const std::vector<float> bias = numbers.floats(columns);
    const Matmul matmul = {rows,     columns,        inner,          batch,    a.form, b.form,
                           out.form, Type::kFloat32, Type::kFloat32, has_bias, relu,   256};
    MatmulOperation operation(matmul);
    const cublaslt::Heuristic chosen = operation.choose(handle.get(), 1 << 20);
    const Address target = copied(out.values);
    operation.run(handle.get(), chosen,
                  {copied(a.values), copied(b.values), copied(bias), target,
                   queue.allocate(chosen.workspace)},
                  queue.stream());
    std::vector<float> found(out.values.size());
    queue.copy_out(found.data(), target, sizeof(float) * found.size());
    queue.wait(queue.record());
    for (std::int64_t i = 0; i < batch * rows * columns; ++i) {
      const std::int64_t matrix = i / (rows * columns), row = i / columns % rows;
      float sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        sum += a.at(matrix, row, k) * b.at(matrix, k, i % columns);
      }
      if (has_bias) sum += bias[static_cast<std::size_t>(i % columns)];
      out.at(matrix, row, i % columns) = relu ? std::max(0.0F, sum) : sum;
    }
    CHECK(found == out.values);
  }
}

void test_matmuls_of_all_forms() {
  PlanFixture fixture;
  in_a_worker(multiply_in_all_forms);
}

// ---- GPUs ----

void test_the_cubin_of_a_gpu() {
  for (const auto& [major, minor, expected] :
       {std::tuple{8, 0, "80"}, {8, 6, "86"}, {8, 9, "86"}, {9, 0, "90"}}) {
    PlanFixture fixture;
    fixture.cuda.capability_major = major, fixture.cuda.capability_minor = minor;
    CHECK(fixture.loading_error().empty());
    int loaded = 0;
    for (const std::string& call : fixture.cuda.take_history()) {
      if (contains(call, std::string("cuModuleLoadData(cubin ") + expected)) ++loaded;
    }
    CHECK(loaded == 3);
  }
  for (const auto& [major, minor, name] :
       {std::tuple{7, 5, "7.5"}, {9, 1, "9.1"}, {10, 0, "10.0"}}) {
    PlanFixture fixture;
    fixture.cuda.capability_major = major, fixture.cuda.capability_minor = minor;
    CHECK(contains(fixture.loading_error(),
                   std::string("TT_BUNDLE_ERROR this GPU is NVIDIA A10 (compute capability ") +
                       name +
                       "), and the kernels of the target are for compute capability 8.0, "
                       "8.6, 9.0. Export the target again"));
  }
}

void test_dependent_launches_are_for_newer_gpus_after_a_kernel() {
  BundleTarget target = plan_target();
  Json step = step_plan();
  for (Json& kernel : step["kernels"]) kernel["dependent"] = true;  // the first follows a copy
  target.files["step"] = step.dump();
  for (const int major : {8, 9}) {
    PlanFixture fixture;
    fixture.cuda.capability_major = major, fixture.cuda.capability_minor = 0;
    const auto backend = fixture.load(target);
    in_a_worker([&] { run_steps(*backend, 1); });
    CHECK((fixture.cuda.calls["cuLaunchKernelEx"] > 0) == (major == 9));
    for (const std::string& call : fixture.cuda.take_history()) {
      if (contains(call, "cuLaunchKernelEx"))
        CHECK(contains(call, "step_kernel, 3, 1, 1, 64, 0, "));
      if (contains(call, "cuLaunchKernelEx")) CHECK(contains(call, ", 6=1)"));
    }
  }
}

void test_a_gpu_that_is_too_small() {
  PlanFixture fixture;
  fixture.cuda.memory = 20000;
  const auto backend = fixture.load();
  CHECK(contains(thrown([&] { backend->fitting_batches(2, 1); }), "the GPU has too little memory"));
}

void test_failures_of_the_gpu() {
  for (const auto& [function, code, message] :
       {std::tuple{"cuModuleLoadData", 200, "kernel 'encode_kernel' does not load"},
        {"cublasLtMatmulAlgoGetHeuristic", 15, "has no algorithm for a matmul of 2 x 4 x 3"},
        {"cuMemAlloc", 2, "the GPU is out of memory"}}) {
    PlanFixture fixture;
    fixture.cuda.failing[function] = code;
    CHECK(contains(fixture.loading_error(), message));
  }
}

// ---- damaged files ----

void test_damaged_plans_are_refused() {
  const auto refused = [](const std::string& role, const std::string& pointer, const Json& value,
                          const std::string& message) {
    Json plan = role == "step" ? step_plan() : encoder_plan();
    plan[Json::json_pointer(pointer)] = value;
    BundleTarget target = plan_target();
    target.files[role] = plan.dump();
    PlanFixture fixture;
    const std::string error = fixture.loading_error(target);
    CHECK(contains(error, "TT_BUNDLE_ERROR") && contains(error, message));
    if (!contains(error, message)) std::cerr << pointer << ": " << error << "\n";
  };
  const std::string first = "/profiles/0/launches/";
  refused("step", "/format", 2, "is a plan of format 2, this libtranslate_trt reads 1");
  refused("step", "/profiles", Json::array(), "'profiles' must be the 12 of the manifest, not 0");
  refused("step", "/profiles/1/sizes/P", 9, "'profiles.1.sizes.P' must be 24, as in the manifest");
  refused("encoder", "/profiles/0/sizes/S", 47, "must be 48, as in the manifest");
  refused("step", "/profiles/0/arena", -1, "whole number of at least 0");
  refused("step", "/profiles/0/arena", 539, "'profiles.0.launches.0.fill.target' must be");
  refused("step", "/kernels/0/cubins/80/tensor", "none", "has no tensor 'none'");
  refused("step", "/kernels/0/cubins/80/tensor", "left", "must be of type U8");
  refused("step", "/kernels/0/cubins", {{"sm_80", Json::object()}}, "by compute capability");
  refused("step", "/kernels/0/threads", 2048, "must be at most 1024");
  refused("step", "/kernels/0/parameters", {"*fp32", "f64", "*i8", "*i8"}, "of i32, i64 and");
  refused("step", "/kernels/0/parameters", {"i32", "*i8"}, "ends with two pointers");
  refused("step", "/kernels/0/dependent", 1, "true or false");
  refused("step", first + "0/fill/value", 256, "at most 255");
  refused("step", first + "0/fill/bytes", 513, "an address of 513 bytes among 1024");
  refused("step", first + "0/fill/target", {"weight", "left", 0}, "in a tensor or the arena");
  refused("step", first + "1/matmul/rows", 3, "'profiles.0.launches.1.matmul.a' must be");
  refused("step", first + "1/matmul/columns", 4, "matmul.b' must be");
  refused("step", first + "1/matmul/a_stride", 3, "at least 4");
  refused("step", first + "1/matmul/b_transposed", false, "matmul.b' must be");
  refused("step", first + "1/matmul/out_stride", 1 << 30, "matmul.out' must be");
  refused("step", first + "1/matmul/batch", 2,
          "matmul.out_step' must be a whole number of at least 6");
  refused("step", first + "1/matmul/batch", 1 << 21, "at most 1048576");
  refused("step", first + "1/matmul/out_type", "fp64", "must be fp16, bf16 or fp32");
  refused("step", first + "1/matmul/out", {"arena", 258}, "in units of 4");
  refused("step", first + "1/matmul/out", {"weight", "left", 0}, "in a tensor or the arena");
  refused("step", first + "1/matmul/bias", {"weight", "bias", 4}, "matmul.bias' must be");
  refused("step", first + "2/copy/source", {"arena", 1004}, "an address of 24 bytes among 1024");
  refused("step", first + "3/kernel", 2, "at most 1");
  refused("step", first + "3/grid", {1, 1}, "three numbers of blocks");
  refused("step", first + "3/grid", {1, 65536, 1}, "three numbers of blocks");
  refused("step", first + "3/arguments", Json::array({0, 0}), "a list of 3");
  refused("step", first + "3/arguments/0", 1, "must be an address");
  refused("step", first + "3/arguments/0", {"arena", 1024}, "an address of 1 bytes among 1024");
  refused("step", first + "3/arguments/0", {"arena", -4}, "at least 0");
  refused("step", first + "3/arguments/0", {"arena", 2}, "in units of 4");
  refused("step", first + "3/arguments/0", {"tensor", "none", 0}, "a tensor of the graph");
  refused("step", first + "3/arguments/0", {"tensor", "positions", 8}, "among 8");
  refused("step", first + "3/arguments/1", {"weight", "none", 0}, "has no tensor 'none'");
  refused("step", first + "3/arguments/2", std::int64_t{1} << 31, "a number of 32 bits");
  refused("step", first + "3/arguments/2", {"arena", 0}, "a whole number");
}

void test_damaged_weights_are_refused() {
  const auto refused = [](const std::string& content, const std::string& message) {
    BundleTarget target = plan_target();
    target.files["weights"] = content;
    PlanFixture fixture;
    const std::string error = fixture.loading_error(target);
    CHECK(contains(error, "TT_BUNDLE_ERROR") && contains(error, message));
    if (!contains(error, message)) std::cerr << error << "\n";
  };
  const std::string whole = safetensors(file_tensors());
  const auto changed = [](const FileTensor& other) {
    std::vector<FileTensor> tensors = file_tensors();
    tensors[0] = other;
    return safetensors(tensors);
  };
  refused("", "ends within its header");
  refused(whole.substr(0, 7), "ends within its header");
  refused(whole.substr(0, 100), "ends within its header");
  refused(std::string(8, '\xff') + "{}", "ends within its header");
  refused(whole.substr(0, whole.size() - 1), "'step.90.data_offsets' must be");
  refused(std::string("\x02\0\0\0\0\0\0\0[]", 10), "must be an object");
  const std::string left = halves({1, 2, 3, 4, -1, -2, -3, -4});
  refused(changed({"left", "F4", {2, 4}, left}), "a type of safetensors");
  refused(changed({"left", "F16", {2, 5}, left}), "of 20 bytes");
  refused(changed({"left", "F16", {std::int64_t{1} << 62, 4}, left}), "that the file holds");
  refused(changed({"left", "F16", {-2, 4}, left}), "at least 0");
  std::string overlapping = whole;
  const std::size_t right = overlapping.find("\"right\""), at = overlapping.find("[16,40]", right);
  overlapping.replace(at, 7, "[ 8,32]");
  refused(overlapping, "two of its tensors overlap");
}

}  // namespace

void test_plan_device() {
  test_a_machine_without_cublaslt();
  test_a_search_on_plans();
  test_captured_plans();
  test_workers_share_weights_and_kernels();
  test_translating_with_plans();
  test_matmuls_of_all_forms();
  test_the_cubin_of_a_gpu();
  test_dependent_launches_are_for_newer_gpus_after_a_kernel();
  test_a_gpu_that_is_too_small();
  test_failures_of_the_gpu();
  test_damaged_plans_are_refused();
  test_damaged_weights_are_refused();
}

}  // namespace translate_trt::runtime
