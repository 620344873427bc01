#include "operators.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "operator.h"

namespace translate_trt {
namespace {

// A constant input of floats.
struct ConstantFloats {
  const float* values;
  std::size_t count;

  ConstantFloats(const NodeInfo& info, std::size_t input, const char* message) {
    const auto tensor = info.constant(input, message);
    values = tensor.GetTensorData<float>();
    count = tensor.GetTensorTypeAndShapeInfo().GetElementCount();
  }
};

// A constant matrix in 8 bits and the sums of its columns.
class Weights8 {
 public:
  Weights8(const Kernels& kernels, const NodeInfo& info, std::size_t input) {
    const auto tensor = info.constant(input, "the weights of a product must be constant");
    shape_ = tensor.GetTensorTypeAndShapeInfo().GetShape();
    require(shape_.size() == 4 && shape_[2] == 16 && shape_[3] == 4,
            "weights must be [outputs / 16, inputs / 4, 16, 4]");
    sums_.resize(static_cast<std::size_t>(shape_[0]) * 16);
    auto matrix = with(tensor.GetTensorData<std::int8_t>(), nullptr, sums_.size());
    kernels.column_sums(matrix, sums_.data());
  }

  std::size_t columns() const { return sums_.size(); }

  Matrix8 with(const std::int8_t* weights, const float* scales, std::size_t outputs) const {
    return {weights,      scales,
            sums_.data(), static_cast<std::size_t>(shape_[1]) * 4,
            outputs,      static_cast<std::size_t>(shape_[0])};
  }

 private:
  Shape shape_;
  std::vector<std::int32_t> sums_;
};

// The last gives the sum and, as a second output, what its norm makes of it.
enum class EpilogueKind { nothing, relu, gelu, swish, add, add_norm, add_and_norm };

Activation activation(EpilogueKind kind) {
  switch (kind) {
    case EpilogueKind::relu:
      return Activation::relu;
    case EpilogueKind::gelu:
      return Activation::gelu;
    case EpilogueKind::swish:
      return Activation::swish;
    default:
      return Activation::none;
  }
}

// What follows the product of an operator: its further inputs, from the bias on, and attributes.
class EpilogueSpec {
 public:
  EpilogueSpec(EpilogueKind kind, std::size_t bias, const NodeInfo& info)
      : kind_(kind),
        bias_(bias),
        norm_{nullptr, nullptr, norms(kind) ? info.attribute<float>("epsilon") : 0} {}

  std::int64_t outputs(const Call& call) const { return call.shape(bias_).at(0); }

  // Of a result of this shape; `norm` is where it keeps a normalization.
  Epilogue read(Call& call, const Shape& shape, Norm& norm) const {
    Epilogue epilogue{call.input<float>(bias_), activation(kind_), nullptr, nullptr, nullptr};
    if (kind_ == EpilogueKind::add || norms(kind_)) {
      require(call.shape(bias_ + 1) == shape, "the residual has another shape than the product");
      epilogue.residual = call.input<float>(bias_ + 1);
    }
    if (norms(kind_)) {
      norm = norm_;
      norm.gamma = call.input<float>(bias_ + 2);
      norm.beta = call.input<float>(bias_ + 3);
      epilogue.norm = &norm;
    }
    if (kind_ == EpilogueKind::add_and_norm) {
      epilogue.normalized = call.output<float>(1, shape);
    }
    return epilogue;
  }

 private:
  static bool norms(EpilogueKind kind) {
    return kind == EpilogueKind::add_norm || kind == EpilogueKind::add_and_norm;
  }

  const EpilogueKind kind_;
  const std::size_t bias_;
  const Norm norm_;
};

struct Linear8Variant {
  bool positive = false;
  EpilogueKind epilogue = EpilogueKind::nothing;
};

class Linear8Node {
 public:
  using Variant = Linear8Variant;

  Linear8Node(const Kernels& kernels, const Variant& variant, const NodeInfo& info)
      : kernels_(kernels),
        positive_(variant.positive),
        weights_(kernels, info, 1),
        epilogue_(variant.epilogue, 3, info) {}

  void run(Call& call) const {
    auto shape = call.shape(0);
    const auto outputs = epilogue_.outputs(call);
    const auto rows = product(shape, 0, shape.size() - 1);
    const auto matrix = weights_.with(call.input<std::int8_t>(1), call.input<float>(2),
                                      static_cast<std::size_t>(outputs));
    require(static_cast<std::size_t>(shape.back()) == matrix.inputs,
            "the input has not the columns that the weights want");
    shape.back() = outputs;
    Norm norm;
    const Linear8 linear{matrix, positive_, epilogue_.read(call, shape, norm)};
    kernels_.linear8(linear, call.input<float>(0), rows, call.output<float>(0, shape), call);
  }

