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
    values = static_cast<const float*>(tensor.data);
    count = tensor.shape.count();
  }
};

// A constant 8-bit matrix and its column sums.
class Weights8 {
 public:
  Weights8(const Kernels& kernels, const NodeInfo& info, std::size_t input) {
    const auto tensor = info.constant(input, "the weights of a matmul must be constant");
    shape_ = tensor.shape;
    require(shape_.size() == 4 && shape_[2] == 16 && shape_[3] == 4,
            "weights must be [outputs / 16, inputs / 4, 16, 4]");
    sums_.resize(static_cast<std::size_t>(shape_[0]) * 16);
    auto matrix = with(static_cast<const std::int8_t*>(tensor.data), nullptr, sums_.size());
    kernels.column_sums(matrix, sums_.data());
    pairs_fit_ = kernels.pairs_fit != nullptr && kernels.pairs_fit(matrix);
  }

  std::size_t columns() const { return sums_.size(); }

  Matrix8 with(const std::int8_t* weights, const float* scales, std::size_t outputs) const {
    return {weights,      scales,
            sums_.data(), static_cast<std::size_t>(shape_[1]) * 4,
            outputs,      static_cast<std::size_t>(shape_[0]),
            pairs_fit_};
  }

 private:
  Shape shape_;
  std::vector<std::int32_t> sums_;
  bool pairs_fit_ = false;
};

// add_and_norm and add_and_rms return the residual sum and, as a second output, its norm.
enum class EpilogueKind {
  nothing,
  relu,
  gelu,
  swish,
  add,
  add_norm,
  add_and_norm,
  add_rms,
  add_and_rms
};

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

// The epilogue of a matmul: inputs from the bias on, and attributes.
class EpilogueSpec {
 public:
  EpilogueSpec(EpilogueKind kind, std::size_t bias, const NodeInfo& info)
      : kind_(kind),
        bias_(bias),
        norm_{nullptr, nullptr, norms(kind) ? info.number("epsilon") : 0} {}

  std::int64_t outputs(const OperatorContext& context) const { return context.shape(bias_).at(0); }

  // Reads the epilogue of a result of this shape. `norm` is storage for epilogue.norm.
  Epilogue read(OperatorContext& context, const Shape& shape, Norm& norm) const {
    Epilogue epilogue{context.input<float>(bias_), activation(kind_), nullptr, nullptr, nullptr};
    if (kind_ == EpilogueKind::add || norms(kind_)) {
      require(context.shape(bias_ + 1) == shape,
              "the residual and the result of the matmul must have the same shape");
      epilogue.residual = context.input<float>(bias_ + 1);
    }
    if (norms(kind_)) {
      norm = norm_;
      norm.gamma = context.input<float>(bias_ + 2);
      if (!is_rms(kind_)) norm.beta = context.input<float>(bias_ + 3);
      epilogue.norm = &norm;
    }
    if (kind_ == EpilogueKind::add_and_norm || kind_ == EpilogueKind::add_and_rms) {
      epilogue.normalized = context.output<float>(1, shape);
    }
    return epilogue;
  }

 private:
  static bool is_rms(EpilogueKind kind) {
    return kind == EpilogueKind::add_rms || kind == EpilogueKind::add_and_rms;
  }
  static bool norms(EpilogueKind kind) {
    return kind == EpilogueKind::add_norm || kind == EpilogueKind::add_and_norm || is_rms(kind);
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

  void run(OperatorContext& context) const {
    auto shape = context.shape(0);
    const auto outputs = epilogue_.outputs(context);
    const auto rows = shape.count(0, shape.size() - 1);
    const auto matrix = weights_.with(context.input<std::int8_t>(1), context.input<float>(2),
                                      static_cast<std::size_t>(outputs));
    require(static_cast<std::size_t>(shape.back()) == matrix.inputs,
            "the input must have as many columns as the weights have rows");
    shape.back() = outputs;
    Norm norm;
    const Linear8 linear{matrix, positive_, epilogue_.read(context, shape, norm)};
    kernels_.linear8(linear, context.input<float>(0), rows, context.output<float>(0, shape),
                     context);
  }

 private:
  const Kernels& kernels_;
  const bool positive_;
  const Weights8 weights_;
  const EpilogueSpec epilogue_;
};

// Reads a float matrix in panels.
Matrix panels(const OperatorContext& context, std::size_t input, std::int64_t outputs) {
  const auto shape = context.shape(input);
  require(shape.size() == 3 && shape[1] > 0 && shape[2] == 64,
          "weights must be [outputs / 64, inputs, 64]");
  require(outputs > (shape[0] - 1) * 64 && outputs <= shape[0] * 64,
          "the bias and the weights must have the same number of columns");
  return {context.input<float>(input), shape.count(1, 2), static_cast<std::size_t>(outputs),
          shape.count(0, 1)};
}

class LinearNode {
 public:
  using Variant = EpilogueKind;

