#include "executor/executor_backend.h"

#include <map>
#include <utility>

#include "backends/graph_check.h"
#include "backends/host_batch.h"
#include "base/errors.h"
#include "base/platform.h"
#include "base/utf8.h"
#include "executor/program.h"

namespace translate_trt::runtime {

namespace {

// "onnxruntime" runs graphs on ONNX Runtime even where every operator has a kernel.
constexpr const char* kVariable = "TRANSLATE_TRT_EXECUTOR";
constexpr const char* kOnnxRuntime = "onnxruntime";

// The graphs as one batch uses them.
class ExecutorGraphs : public Graphs {
 public:
  ExecutorGraphs(std::shared_ptr<const Program> encoder, std::shared_ptr<const Program> step)
      : encoder_(std::move(encoder)), step_(std::move(step)) {}

  void encode(const Arrays& inputs, const Arrays& outputs) override {
    encoder_->bind(inputs, outputs, scratch_)();
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return step_->bind(inputs, outputs, scratch_);
  }

 private:
  const std::shared_ptr<const Program> encoder_, step_;
  const std::shared_ptr<Scratch> scratch_ =
      std::make_shared<Scratch>();  // one graph runs at a time
};

class ExecutorBackend : public Backend {
 public:
  ExecutorBackend(std::shared_ptr<const Program> encoder, std::shared_ptr<const Program> step,
                  const Contract& contract, ArrayPlace place)
      : encoder_(std::move(encoder)), step_(std::move(step)), contract_(contract), place_(place) {}

  std::unique_ptr<Batch> batch(const SearchOptions& options,
                               std::int64_t start_token) const override {
    return std::make_unique<HostBatch>(std::make_unique<ExecutorGraphs>(encoder_, step_), contract_,
                                       options, start_token, place_);
  }

 private:
  const std::shared_ptr<const Program> encoder_, step_;
  const Contract contract_;
  const ArrayPlace place_;
};

std::string name_of(Element type) {
  switch (type) {
    case Element::kFloat:
      return name_of(Type::kFloat32);
    case Element::kHalf:
      return name_of(Type::kFloat16);
    case Element::kInt64:
      return name_of(Type::kInt64);
    case Element::kBool:
      return name_of(Type::kBool);
    default:
      return "another type";
  }
}

GraphTypes names_of(const std::map<std::string, Element>& types) {
  GraphTypes names;
  for (const auto& [name, type] : types) names[name] = name_of(type);
  return names;
}

std::shared_ptr<const Program> load(const std::filesystem::path& path, const Specs& inputs,
                                    const Specs& outputs, const CompiledKernels& kernels,
                                    const std::shared_ptr<ConstantPool>& constants,
                                    const std::shared_ptr<ThreadPool>& threads) {
  std::shared_ptr<const Program> program;
  try {
    program = std::make_shared<Program>(path, *kernels.nodes, constants, threads);
  } catch (const NotRunnable&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw bundle_error("cannot load " + path.u8string() + ": " + error.what() +
                       ". Export the bundle again.");
  }
  hold_to_contract(path, "inputs", inputs, names_of(program->inputs()), false);
  hold_to_contract(path, "outputs", outputs, names_of(program->outputs()), true);
  return program;
}

// Returns why no graph can run on the executor with these settings; "" if graphs can.
std::string obstacle(const CompiledKernels& kernels, const Settings& settings) {
  const std::string chosen = environment_value(kVariable);
  if (!chosen.empty() && chosen != kOnnxRuntime) {
    throw option_error(std::string(kVariable) + " is " + in_quotes(chosen) + "; write " +
                       kOnnxRuntime + ", or leave it out.");
  }
  if (!chosen.empty()) return std::string(kVariable) + " is " + chosen;
  if (kernels.nodes == nullptr) return "there are no compiled kernels";
  return settings.place ? "arrays are not in host memory" : "";
}

}  // namespace

std::unique_ptr<Backend> load_executor(const std::filesystem::path& encoder,
                                       const std::filesystem::path& step, const Contract& contract,
                                       const CompiledKernels& kernels, const Settings& settings,
                                       std::string& reason) {
  reason = obstacle(kernels, settings);
  if (!reason.empty()) return nullptr;
  try {
    // Callers work, too; all share the other threads.
    const auto threads = std::make_shared<ThreadPool>(settings.workers * (settings.threads - 1));
    const auto constants = std::make_shared<ConstantPool>();
    auto of_encoder = load(encoder, contract.encoder_inputs, contract.encoder_outputs, kernels,
                           constants, threads);
    auto of_step =
        load(step, contract.step_inputs(), contract.step_outputs(), kernels, constants, threads);
    return_memory();
    return std::make_unique<ExecutorBackend>(std::move(of_encoder), std::move(of_step), contract,
                                             host_place(kernels.has_attention()));
  } catch (const NotRunnable& error) {
    reason = error.what();
    return nullptr;
  }
}

}  // namespace translate_trt::runtime
