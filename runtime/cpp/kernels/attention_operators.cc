#include <algorithm>
#include <cstring>

#include "operator.h"

namespace translate_trt {
namespace {

// Kernels for keys and values of one element type.
template <class Number>
struct Cached;

template <>
struct Cached<float> {
  static void attend(const Kernels& kernels, const Attention<float>& attention,
                     Executor& executor) {
    kernels.attention(attention, executor);
  }
  static void write(const Kernels&, const float* x, std::size_t count, float* y) {
    std::copy_n(x, count, y);
  }
};

template <>
struct Cached<Half> {
  static void attend(const Kernels& kernels, const Attention<Half>& attention, Executor& executor) {
    kernels.attention16(attention, executor);
  }
  static void write(const Kernels& kernels, const float* x, std::size_t count, Half* y) {
    kernels.to_half(x, count, y);
  }
};

// The number of heads with a bias of their own, or 1.
std::int64_t heads_of_bias(const Shape& bias, std::int64_t heads) {
  return bias.size() == 4 && bias[1] == heads ? heads : 1;
}

// Attention over the source and, with `kMean`, the mean of some heads' weights.
template <class Number, bool kMean = false>
class BeamAttentionNode {
 public:
  using Variant = NoVariant;

  BeamAttentionNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels) {
    if constexpr (kMean) averaged_ = info.integers("averaged");
  }

  void run(OperatorContext& context) const {
    const auto query = context.shape(0), key = context.shape(1);
    const Shape bias = {query.at(0), 1, 1, key.at(2)};
    require(context.shape(2) == key && context.shape(3) == bias && query.at(0) == key[0] &&
                query.at(2) == key[1] * key.at(3),
            "the shapes of query, key, value and bias do not match");
    Attention<Number> attention{
        query.count(0, 1),
        query.count(1, 2),
        key.count(1, 2),
        key.count(2, 3),
        key.count(3, 4),
        context.input<float>(0),
        query.count(2, 3),
        context.input<Number>(1),
        context.input<Number>(2),
        key.count(1, 4),
        key.count(2, 4),
        key.count(3, 4),
        context.input<float>(3),
        1,
        context.output<float>(0, query),
    };
    if constexpr (kMean) {
      for (const auto head : averaged_) {
        require(head >= 0 && head < key[1], "a head to average is out of range");
      }
      auto* mean = context.output<float>(1, {query[0], query[1], key[2]});
      const Workspace workspace(context.workspaces());
      attention.weights = static_cast<float*>(
          workspace.arena.allocate(query.count(0, 2) * key.count(1, 3) * sizeof(float)));
      Cached<Number>::attend(kernels_, attention, context);
      average(attention, mean);
    } else {
      Cached<Number>::attend(kernels_, attention, context);
    }
  }

 private:
  // Averages weights over heads, in order, to mean [N, K, S].
  void average(const Attention<Number>& a, float* mean) const {
    const auto plane = a.queries * a.positions;
    for (std::size_t n = 0; n < a.sentences; ++n, mean += plane) {
      std::fill_n(mean, plane, 0.0F);
      for (const auto head : averaged_) {
        const auto* weights = a.weights + (n * a.heads + static_cast<std::size_t>(head)) * plane;
        for (std::size_t i = 0; i < plane; ++i) mean[i] += weights[i];
      }
      for (std::size_t i = 0; i < plane; ++i) mean[i] /= static_cast<float>(averaged_.size());
    }
  }

  const Kernels& kernels_;
  std::vector<std::int64_t> averaged_;
};

template <class Number>
class CachedAttentionNode {
 public:
  using Variant = NoVariant;

  CachedAttentionNode(const Kernels& kernels, const Variant&, const NodeInfo&)
      : kernels_(kernels) {}

  void run(OperatorContext& context) const {
    const auto merged = context.shape(0), cache = context.shape(1);
    require(merged.size() == 3 && cache.size() == 4,
            "the input must be [N, K, 3 * heads * size], and caches [N, heads, P, size]");
    const auto hidden_size = cache[1] * cache[3];
    const Shape slots = {merged[0], merged[1]};
    const auto bias_heads = heads_of_bias(context.shape(4), cache[1]);
    const Shape bias = {merged[0], bias_heads, merged[1], cache[2]};
    require(context.shape(2) == cache && context.shape(3) == slots && context.shape(4) == bias &&
                merged[0] == cache[0] && merged[2] == 3 * hidden_size,
            "the shapes of projections, caches, slots and bias do not match");
    const auto stride = static_cast<std::size_t>(merged[2]);
    const auto* qkv = context.input<float>(0);
    auto* key = write(context, 1, cache, qkv + hidden_size, stride);
    auto* value = write(context, 2, cache, qkv + 2 * hidden_size, stride);
    const Attention<Number> attention{
        merged.count(0, 1),
        merged.count(1, 2),
        cache.count(1, 2),
        cache.count(2, 3),
        cache.count(3, 4),
        qkv,
        stride,
        key,
        value,
        cache.count(1, 4),
        cache.count(2, 4),
        cache.count(3, 4),
        context.input<float>(4),
        merged.count(1, 2),
        context.output<float>(0, {merged[0], merged[1], hidden_size}),
        nullptr,
        static_cast<std::size_t>(bias_heads),
    };
    Cached<Number>::attend(kernels_, attention, context);
  }