  LinearNode(const Kernels& kernels, const Variant& kind, const NodeInfo& info)
      : kernels_(kernels), epilogue_(kind, 2, info) {}

  void run(OperatorContext& context) const {
    auto shape = context.shape(0);
    const auto outputs = epilogue_.outputs(context);
    const auto rows = shape.count(0, shape.size() - 1);
    const auto matrix = panels(context, 1, outputs);
    require(static_cast<std::size_t>(shape.back()) == matrix.inputs,
            "the input must have as many columns as the weights have rows");
    shape.back() = outputs;
    Norm norm;
    const Linear linear{matrix, epilogue_.read(context, shape, norm)};
    kernels_.linear(linear, context.input<float>(0), rows, context.output<float>(0, shape),
                    context);
  }

 private:
  const Kernels& kernels_;
  const EpilogueSpec epilogue_;
};

// Allocates the outputs of a candidate operator for rows of shape [N, K, ...].
//
// size: number of columns. columns, count: indices of the inputs.
Candidates candidates(OperatorContext& context, const Shape& shape, std::size_t size,
                      std::size_t columns, std::size_t count) {
  require(shape.size() == 3, "the input of a candidate operator must be [N, K, ...]");
  const auto lookups = context.shape(columns);
  require(lookups.size() == 3 && Shape{lookups[0], lookups[1]} == Shape{shape[0], shape[1]},
          "the columns to look up must be [N, K, U + 1]");
  const auto wanted = *context.input<std::int64_t>(count);
  require(wanted >= 1 && static_cast<std::size_t>(wanted) <= size,
          "the number of candidates must be from 1 to the number of columns");
  const auto* looked_up = context.input<std::int64_t>(columns);
  require(std::all_of(looked_up, looked_up + lookups.count(0, 3),
                      [&](auto c) { return c >= 0 && static_cast<std::size_t>(c) < size; }),
          "a column to look up is out of range");
  const Shape many = {shape[0], shape[1], wanted};
  return {static_cast<std::size_t>(wanted),
          lookups.count(2, 3),
          looked_up,
          context.output<float>(0, many),
          context.output<std::int64_t>(1, many),
          context.output<float>(2, lookups)};
}

// Whether logits have a bias.
struct LogitsVariant {
  bool biased = false;
};

// Candidates8. The input that is added to logits is the bias of the model, if it has one; in
// padding columns it hides the logit.
class Candidates8Node {
 public:
  using Variant = NoVariant;

  Candidates8Node(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels), weights_(kernels, info, 1) {
    const ConstantFloats bias(info, 3, "the input that hides columns must be constant");
    require(bias.count == weights_.columns(),
            "the input that hides columns must have a value per column");
    // The hidden columns pad the last block.
    const auto* end = bias.values + bias.count;
    const auto* first = std::find_if(bias.values, end, [](float b) { return b < kMostHidden; });
    columns_ = static_cast<std::size_t>(first - bias.values);
  }

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    const auto matrix =
        weights_.with(context.input<std::int8_t>(1), context.input<float>(2), columns_);
    require(static_cast<std::size_t>(shape.back()) == matrix.inputs,
            "the input must have as many columns as the weights have rows");
    const auto found = candidates(context, shape, columns_, 4, 5);
    kernels_.candidates8(matrix, context.input<float>(3), context.input<float>(0),
                         shape.count(0, 2), found, context);
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
        lookups_(variant.biased ? 3 : 2),
        vocabulary_(read(kernels, variant, info, memory_)) {}

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    require(static_cast<std::size_t>(shape.back()) == vocabulary_.inputs,
            "the input and the vocabulary projection must have the same number of columns");
    const auto found = candidates(context, shape, vocabulary_.outputs, lookups_, lookups_ + 1);
    kernels_.candidates(vocabulary_, context.input<float>(1), context.input<float>(0),
                        shape.count(0, 2), found, context);
  }