 private:
  const Kernels& kernels_;
  const bool positive_;
  const Weights8 weights_;
  const EpilogueSpec epilogue_;
};

// Weights in panels.
Matrix panels(const Call& call, std::size_t input, std::int64_t outputs) {
  const auto shape = call.shape(input);
  require(shape.size() == 3 && shape[1] > 0 && shape[2] == 64,
          "weights must be [outputs / 64, inputs, 64]");
  require(outputs > (shape[0] - 1) * 64 && outputs <= shape[0] * 64,
          "the weights have not the columns that are asked for");
  return {call.input<float>(input), product(shape, 1, 2), static_cast<std::size_t>(outputs),
          product(shape, 0, 1)};
}

class LinearNode {
 public:
  using Variant = EpilogueKind;

  LinearNode(const Kernels& kernels, const Variant& kind, const NodeInfo& info)
      : kernels_(kernels), epilogue_(kind, 2, info) {}

  void run(Call& call) const {
    auto shape = call.shape(0);
    const auto outputs = epilogue_.outputs(call);
    const auto rows = product(shape, 0, shape.size() - 1);
    const auto matrix = panels(call, 1, outputs);
    require(static_cast<std::size_t>(shape.back()) == matrix.inputs,
            "the input has not the columns that the weights want");
    shape.back() = outputs;
    Norm norm;
    const Linear linear{matrix, epilogue_.read(call, shape, norm)};
    kernels_.linear(linear, call.input<float>(0), rows, call.output<float>(0, shape), call);
  }

 private:
  const Kernels& kernels_;
  const EpilogueSpec epilogue_;
};

// Outputs of candidates for logits or inputs of shape [N, K, ...].
Candidates candidates(Call& call, const Shape& shape, std::size_t columns, std::size_t column,
                      std::size_t count) {
  require(shape.size() == 3, "candidates are of [N, K] rows");
  const Shape one = {shape[0], shape[1], 1};
  require(call.shape(column) == one, "the looked up columns must be [N, K, 1]");
  const auto wanted = *call.input<std::int64_t>(count);
  require(wanted >= 1 && static_cast<std::size_t>(wanted) <= columns,
          "more candidates than columns were asked for");
  const auto* looked_up = call.input<std::int64_t>(column);
  const auto rows = product(shape, 0, 2);
  require(std::all_of(looked_up, looked_up + rows,
                      [&](auto c) { return c >= 0 && static_cast<std::size_t>(c) < columns; }),
          "a looked up column is out of range");
  const Shape many = {shape[0], shape[1], wanted};
  return {static_cast<std::size_t>(wanted), looked_up, call.output<float>(0, many),
          call.output<std::int64_t>(1, many), call.output<float>(2, one)};
}

// Whether logits have a bias.
struct LogitsVariant {
  bool biased = false;
};

// In 8 bits. What is added to logits also hides columns, with and without a bias of the model's.
class Candidates8Node {
 public:
  using Variant = NoVariant;

  Candidates8Node(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels), weights_(kernels, info, 1) {
    const ConstantFloats bias(info, 3, "which columns are hidden must be constant");
    require(bias.count == weights_.columns(), "each column must have a bias");
    // Hidden are those that fill up the last block.
    const auto* end = bias.values + bias.count;
    const auto* first = std::find_if(bias.values, end, [](float b) { return b < kMostHidden; });
    columns_ = static_cast<std::size_t>(first - bias.values);
  }

  void run(Call& call) const {
    const auto shape = call.shape(0);
    const auto matrix = weights_.with(call.input<std::int8_t>(1), call.input<float>(2), columns_);
    require(static_cast<std::size_t>(shape.back()) == matrix.inputs,
            "the input has not the columns that the weights want");
    const auto found = candidates(call, shape, columns_, 4, 5);
    kernels_.candidates8(matrix, call.input<float>(3), call.input<float>(0), product(shape, 0, 2),
                         found, call);
  }

 private:
  static constexpr float kMostHidden = -1e29F;  // below any logit

  const Kernels& kernels_;
  const Weights8 weights_;
  std::size_t columns_ = 0;
};

class VocabularyCandidatesNode {
 public:
  using Variant = LogitsVariant;

