#include <algorithm>
#include <cstring>

#include "operator.h"

namespace translate_trt {
namespace {

// What attention does with keys and values of a type.
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

template <class Number>
class BeamAttentionNode {
 public:
  using Variant = NoVariant;

  BeamAttentionNode(const Kernels& kernels, const Variant&, const NodeInfo&) : kernels_(kernels) {}

  void run(Call& call) const {
    const auto query = call.shape(0), key = call.shape(1);
    const Shape bias = {query.at(0), 1, 1, key.at(2)};
    require(call.shape(2) == key && call.shape(3) == bias && query.at(0) == key[0] &&
                query.at(2) == key[1] * key.at(3),
            "query, key, value and bias do not fit each other");
    const Attention<Number> attention{
        product(query, 0, 1),         product(query, 1, 2),
        product(key, 1, 2),           product(key, 2, 3),
        product(key, 3, 4),           call.input<float>(0),
        product(query, 2, 3),         call.input<Number>(1),
        call.input<Number>(2),        product(key, 1, 4),
        product(key, 2, 4),           product(key, 3, 4),
        call.input<float>(3),         1,
        call.output<float>(0, query),
    };
    Cached<Number>::attend(kernels_, attention, call);
  }

 private:
  const Kernels& kernels_;
};

template <class Number>
class CachedAttentionNode {
 public:
  using Variant = NoVariant;

  CachedAttentionNode(const Kernels& kernels, const Variant&, const NodeInfo&)
      : kernels_(kernels) {}

  void run(Call& call) const {
    const auto merged = call.shape(0), cache = call.shape(1);
    require(merged.size() == 3 && cache.size() == 4, "wrong number of axes");
    const auto hidden_size = cache[1] * cache[3];
    const Shape slots = {merged[0], merged[1]}, bias = {merged[0], 1, merged[1], cache[2]};
    require(call.shape(2) == cache && call.shape(3) == slots && call.shape(4) == bias &&
                merged[0] == cache[0] && merged[2] == 3 * hidden_size,
            "projections, caches, slots and bias do not fit each other");
    const auto stride = static_cast<std::size_t>(merged[2]);
    const auto* qkv = call.input<float>(0);
    auto* key = write(call, 1, cache, qkv + hidden_size, stride);
    auto* value = write(call, 2, cache, qkv + 2 * hidden_size, stride);
    const Attention<Number> attention{
        product(merged, 0, 1),
        product(merged, 1, 2),
        product(cache, 1, 2),
        product(cache, 2, 3),
        product(cache, 3, 4),
        qkv,
        stride,
        key,
        value,
        product(cache, 1, 4),
        product(cache, 2, 4),
        product(cache, 3, 4),
        call.input<float>(4),
        product(merged, 1, 2),
        call.output<float>(0, {merged[0], merged[1], hidden_size}),
    };
    Cached<Number>::attend(kernels_, attention, call);
  }

 private:
  // New rows [N, K, stride] into their slots of a cache, in place where input and output are one.
  Number* write(Call& call, std::size_t index, const Shape& cache, const float* rows,
                std::size_t stride) const {
    const auto* past = call.input<Number>(index);
    auto* next = call.output<Number>(index, cache);
    if (next != past) {
      std::memcpy(next, past, product(cache, 0, 4) * sizeof(Number));
    }
    const auto sentences = product(cache, 0, 1), heads = product(cache, 1, 2);
    const auto places = product(cache, 2, 3), size = product(cache, 3, 4);
    const auto beams = product(call.shape(3), 1, 2);
    const auto* slots = call.input<std::int64_t>(3);
    for (std::size_t n = 0; n < sentences; ++n) {
      for (std::size_t k = 0; k < beams; ++k, rows += stride) {
        const auto slot = static_cast<std::size_t>(*slots++);
        require(slot < places, "a slot is out of range");
        for (std::size_t h = 0; h < heads; ++h) {
          Cached<Number>::write(kernels_, rows + h * size, size,
                                next + ((n * heads + h) * places + slot) * size);
        }
      }
    }
    return next;
  }

  const Kernels& kernels_;
};

// Attention of a sentence's tokens over each other.
class SelfAttentionNode {
 public:
  using Variant = NoVariant;

  SelfAttentionNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels), heads_(info.attribute<std::int64_t>("heads")) {}

  void run(Call& call) const {
    const auto merged = call.shape(0);
    require(merged.size() == 3 && heads_ > 0 && merged[2] % (3 * heads_) == 0,
            "projections are not queries, keys and values of that many heads");
    const Shape bias = {merged[0], 1, 1, merged[1]};
    require(call.shape(1) == bias, "projections and bias do not fit each other");
    const auto hidden_size = merged[2] / 3, size = hidden_size / heads_;
    const auto* qkv = call.input<float>(0);
    const Attention<float> attention{
        product(merged, 0, 1),
        product(merged, 1, 2),
        static_cast<std::size_t>(heads_),
        product(merged, 1, 2),
        static_cast<std::size_t>(size),
        qkv,
        product(merged, 2, 3),
        qkv + hidden_size,
        qkv + 2 * hidden_size,
        product(merged, 1, 3),
        static_cast<std::size_t>(size),
        product(merged, 2, 3),
        call.input<float>(1),
        1,
        call.output<float>(0, {merged[0], merged[1], hidden_size}),
    };
    kernels_.attention(attention, call);
  }

 private:
  const Kernels& kernels_;
  const std::int64_t heads_;
};

// Some columns of a product, split into heads that stand one after the other.
template <class Number>
class SplitHeadsNode {
 public:
  using Variant = NoVariant;

  SplitHeadsNode(const Kernels& kernels, const Variant&, const NodeInfo& info)
      : kernels_(kernels),
        begin_(info.attributes<std::int64_t>("begin")),
        head_shape_(info.attributes<std::int64_t>("head_shape")) {
    require(begin_.size() == 1 && begin_[0] >= 0 && head_shape_.size() == 4 && head_shape_[2] > 0 &&
                head_shape_[3] > 0,
            "it is not said which columns are which heads");
  }

  void run(Call& call) const {
    const auto merged = call.shape(0);
    const auto heads = head_shape_[2], size = head_shape_[3];
    require(merged.size() == 3 && begin_[0] + heads * size <= merged[2],
            "there are not that many columns");
    const auto* x = call.input<float>(0) + begin_[0];
    auto* y = call.output<Number>(0, {merged[0], heads, merged[1], size});
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
    registry.add<SelfAttentionNode>("SelfAttention");
    registry.add<SplitHeadsNode<float>>("SplitHeads");
  }
  if (kernels.attention16 != nullptr && kernels.to_half != nullptr) {
    registry.add<CachedAttentionNode<Half>>("CachedAttention16");
    registry.add<BeamAttentionNode<Half>>("BeamAttention16");
    registry.add<SplitHeadsNode<Half>>("SplitHeads16");
  }
}

}  // namespace translate_trt