 private:
  static Vocabulary read(const Kernels& kernels, const Variant& variant, const NodeInfo& info,
                         Arena& memory) {
    const auto matrix = info.constant(1, "the vocabulary projection must be constant");
    const auto shape = matrix.shape;
    require(shape.size() == 2, "the vocabulary projection must be [V, inputs]");
    const auto outputs = shape.count(0, 1);
    const float* bias = nullptr;
    if (variant.biased) {
      const ConstantFloats constants(info, 2, "the bias of the logits must be constant");
      require(constants.count == outputs, "the bias of the logits must have a value per token");
      bias = constants.values;
    }
    return kernels.vocabulary(static_cast<const float*>(matrix.data), bias, outputs,
                              shape.count(1, 2), memory);
  }

  const Kernels& kernels_;
  const std::size_t lookups_;  // index of the input
  Arena memory_;
  const Vocabulary vocabulary_;
};

class TopLogitsNode {
 public:
  using Variant = NoVariant;

  TopLogitsNode(const Kernels& kernels, const Variant&, const NodeInfo&) : kernels_(kernels) {}

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    const auto columns = static_cast<std::size_t>(shape.back());
    const auto found = candidates(context, shape, columns, 1, 2);
    kernels_.top_logits(context.input<float>(0), shape.count(0, 2), columns, found, context);
  }

 private:
  const Kernels& kernels_;
};

// Candidates from the shortlist of each sentence, with a float or 8-bit projection.
template <class Weight>
class ShortlistNode {
 public:
  using Variant = LogitsVariant;
  static constexpr bool kBytes = std::is_same_v<Weight, std::int8_t>;
  static constexpr std::size_t kBias = kBytes ? 3 : 2;  // index of the input, if present

  ShortlistNode(const Kernels& kernels, const Variant& variant, const NodeInfo& info)
      : kernels_(kernels), tokens_(kBias + (variant.biased ? 1 : 0)) {
    if constexpr (kBytes) {
      const auto matrix = info.constant(1, "the vocabulary projection must be constant");
      const auto shape = matrix.shape;
      require(shape.size() == 2, "the vocabulary projection must be [V, inputs]");
      const auto* row = static_cast<const std::int8_t*>(matrix.data);
      for (std::int64_t token = 0; token < shape[0]; ++token, row += shape[1]) {
        row_sums_.push_back(std::accumulate(row, row + shape[1], std::int32_t{0}));
      }
    }
  }

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0), matrix = context.shape(1), list = context.shape(tokens_);
    require(shape.size() == 3 && matrix.at(1) == shape[2],
            "the input and the vocabulary projection must have the same number of columns");
    require(list.size() == 2 && list[0] == shape[0], "there must be a shortlist for each sentence");
    const auto size = static_cast<std::size_t>(matrix[0]);
    const float* bias = nullptr;
    if (tokens_ > kBias) {
      require(context.shape(kBias) == Shape{matrix[0]},
              "the bias of the logits must have a value per token");
      bias = context.input<float>(kBias);
    }
    const Shortlists lists{shape.count(0, 1),
                           shape.count(1, 2),
                           list.count(1, 2),
                           shape.count(2, 3),
                           context.input<std::int64_t>(tokens_),
                           bias};
    require(std::all_of(lists.tokens, lists.tokens + lists.sentences * lists.entries,
                        [&](auto t) { return t >= 0 && static_cast<std::size_t>(t) < size; }),
            "a token of the shortlist is out of range");
    const auto found = candidates(context, shape, size, tokens_ + 1, tokens_ + 2);
    require(found.count <= lists.entries,
            "the number of candidates must not exceed the width of the shortlist");
    const auto* weights = context.input<Weight>(1);
    const auto* x = context.input<float>(0);
    if constexpr (kBytes) {
      kernels_.shortlist_candidates8(lists, weights, context.input<float>(2), row_sums_.data(), x,
                                     found, context);
    } else {
      kernels_.shortlist_candidates(lists, weights, x, found, context);
    }
  }

 private:
  const Kernels& kernels_;
  const std::size_t tokens_;  // index of the input
  std::vector<std::int32_t> row_sums_;
};

// LayerNormalization or, with `kRms`, without mean and beta; with `kAdded`, of a residual sum,
// which is the first output with `kKept`.
template <bool kRms, bool kAdded, bool kKept = false>
class NormNode {
 public:
  using Variant = NoVariant;

  NormNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels), epsilon_(info.number("epsilon")) {}

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    require(!kAdded || context.shape(1) == shape,
            "the residual and the input must have the same shape");
    const Shape row = {shape.back()};
    require(context.shape(1 + kAdded) == row && (kRms || context.shape(2 + kAdded) == row),
            "gamma and beta must have the shape of a row");
    const Norm norm{context.input<float>(1 + kAdded),
                    kRms ? nullptr : context.input<float>(2 + kAdded), epsilon_};
    kernels_.add_norm(context.input<float>(0), kAdded ? context.input<float>(1) : nullptr,
                      shape.count(0, shape.size() - 1), static_cast<std::size_t>(shape.back()),
                      norm, kKept ? context.output<float>(0, shape) : nullptr,
                      context.output<float>(kKept, shape), context);
  }

 private:
  const Kernels& kernels_;
  const float epsilon_;
};

class RecurrentUnitNode {
 public:
  using Variant = NoVariant;

  RecurrentUnitNode(const Kernels& kernels, const Variant&, const NodeInfo&) : kernels_(kernels) {}

  void run(OperatorContext& context) const {
    const auto shape = context.shape(1);
    require(!shape.empty(), "the state of a recurrent unit must have columns");
    auto gates = shape;
    gates.back() *= 2;
    require(context.shape(0) == gates, "the gates must be twice as wide as the state");
    kernels_.recurrent_unit(context.input<float>(0), context.input<float>(1),
                            shape.count(0, shape.size() - 1),
                            static_cast<std::size_t>(shape.back()), context.output<float>(0, shape),
                            context.output<float>(1, shape), context);
  }

 private:
  const Kernels& kernels_;
};

class GatedGeluNode {
 public:
  using Variant = NoVariant;

  GatedGeluNode(const Kernels& kernels, const Variant&, const NodeInfo&) : kernels_(kernels) {}

  void run(OperatorContext& context) const {
    auto shape = context.shape(0);
    require(!shape.empty() && shape.back() % 2 == 0, "a gated unit needs an even width");
    shape.back() /= 2;
    kernels_.gated_gelu(context.input<float>(0), shape.count(0, shape.size() - 1),
                        static_cast<std::size_t>(shape.back()), context.output<float>(0, shape),
                        context);
  }

 private:
  const Kernels& kernels_;
};

void add_linear_operators(Registry& registry) {
  registry.add<LinearNode>("Linear", EpilogueKind::nothing);
  registry.add<LinearNode>("LinearRelu", EpilogueKind::relu);
  registry.add<LinearNode>("LinearGelu", EpilogueKind::gelu);
  registry.add<LinearNode>("LinearSwish", EpilogueKind::swish);
  registry.add<LinearNode>("LinearAdd", EpilogueKind::add);
  registry.add<LinearNode>("LinearAddNorm", EpilogueKind::add_norm);
  registry.add<LinearNode>("LinearAddAndNorm", EpilogueKind::add_and_norm);
  registry.add<LinearNode>("LinearAddRmsNorm", EpilogueKind::add_rms);
  registry.add<LinearNode>("LinearAddAndRmsNorm", EpilogueKind::add_and_rms);
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
    registry.add<Linear8Node>(name + "AddRmsNorm", {positive, EpilogueKind::add_rms});
    registry.add<Linear8Node>(name + "AddAndRmsNorm", {positive, EpilogueKind::add_and_rms});
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

}  // namespace

const Registry& host_operators() {
  static const auto* const all = [] {
    const auto& kernels = host_kernels();
    auto* result = new Registry(kernels);
    add_search_operators(*result);
    add_source_operators(*result);
    if (kernels.linear != nullptr) add_linear_operators(*result);
    if (kernels.linear8 != nullptr) add_linear8_operators(*result);
    add_candidates_operators(*result);
    if (kernels.add_norm != nullptr) {
      result->add<NormNode<false, false>>("Norm");
      result->add<NormNode<false, true>>("AddNorm");
      result->add<NormNode<false, true, true>>("AddAndNorm");
      result->add<NormNode<true, false>>("RmsNorm");
      result->add<NormNode<true, true>>("AddRmsNorm");
      result->add<NormNode<true, true, true>>("AddAndRmsNorm");
    }
    if (kernels.recurrent_unit != nullptr) result->add<RecurrentUnitNode>("RecurrentUnit");
    if (kernels.gated_gelu != nullptr) result->add<GatedGeluNode>("GatedGelu");
    add_attention_operators(*result);
    return result;
  }();
  return *all;
}

const Declaration& declaration(const std::string& name) {
  for (const auto& one : declarations()) {
    if (one.name == name) return one;
  }
  throw std::logic_error("no operator " + name +
                         " is declared: see export/fused_ops/declarations.py");
}

}  // namespace translate_trt
