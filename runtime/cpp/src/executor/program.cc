#include "executor/program.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

namespace translate_trt::runtime {

namespace {

constexpr const char* kDomain = "translate_trt";

Element element_of(Type type) {
  switch (type) {
    case Type::kInt64:
      return Element::kInt64;
    case Type::kFloat32:
      return Element::kFloat;
    case Type::kFloat16:
      return Element::kHalf;
    case Type::kBool:
      return Element::kBool;
    case Type::kBFloat16:
      break;
  }
  throw std::runtime_error("an array has elements of type bfloat16");
}

}  // namespace

std::byte* Scratch::slot(std::size_t index, std::size_t bytes) {
  if (index >= blocks_.size()) blocks_.resize(index + 1);
  Block& block = blocks_[index];
  if (block.capacity < bytes || block.data == nullptr) {
    block = {};
    block.data = allocate_aligned(bytes);
    block.capacity = bytes;
  }
  return block.data.get();
}

Program::Program(const std::filesystem::path& path, const NodeFunctions& functions,
                 std::shared_ptr<ConstantPool> constants, std::shared_ptr<ThreadPool> threads)
    : constants_(std::move(constants)),
      graph_(read_onnx(path, *constants_)),
      functions_(functions),
      threads_(std::move(threads)) {
  for (const auto& [name, tensor] : graph_.constants) {
    names_[name] = values_.size();
    values_.push_back({tensor});
  }
  for (const auto& [name, type] : graph_.inputs) {
    if (!names_.emplace(name, values_.size()).second) {
      throw std::runtime_error(name + " is an input and a constant");
    }
    values_.push_back({{type, {}, nullptr}});
  }
  for (const OnnxNode& node : graph_.nodes) {
    if (node.domain == kDomain) {
      add_kernel(node, functions);
    } else if (!node.domain.empty() || !add_standard(node)) {
      throw NotRunnable("the operator " + node.name + " has no kernel");
    }
  }
  graph_.nodes.clear();
  for (const auto& [name, type] : graph_.outputs) {
    const auto found = names_.find(name);
    // ONNX Runtime would copy the others.
    if (found == names_.end() || !values_[found->second].is_made) {
      throw NotRunnable("no operator makes the output " + name);
    }
    if (values_[found->second].tensor.type != type) {
      throw NotRunnable("the output " + name + " has another type than its operator's");
    }
  }
  assign_slots();
}

std::size_t Program::index_of(const std::string& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) throw std::runtime_error("nothing makes " + name);
  return found->second;
}

// Adds a node of a standard operator that changes or reads only sizes, as far as graphs have it.
bool Program::add_standard(const OnnxNode& node) {
  Step step;
  step.name = node.name;
  if (node.name == "Unsqueeze" && node.inputs.size() == 2) {
    step.kind = Kind::kUnsqueeze;
  } else if (node.name == "Squeeze" && !node.inputs.empty() && node.inputs.size() <= 2) {
    step.kind = Kind::kSqueeze;
  } else if (node.name == "Shape" && node.inputs.size() == 1) {
    step.kind = Kind::kShape;
    step.axes = {0, static_cast<std::int64_t>(Shape::kMaxAxes)};
    for (const OnnxAttribute& one : node.attributes) {
      if (one.integers.size() == 1) step.axes[one.name == "end"] = one.integers[0];
    }
  } else {
    return false;
  }
  step.inputs = {index_of(node.inputs[0])};
  if (node.inputs.size() == 2) {
    const NodeTensor& axes = values_[index_of(node.inputs[1])].tensor;
    if (axes.data == nullptr || axes.type != Element::kInt64) return false;
    const auto* first = static_cast<const std::int64_t*>(axes.data);
    step.axes.assign(first, first + axes.shape.count());
    std::sort(step.axes.begin(), step.axes.end());
  }
  const auto negative = [](std::int64_t axis) { return axis < 0; };
  if (node.outputs.size() != 1 || std::any_of(step.axes.begin(), step.axes.end(), negative)) {
    return false;
  }
  step.outputs = {values_.size()};
  if (!names_.emplace(node.outputs[0], values_.size()).second) return false;
  const Element type = step.is_view() ? values_[step.inputs[0]].tensor.type : Element::kInt64;
  values_.push_back({{type, {}, nullptr}, !step.is_view()});
  steps_.push_back(std::move(step));
  return true;
}

