// Operators of embeddings, the source's padding and its shortlist, for every processor.

#include <algorithm>

#include "beam_search.h"
#include "operator.h"
#include "ports.h"

namespace translate_trt {
namespace {

// Embeddings of the beams' tokens or, with `kSource`, of the source's.
template <bool kEightBits, bool kSource>
class EmbedNode {
 public:
  using Variant = NoVariant;
  EmbedNode(const Kernels&, const Variant&, const NodeInfo& info)
      : factor_(info.number("factor")) {}

  void run(OperatorContext& context) const {
    constexpr std::size_t kPositions = kEightBits ? 2 : 1;  // index of the position table
    const auto table = context.shape(0), positions = context.shape(kPositions);
    const auto tokens = context.shape(kPositions + 1);
    require(table.size() == 2 && positions.size() == 2 && tokens.size() == 2 &&
                positions[1] == table[1],
            "the shapes of tables and tokens do not match");
    const Embedding embedding{
        tokens.count(0, 1),
        tokens.count(1, 2),
        table.count(1, 2),
        context.input<std::int64_t>(kPositions + 1),
        kSource ? nullptr : context.input<std::int64_t>(kPositions + 2),
        context.input<float>(kPositions),
        factor_,
    };
    require(within(embedding.tokens, tokens.count(0, 2), table[0]), "a token is out of range");
    if constexpr (kSource) {
      require(tokens[1] <= positions[0], "there must be a position for each token");
    } else {
      require(context.shape(kPositions + 2) == Shape{tokens[0]},
              "the shapes of tokens and positions do not match");
      require(within(embedding.positions, embedding.sentences, positions[0]),
              "a position is out of range");
    }
    auto* y = context.output<float>(0, {tokens[0], tokens[1], table[1]});
    if constexpr (kEightBits) {
      require(context.shape(1) == Shape{table[0], 1},
              "there must be a scale for each row of the table");
      embed8(embedding, context.input<std::int8_t>(0), context.input<float>(1), y);
    } else {
      embed(embedding, context.input<float>(0), y);
    }
  }

 private:
  const float factor_;
};

// Base of nodes that see the tokens of a sentence except for the last `hidden` ones.
class SourceNode {
 public:
  using Variant = NoVariant;
  SourceNode(const Kernels&, const Variant&, const NodeInfo& info)
      : hidden_(info.integer("hidden")) {}

 protected:
  // Number of visible tokens of a sentence of this length, within the width of the batch.
  std::size_t visible(std::int64_t length, std::int64_t width) const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(length - hidden_, 0, width));
  }

 private:
  const std::int64_t hidden_;
};

class SourceBiasNode : public SourceNode {
 public:
  using SourceNode::SourceNode;

  void run(OperatorContext& context) const {
    constexpr float kMasked = -1e9F;
    const Sizes sizes = context.sizes();
    const auto width = sizes.count('S');
    const auto* lengths = context.input(SourceBiasInputs::source_lengths);
    auto* bias = context.output(SourceBiasOutputs::bias, {sizes['N'], 1, 1, sizes['S']});
    for (std::size_t n = 0; n < sizes.count('N'); ++n, bias += width) {
      const auto seen = visible(lengths[n], sizes['S']);
      std::fill_n(bias, seen, 0.0F);
      std::fill_n(bias + seen, width - seen, kMasked);
    }
  }
};

// The bias of each head by the distance of a token from another, added to the mask of padding.
class RelativeSourceBiasNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto mask = context.shape(0), table = context.shape(1);
    require(
        mask.size() == 4 && mask[1] == 1 && mask[2] == 1 && table.size() == 2 && table[0] % 2 == 1,
        "the mask must be [N, 1, 1, S] and the biases [2 M + 1, H]");
    const auto size = mask[3], heads = table[1], most = table[0] / 2;
    const auto* masks = context.input<float>(0);
    const auto* distances = context.input<float>(1);
    auto* bias = context.output<float>(0, {mask[0], heads, size, size});
    for (std::int64_t n = 0; n < mask[0]; ++n, masks += size) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t query = 0; query < size; ++query, bias += size) {
          for (std::int64_t key = 0; key < size; ++key) {
            const auto row = std::clamp(key - query, -most, most) + most;
            bias[key] = masks[key] + distances[row * heads + h];
          }
        }
      }
    }
  }
};

