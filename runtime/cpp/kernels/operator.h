// Declaration and execution of operators.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "first_error.h"
#include "kernels.h"
#include "node.h"
#include "workspace.h"

namespace translate_trt {

constexpr auto kFloat = Element::kFloat;
constexpr auto kHalf = Element::kHalf;
constexpr auto kInt8 = Element::kInt8;
constexpr auto kInt32 = Element::kInt32;
constexpr auto kInt64 = Element::kInt64;
constexpr auto kBool = Element::kBool;

using Types = std::vector<Element>;

// The declaration of an operator. declarations.cc, which is generated, has all of them.
struct Declaration {
  std::string name;
  Types inputs, outputs;
  std::vector<std::string> attributes;
  std::vector<std::string> axes;  // letters of each input's sizes; none if the kernel checks them
};

// An input or output by the name that ports.h, which is generated, gives to it.
template <class T>
struct Port {
  std::size_t index;
};

// Sizes by the letters of a declaration.
class Sizes {
 public:
  Sizes() { sizes_.fill(-1); }

  std::int64_t operator[](char letter) const {
    return sizes_.at(static_cast<std::size_t>(letter - 'A'));
  }
  std::size_t count(char letter) const { return static_cast<std::size_t>((*this)[letter]); }

  // Takes the sizes of a shape. Returns whether each letter has one size.
  bool match(const std::string& letters, const Shape& shape) {
    if (letters.size() != shape.size()) return false;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      std::int64_t& size = sizes_.at(static_cast<std::size_t>(letters[i] - 'A'));
      if (size >= 0 && size != shape[i]) return false;
      size = shape[i];
    }
    return true;
  }

 private:
  std::array<std::int64_t, 26> sizes_;
};

// A running operator: its inputs and outputs, and the executor of its kernel.
class OperatorContext final : public Executor {
 public:
  OperatorContext(const NodeHost& host, WorkspacePool& workspaces, const Declaration& declaration)
      : host_(host), workspaces_(workspaces), declaration_(declaration) {}

  // Checks the shapes of the inputs against the declaration.
  Sizes sizes() const {
    Sizes sizes;
    for (std::size_t i = 0; i < declaration_.axes.size(); ++i) {
      if (sizes.match(declaration_.axes[i], shape(i))) continue;
      throw std::invalid_argument("translate_trt: the shape of input " + std::to_string(i) +
                                  " of " + declaration_.name + " is not " + declaration_.axes[i] +
                                  " with the sizes of the inputs before it");
    }
    return sizes;
  }

  const Shape& shape(std::size_t input) const { return host_.inputs[input]->shape; }

  template <class T>
  const T* input(std::size_t index) const {
    return static_cast<const T*>(host_.inputs[index]->data);
  }

  template <class T>
  const T* input(Port<T> port) const {
    return input<T>(port.index);
  }

  template <class T>
  T* output(std::size_t index, const Shape& shape) {
    void* data = host_.output(host_.self, index, shape);
    if (data == nullptr)
      throw std::runtime_error(
          "translate_trt: an output has another shape than its array, or memory is exhausted");
    return static_cast<T*>(data);
  }

  template <class T>
  T* output(Port<T> port, const Shape& shape) {
    return output<T>(port.index, shape);
  }

  // Runs tasks in the threads of the host. Rethrows the first exception once all tasks have ended.
  void run(std::size_t count, const TaskFunction& task) override {
    if (count == 1) {
      task.run(task.closure, 0);
      return;
    }
    Tasks tasks = {task, {}};
    host_.run(
        host_.self, count,
        [](void* data, std::size_t index) {
          auto& given = *static_cast<Tasks*>(data);
          given.error.run([&] { given.task.run(given.task.closure, index); });
        },
        &tasks);
    tasks.error.rethrow();
  }

  WorkspacePool& workspaces() override { return workspaces_; }

 private:
  struct Tasks {
    const TaskFunction& task;
    FirstError error;
  };

  const NodeHost& host_;
  WorkspacePool& workspaces_;
  const Declaration& declaration_;
};

inline void require(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(std::string("translate_trt: ") + what);
  }
}

const std::vector<Declaration>& declarations();

// Looks up a declaration by name; throws if it is missing.
const Declaration& declaration(const std::string& name);