void Program::add_kernel(const OnnxNode& node, const NodeFunctions& functions) {
  Step step;
  step.name = node.name;
  std::vector<NodeTensor> inputs;
  for (const std::string& name : node.inputs) {
    step.inputs.push_back(index_of(name));
    inputs.push_back(values_[step.inputs.back()].tensor);
  }
  std::vector<NodeAttribute> attributes;
  for (const OnnxAttribute& one : node.attributes) {
    attributes.push_back({one.name.c_str(), one.number, one.integers.data(), one.integers.size()});
  }
  std::vector<Element> types(node.outputs.size());
  const NodeDescription description = {node.name.c_str(), inputs.data(), inputs.size(),
                                       types.data(),      types.size(),  attributes.data(),
                                       attributes.size()};
  const char* error = nullptr;
  void* kernel = functions.make(description, &error);
  if (error != nullptr) throw NotRunnable(node.name + ": " + error);
  if (kernel == nullptr) {
    throw NotRunnable("the operator " + node.name + " has no kernel on this processor");
  }
  step.kernel.reset(kernel, functions.destroy);
  for (std::size_t i = 0; i < types.size(); ++i) {
    step.outputs.push_back(values_.size());
    if (!names_.emplace(node.outputs[i], values_.size()).second) {
      throw std::runtime_error("two operators make " + node.outputs[i]);
    }
    values_.push_back({{types[i], {}, nullptr}, true});
  }
  steps_.push_back(std::move(step));
}

// Assigns scratch slots to intermediate results by liveness: a slot is free again after the last
// node that reads it.
void Program::assign_slots() {
  std::vector<std::size_t> roots(values_.size()), last(values_.size(), 0);
  for (std::size_t i = 0; i < roots.size(); ++i) roots[i] = i;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.is_view()) roots[step.outputs[0]] = roots[step.inputs[0]];
    for (const std::size_t value : step.inputs) last[roots[value]] = i;
    for (const std::size_t value : step.outputs)
      last[roots[value]] = std::max(last[roots[value]], i);
  }
  std::vector<std::size_t> free;
  std::size_t slots = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    for (const std::size_t value : steps_[i].outputs) {
      if (!values_[value].is_made) continue;
      if (free.empty()) free.push_back(slots++);
      values_[value].slot = free.back();
      free.pop_back();
    }
    std::vector<std::size_t> read;
    for (const auto* values : {&steps_[i].inputs, &steps_[i].outputs}) {
      for (const std::size_t value : *values) read.push_back(roots[value]);
    }
    std::sort(read.begin(), read.end());
    read.erase(std::unique(read.begin(), read.end()), read.end());
    for (const std::size_t value : read) {
      if (values_[value].is_made && last[value] == i) free.push_back(values_[value].slot);
    }
  }
}