  VocabularyCandidatesNode(const Kernels& kernels, const Variant& variant, const NodeInfo& info)
      : kernels_(kernels),
        column_(variant.biased ? 3 : 2),
        vocabulary_(read(kernels, variant, info, memory_)) {}

  void run(Call& call) const {
    const auto shape = call.shape(0);
    require(static_cast<std::size_t>(shape.back()) == vocabulary_.inputs,
            "the input has not the columns that the vocabulary's matrix has");
    const auto found = candidates(call, shape, vocabulary_.outputs, column_, column_ + 1);
    kernels_.candidates(vocabulary_, call.input<float>(1), call.input<float>(0),
                        product(shape, 0, 2), found, call);
  }

 private:
  static Vocabulary read(const Kernels& kernels, const Variant& variant, const NodeInfo& info,
                         Arena& memory) {
    const auto matrix = info.constant(1, "the vocabulary's matrix must be constant");
    const auto shape = matrix.GetTensorTypeAndShapeInfo().GetShape();
    require(shape.size() == 2, "the vocabulary's matrix must be [V, inputs]");
    const auto outputs = product(shape, 0, 1);
    const float* bias = nullptr;
    if (variant.biased) {
      const ConstantFloats constants(info, 2, "the logits' bias must be constant");
      require(constants.count == outputs, "each logit must have a bias");
      bias = constants.values;
    }
    return kernels.vocabulary(matrix.GetTensorData<float>(), bias, outputs, product(shape, 1, 2),
                              memory);
  }

  const Kernels& kernels_;
  const std::size_t column_;  // which input is looked up
  Arena memory_;
  const Vocabulary vocabulary_;
};

class TopLogitsNode {
 public:
  using Variant = NoVariant;

  TopLogitsNode(const Kernels& kernels, const Variant&, const NodeInfo&) : kernels_(kernels) {}

  void run(Call& call) const {
    const auto shape = call.shape(0);
    const auto columns = static_cast<std::size_t>(shape.back());
    const auto found = candidates(call, shape, columns, 1, 2);
    kernels_.top_logits(call.input<float>(0), product(shape, 0, 2), columns, found, call);
  }

 private:
  const Kernels& kernels_;
};

// Candidates from the tokens of a list; in 8 bits if the matrix is.
template <class Weight>
class ShortlistNode {
 public:
  using Variant = LogitsVariant;
  static constexpr bool kBytes = std::is_same_v<Weight, std::int8_t>;
  static constexpr std::size_t kBias = kBytes ? 3 : 2;  // which input it is, if there is one

  ShortlistNode(const Kernels& kernels, const Variant& variant, const NodeInfo& info)
      : kernels_(kernels), tokens_(kBias + (variant.biased ? 1 : 0)) {
    if constexpr (kBytes) {
      const auto matrix = info.constant(1, "the vocabulary's matrix must be constant");
      const auto shape = matrix.GetTensorTypeAndShapeInfo().GetShape();
      require(shape.size() == 2, "the vocabulary's matrix must be [V, inputs]");
      const auto* row = matrix.template GetTensorData<std::int8_t>();
      for (std::int64_t token = 0; token < shape[0]; ++token, row += shape[1]) {
        row_sums_.push_back(std::accumulate(row, row + shape[1], std::int32_t{0}));
      }
    }
  }

  void run(Call& call) const {
    const auto shape = call.shape(0), matrix = call.shape(1), list = call.shape(tokens_);
    require(shape.size() == 3 && matrix.at(1) == shape[2],
            "the input has not the columns that the vocabulary's matrix has");
    require(list.size() == 2 && list[0] == shape[0], "there must be a list for each sentence");
    const auto size = static_cast<std::size_t>(matrix[0]);
    const float* bias = nullptr;
    if (tokens_ > kBias) {
      require(call.shape(kBias) == Shape{matrix[0]}, "each logit must have a bias");
      bias = call.input<float>(kBias);
    }
    const Shortlists lists{product(shape, 0, 1),
                           product(shape, 1, 2),
                           product(list, 1, 2),
                           product(shape, 2, 3),
                           call.input<std::int64_t>(tokens_),
                           bias};
    require(std::all_of(lists.tokens, lists.tokens + lists.sentences * lists.entries,
                        [&](auto t) { return t >= 0 && static_cast<std::size_t>(t) < size; }),
            "a listed token is out of range");
    const auto found = candidates(call, shape, size, tokens_ + 1, tokens_ + 2);
    require(found.count <= lists.entries, "more candidates than places were asked for");
    const auto* weights = call.input<Weight>(1);
    const auto* x = call.input<float>(0);
    if constexpr (kBytes) {
      kernels_.shortlist_candidates8(lists, weights, call.input<float>(2), row_sums_.data(), x,
                                     found, call);
    } else {
      kernels_.shortlist_candidates(lists, weights, x, found, call);
    }
  }