// Attributes and constant inputs of a node for which a kernel is made.
class NodeInfo {
 public:
  explicit NodeInfo(const Declaration& declaration) : declaration_(declaration) {}
  virtual ~NodeInfo() = default;

  const Declaration& declaration() const { return declaration_; }

  float number(const char* name) const {
    check(name);
    return read_number(name);
  }

  std::vector<std::int64_t> integers(const char* name) const {
    check(name);
    return read_integers(name);
  }

  std::int64_t integer(const char* name) const {
    const auto all = integers(name);
    require(all.size() == 1, "an attribute must be one integer");
    return all[0];
  }

  // Throws with this message if the input is not constant.
  NodeTensor constant(std::size_t input, const char* message) const {
    const auto tensor = read_constant(input);
    require(tensor.data != nullptr, message);
    return tensor;
  }

 private:
  virtual float read_number(const char* name) const = 0;
  virtual std::vector<std::int64_t> read_integers(const char* name) const = 0;
  virtual NodeTensor read_constant(std::size_t input) const = 0;  // without data if not constant

  void check(const char* name) const {
    const auto& all = declaration_.attributes;
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw std::logic_error(declaration_.name + " declares no attribute " + name +
                             ": see export/fused_ops/declarations.py");
    }
  }

  const Declaration& declaration_;
};

struct NoVariant {};

// Base of nodes that need neither the processor's kernels nor attributes.
class PortableNode {
 public:
  using Variant = NoVariant;
  PortableNode(const Kernels&, const Variant&, const NodeInfo&) {}
};

inline bool within(const std::int64_t* values, std::size_t count, std::int64_t end) {
  return std::all_of(values, values + count, [=](auto v) { return v >= 0 && v < end; });
}

// The kernel of one node. It is called at every step, by several threads at once.
class NodeKernel {
 public:
  explicit NodeKernel(const Declaration& declaration) : declaration_(declaration) {}
  virtual ~NodeKernel() = default;

  void run(const NodeHost& host) const {
    OperatorContext context(host, *workspaces_, declaration_);
    run(context);
  }

 private:
  virtual void run(OperatorContext& context) const = 0;

  const Declaration& declaration_;
  const std::shared_ptr<WorkspacePool> workspaces_ = WorkspacePool::shared();
};

// An operator that has a kernel on this processor.
class Operator {
 public:
  explicit Operator(const Declaration& declaration) : declaration_(declaration) {}
  virtual ~Operator() = default;

  const Declaration& declaration() const { return declaration_; }
  virtual std::unique_ptr<NodeKernel> make(const NodeInfo& info) const = 0;

 private:
  const Declaration& declaration_;
};

// Node(kernels, variant, info) is made with the graph; run(context) is called at every step.
template <class Node>
class OperatorOf final : public Operator {
 public:
  using Variant = typename Node::Variant;

  OperatorOf(const Declaration& declaration, const Kernels& kernels, Variant variant)
      : Operator(declaration), kernels_(kernels), variant_(variant) {}

  std::unique_ptr<NodeKernel> make(const NodeInfo& info) const override {
    return std::make_unique<Kernel>(kernels_, variant_, info);
  }

 private:
  class Kernel final : public NodeKernel {
   public:
    Kernel(const Kernels& kernels, const Variant& variant, const NodeInfo& info)
        : NodeKernel(info.declaration()), node_(kernels, variant, info) {}

   private:
    void run(OperatorContext& context) const override { node_.run(context); }

    const Node node_;
  };

  const Kernels& kernels_;
  const Variant variant_;
};

// The operators that have kernels on this processor.
class Registry {
 public:
  explicit Registry(const Kernels& kernels) : kernels_(kernels) {}

  const Kernels& kernels() const { return kernels_; }
  const std::vector<std::unique_ptr<const Operator>>& operators() const { return operators_; }

  template <class Node>
  void add(const std::string& name, typename Node::Variant variant = {}) {
    operators_.push_back(std::make_unique<OperatorOf<Node>>(declaration(name), kernels_, variant));
  }

 private:
  const Kernels& kernels_;
  std::vector<std::unique_ptr<const Operator>> operators_;
};

void add_attention_operators(Registry& registry);  // attention_operators.cc
void add_search_operators(Registry& registry);     // search_operators.cc
void add_source_operators(Registry& registry);     // source_operators.cc

// The operators of this processor; never deleted, since sessions may live until the process ends.
const Registry& host_operators();

}  // namespace translate_trt