// The graph bound to arrays.
class Program::Run {
 public:
  Run(const Program& program, const Arrays& inputs, const Arrays& outputs,
      std::shared_ptr<Scratch> scratch)
      : program_(program), arrays_{inputs, outputs}, scratch_(std::move(scratch)) {
    for (const Value& value : program.values_) tensors_.push_back(value.tensor);
    bound_.resize(tensors_.size());
    for (const auto& [name, type] : program.graph_.inputs) {
      tensors_[program.names_.at(name)] = tensor_of(*inputs.at(name), type);
    }
    for (const auto& [name, array] : outputs) {
      const std::size_t value = program.names_.at(name);
      tensors_[value] = tensor_of(*array, program.graph_.outputs.at(name));
      bound_[value] = true;
    }
    for (const Step& step : program.steps_) {
      for (const std::size_t value : step.inputs) inputs_.push_back(&tensors_[value]);
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void run() {
    const NodeTensor* const* inputs = inputs_.data();
    for (const Step& step : program_.steps_) {
      step_ = &step;
      if (step.kind != Kind::kKernel) {
        run_standard();
      } else if (const char* error = program_.functions_.run(
                     step.kernel.get(), {this, inputs, output_of_node, run_tasks})) {
        throw std::runtime_error(step.name + ": " + error);
      }
      inputs += step.inputs.size();
    }
  }

 private:
  static NodeTensor tensor_of(const Tensor& array, Element type) {
    if (element_of(array.type()) != type) throw std::logic_error("an array has another type");
    NodeTensor tensor = {type, {}, array.bytes_at(0)};
    for (const std::int64_t size : array.shape()) tensor.shape.push_back(size);
    return tensor;
  }

  // Runs a standard operator, which makes a view or reads a shape.
  void run_standard() {
    const NodeTensor& from = tensors_[step_->inputs[0]];
    NodeTensor& to = tensors_[step_->outputs[0]];
    const auto& axes = step_->axes;
    const auto is_named = [&](std::size_t axis) {
      return std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(axis));
    };
    if (step_->kind == Kind::kShape) {
      const auto end = std::min(static_cast<std::size_t>(axes[1]), from.shape.size());
      const auto begin = std::min(static_cast<std::size_t>(axes[0]), end);
      void* data = output(0, {static_cast<std::int64_t>(end - begin)});
      if (data == nullptr) throw std::bad_alloc();
      std::copy(from.shape.begin() + begin, from.shape.begin() + end,
                static_cast<std::int64_t*>(data));
      return;
    }
    to.shape = {};
    if (step_->kind == Kind::kSqueeze) {
      for (std::size_t axis = 0; axis < from.shape.size(); ++axis) {
        const bool drops = axes.empty() ? from.shape[axis] == 1 : is_named(axis);
        if (!drops) to.shape.push_back(from.shape[axis]);
      }
    } else {
      const std::int64_t* next = from.shape.begin();
      for (std::size_t axis = 0; axis < from.shape.size() + axes.size(); ++axis) {
        to.shape.push_back(is_named(axis) || next == from.shape.end() ? 1 : *next++);
      }
    }
    if (to.shape.count() != from.shape.count()) {
      throw std::runtime_error(step_->name + ": an axis is out of range");
    }
    to.data = from.data;
  }

  // Memory of an output of the step that runs; null if there is none.
  void* output(std::size_t index, const Shape& shape) {
    const std::size_t value = step_->outputs[index];
    NodeTensor& tensor = tensors_[value];
    if (bound_[value]) return tensor.shape == shape ? tensor.data : nullptr;
    tensor.shape = shape;
    try {
      tensor.data =
          scratch_->slot(program_.values_[value].slot, shape.count() * element_size(tensor.type));
    } catch (const std::bad_alloc&) {
      return nullptr;  // exceptions must not pass the kernels' library
    }
    return tensor.data;
  }

  static void* output_of_node(void* self, std::size_t index, const Shape& shape) {
    return static_cast<Run*>(self)->output(index, shape);
  }

  static void run_tasks(void* self, std::size_t count, ThreadPool::Task task, void* data) {
    static_cast<Run*>(self)->program_.threads_->run(count, task, data);
  }

  const Program& program_;
  const Arrays arrays_[2];  // keep the memory of bound values alive
  const std::shared_ptr<Scratch> scratch_;
  std::vector<NodeTensor> tensors_;        // by value
  std::vector<char> bound_;                // whether an array holds a value
  std::vector<const NodeTensor*> inputs_;  // of all steps
  const Step* step_ = nullptr;             // that runs
};

std::function<void()> Program::bind(const Arrays& inputs, const Arrays& outputs,
                                    std::shared_ptr<Scratch> scratch) const {
  const auto bound = std::make_shared<Run>(*this, inputs, outputs, std::move(scratch));
  return [bound] { bound->run(); };
}

}  // namespace translate_trt::runtime