 private:
  const Kernels& kernels_;
  const std::size_t tokens_;  // which input they are
  std::vector<std::int32_t> row_sums_;
};

class AddNormNode {
 public:
  using Variant = NoVariant;

  AddNormNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels), epsilon_(info.attribute<float>("epsilon")) {}

  void run(Call& call) const {
    const auto shape = call.shape(0);
    require(call.shape(1) == shape, "the residual has another shape than the input");
    const Norm norm{call.input<float>(2), call.input<float>(3), epsilon_};
    kernels_.add_norm(call.input<float>(0), call.input<float>(1),
                      product(shape, 0, shape.size() - 1), static_cast<std::size_t>(shape.back()),
                      norm, call.output<float>(0, shape), call);
  }

 private:
  const Kernels& kernels_;
  const float epsilon_;
};

void add_linear_operators(Registry& registry) {
  registry.add<LinearNode>("Linear", EpilogueKind::nothing);
  registry.add<LinearNode>("LinearRelu", EpilogueKind::relu);
  registry.add<LinearNode>("LinearGelu", EpilogueKind::gelu);
  registry.add<LinearNode>("LinearSwish", EpilogueKind::swish);
  registry.add<LinearNode>("LinearAdd", EpilogueKind::add);
  registry.add<LinearNode>("LinearAddNorm", EpilogueKind::add_norm);
  registry.add<LinearNode>("LinearAddAndNorm", EpilogueKind::add_and_norm);
}

void add_linear8_operators(Registry& registry) {
  for (const bool positive : {false, true}) {
    const std::string name = positive ? "Linear8Positive" : "Linear8";
    registry.add<Linear8Node>(name, {positive, EpilogueKind::nothing});
    registry.add<Linear8Node>(name + "Relu", {positive, EpilogueKind::relu});
    registry.add<Linear8Node>(name + "Gelu", {positive, EpilogueKind::gelu});
    registry.add<Linear8Node>(name + "Swish", {positive, EpilogueKind::swish});
    registry.add<Linear8Node>(name + "Add", {positive, EpilogueKind::add});
    registry.add<Linear8Node>(name + "AddNorm", {positive, EpilogueKind::add_norm});
    registry.add<Linear8Node>(name + "AddAndNorm", {positive, EpilogueKind::add_and_norm});
  }
}

void add_candidates_operators(Registry& registry) {
  const auto& kernels = registry.kernels();
  for (const bool biased : {false, true}) {
    const std::string name = biased ? "Biased" : "";
    if (kernels.candidates8 != nullptr) registry.add<Candidates8Node>(name + "Candidates8");
    if (kernels.candidates != nullptr) {
      registry.add<VocabularyCandidatesNode>(name + "VocabularyCandidates", {biased});
    }
    if (kernels.shortlist_candidates != nullptr) {
      registry.add<ShortlistNode<float>>(name + "ListedCandidates", {biased});
    }
    if (kernels.shortlist_candidates8 != nullptr) {
      registry.add<ShortlistNode<std::int8_t>>(name + "ListedCandidates8", {biased});
    }
  }
  if (kernels.top_logits != nullptr) registry.add<TopLogitsNode>("TopLogits");
}

const Registry& registry(const Kernels& kernels) {
  static const auto* const all = [&] {
    auto* result = new Registry(kernels);
    add_search_operators(*result);
    if (kernels.linear != nullptr) add_linear_operators(*result);
    if (kernels.linear8 != nullptr) add_linear8_operators(*result);
    add_candidates_operators(*result);
    if (kernels.add_norm != nullptr) result->add<AddNormNode>("AddNorm");
    add_attention_operators(*result);
    return result;
  }();
  return *all;
}

}  // namespace

const Declaration& declaration(const std::string& name) {
  for (const auto& one : declarations()) {
    if (one.name == name) return one;
  }
  throw std::logic_error("no operator " + name +
                         " is declared: see export/fused_ops/declarations.py");
}

const char* add_operators(const Kernels& kernels, OrtSessionOptions* options) {
  const auto& all = registry(kernels);
  Ort::UnownedSessionOptions(options).Add(all.domain());
  return all.names().c_str();
}

}  // namespace translate_trt