 private:
  // Writes new rows [N, K, stride] into their slots of a cache; in place if input and output share
  // memory.
  Number* write(OperatorContext& context, std::size_t index, const Shape& cache, const float* rows,
                std::size_t stride) const {
    const auto* past = context.input<Number>(index);
    auto* next = context.output<Number>(index, cache);
    if (next != past) {
      std::memcpy(next, past, cache.count(0, 4) * sizeof(Number));
    }
    const auto sentences = cache.count(0, 1), heads = cache.count(1, 2);
    const auto slot_count = cache.count(2, 3), size = cache.count(3, 4);
    const auto beams = context.shape(3).count(1, 2);
    const auto* slots = context.input<std::int64_t>(3);
    for (std::size_t n = 0; n < sentences; ++n) {
      for (std::size_t k = 0; k < beams; ++k, rows += stride) {
        const auto slot = static_cast<std::size_t>(*slots++);
        require(slot < slot_count, "a slot is out of range");
        for (std::size_t h = 0; h < heads; ++h) {
          Cached<Number>::write(kernels_, rows + h * size, size,
                                next + ((n * heads + h) * slot_count + slot) * size);
        }
      }
    }
    return next;
  }

  const Kernels& kernels_;
};

// Self-attention of the encoder.
class SelfAttentionNode {
 public:
  using Variant = NoVariant;

  SelfAttentionNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels), heads_(info.integer("heads")) {}

  void run(OperatorContext& context) const {
    const auto merged = context.shape(0);
    require(merged.size() == 3 && heads_ > 0 && merged[2] % (3 * heads_) == 0,
            "the projections must be queries, keys and values of `heads` heads");
    const bool relative = context.shape(1).size() == 4 && context.shape(1)[2] > 1;
    const auto bias_heads = heads_of_bias(context.shape(1), heads_);
    const Shape bias = {merged[0], bias_heads, relative ? merged[1] : 1, merged[1]};
    require(context.shape(1) == bias, "the shapes of projections and bias do not match");
    const auto hidden_size = merged[2] / 3, size = hidden_size / heads_;
    const auto* qkv = context.input<float>(0);
    const Attention<float> attention{
        merged.count(0, 1),
        merged.count(1, 2),
        static_cast<std::size_t>(heads_),
        merged.count(1, 2),
        static_cast<std::size_t>(size),
        qkv,
        merged.count(2, 3),
        qkv + hidden_size,
        qkv + 2 * hidden_size,
        merged.count(1, 3),
        static_cast<std::size_t>(size),
        merged.count(2, 3),
        context.input<float>(1),
        bias.count(2, 3),
        context.output<float>(0, {merged[0], merged[1], hidden_size}),
        nullptr,
        static_cast<std::size_t>(bias_heads),
    };
    kernels_.attention(attention, context);
  }

 private:
  const Kernels& kernels_;
  const std::int64_t heads_;
};

// Columns of a matmul's result, split into heads.
template <class Number>
class SplitHeadsNode {
 public:
  using Variant = NoVariant;

  SplitHeadsNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels),
        begin_(info.integers("begin")),
        head_shape_(info.integers("head_shape")) {
    require(begin_.size() == 1 && begin_[0] >= 0 && head_shape_.size() == 4 && head_shape_[2] > 0 &&
                head_shape_[3] > 0,
            "begin must be one column, and head_shape [0, 0, heads, size]");
  }

  void run(OperatorContext& context) const {
    const auto merged = context.shape(0);
    const auto heads = head_shape_[2], size = head_shape_[3];
    require(merged.size() == 3 && begin_[0] + heads * size <= merged[2],
            "the input must have the columns from begin to end");
    const auto* x = context.input<float>(0) + begin_[0];
    auto* y = context.output<Number>(0, {merged[0], heads, merged[1], size});
    for (std::int64_t n = 0; n < merged[0]; ++n, x += merged[1] * merged[2]) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t s = 0; s < merged[1]; ++s, y += size) {
          Cached<Number>::write(kernels_, x + s * merged[2] + h * size,
                                static_cast<std::size_t>(size), y);
        }
      }
    }
  }

 private:
  const Kernels& kernels_;
  const std::vector<std::int64_t> begin_, head_shape_;
};

}  // namespace

void add_attention_operators(Registry& registry) {
  const auto& kernels = registry.kernels();
  if (kernels.attention != nullptr) {
    registry.add<CachedAttentionNode<float>>("CachedAttention");
    registry.add<BeamAttentionNode<float>>("BeamAttention");
    registry.add<BeamAttentionNode<float, true>>("BeamAttentionMean");
    registry.add<SelfAttentionNode>("SelfAttention");
    registry.add<SplitHeadsNode<float>>("SplitHeads");
  }
  if (kernels.attention16 != nullptr && kernels.to_half != nullptr) {
    registry.add<CachedAttentionNode<Half>>("CachedAttention16");
    registry.add<BeamAttentionNode<Half>>("BeamAttention16");
    registry.add<BeamAttentionNode<Half, true>>("BeamAttentionMean16");
    registry.add<SplitHeadsNode<Half>>("SplitHeads16");
  }
}

}  // namespace translate_trt