// The same for the slots of a step, whose positions it records.
class RelativeSlotBiasNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto ancestry = context.shape(0), past = context.shape(3), table = context.shape(4);
    require(ancestry.size() == 3 && table.size() == 2 && table[0] > 0 &&
                past == Shape{ancestry[0], 1, ancestry[2], 1} &&
                context.shape(1) == Shape{ancestry[0], ancestry[1]} &&
                context.shape(2) == Shape{ancestry[0]},
            "the shapes of ancestry, slots and positions do not match");
    const auto beams = ancestry[1], width = ancestry[2], heads = table[1];
    const auto* slots = context.input<std::int64_t>(1);
    require(within(slots, ancestry.count(0, 2), width), "a slot is out of range");
    const auto* of_sentences = context.input<std::int64_t>(2);
    const auto* before = context.input<std::int64_t>(3);
    const auto* distances = context.input<float>(4);
    const auto* visible = context.input<float>(0);
    auto* bias = context.output<float>(0, {ancestry[0], heads, beams, width});
    auto* positions = context.output<std::int64_t>(1, past);
    if (positions != before) std::copy_n(before, past.count(0, 4), positions);
    for (std::int64_t n = 0; n < ancestry[0]; ++n, positions += width, visible += beams * width) {
      for (std::int64_t k = 0; k < beams; ++k) positions[*slots++] = of_sentences[n];
      for (std::int64_t h = 0; h < heads; ++h, bias += beams * width) {
        for (std::int64_t slot = 0; slot < width; ++slot) {
          const auto far =
              std::clamp<std::int64_t>(of_sentences[n] - positions[slot], 0, table[0] - 1);
          bias[slot] = distances[far * heads + h];
        }
        // The first row is the sum's operand in the others, so it comes last.
        for (std::int64_t k = beams - 1; k >= 0; --k) {
          for (std::int64_t slot = 0; slot < width; ++slot) {
            bias[k * width + slot] = visible[k * width + slot] + bias[slot];
          }
        }
      }
    }
  }
};

class SourceShortlistNode : public SourceNode {
 public:
  using SourceNode::SourceNode;

  void run(OperatorContext& context) const {
    using In = SourceShortlistInputs;
    const Sizes sizes = context.sizes();
    const auto width = sizes.count('S'), choices = sizes.count('C');
    const auto* ids = context.input(In::source_ids);
    const auto* lengths = context.input(In::source_lengths);
    const auto* frequent = context.input(In::frequent);
    const auto* table = context.input(In::translations);
    const auto* frequent_end = frequent + sizes.count('F');
    require(within(ids, sizes.count('N') * width, sizes['V']), "a token is out of range");
    require(std::is_sorted(frequent, frequent_end), "the frequent tokens must ascend");
    const auto entries = sizes['F'] + sizes['S'] * sizes['C'];
    auto* shortlist = context.output(SourceShortlistOutputs::shortlist, {sizes['N'], entries});
    const auto one = [&](std::size_t n) {
      const Workspace workspace(context.workspaces());
      auto* const found = static_cast<std::int32_t*>(
          workspace.arena.allocate(width * choices * sizeof(std::int32_t)));
      auto* found_end = found;
      const auto seen = visible(lengths[n], sizes['S']);
      for (std::size_t s = 0; s < seen; ++s) {
        const auto* row = table + static_cast<std::size_t>(ids[n * width + s]) * choices;
        found_end =
            std::copy_if(row, row + choices, found_end, [](auto token) { return token != kEmpty; });
      }
      std::sort(found, found_end);
      auto* const list = shortlist + n * static_cast<std::size_t>(entries);
      auto* const end = std::merge(frequent, frequent_end, found, found_end, list);
      std::fill(end, list + entries, kEmpty);
      // Backwards, so that a token is compared before it is replaced.
      for (auto i = end - list - 1; i > 0; --i) {
        if (list[i] == list[i - 1]) list[i] = kEmpty;
      }
    };
    context.run(sizes.count('N'), {[](const void* closure, std::size_t n) {
                                     (*static_cast<decltype(one)*>(closure))(n);
                                   },
                                   &one});
  }

 private:
  static constexpr std::int32_t kEmpty = 0;
};

}  // namespace

void add_source_operators(Registry& registry) {
  registry.add<EmbedNode<false, false>>("Embed");
  registry.add<EmbedNode<true, false>>("Embed8");
  registry.add<EmbedNode<false, true>>("EmbedSource");
  registry.add<EmbedNode<true, true>>("EmbedSource8");
  registry.add<SourceBiasNode>("SourceBias");
  registry.add<SourceShortlistNode>("SourceShortlist");
  registry.add<RelativeSourceBiasNode>("RelativeSourceBias");
  registry.add<RelativeSlotBiasNode>("RelativeSlotBias");
}

}  // namespace translate_trt
