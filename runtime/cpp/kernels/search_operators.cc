// Operators of the embedding, the beam search and the slots, which any processor computes alike.

#include <algorithm>

#include "beam_search.h"
#include "operator.h"

namespace translate_trt {
namespace {

bool within(const std::int64_t* values, std::size_t count, std::int64_t end) {
  return std::all_of(values, values + count, [=](auto v) { return v >= 0 && v < end; });
}

// What nodes that no kernel of a processor and no attribute belongs to have in common.
class PortableNode {
 public:
  using Variant = NoVariant;
  PortableNode(const Kernels&, const Variant&, const NodeInfo&) {}
};

template <bool kEightBits>
class EmbedNode {
 public:
  using Variant = NoVariant;
  EmbedNode(const Kernels&, const Variant&, const NodeInfo& info)
      : factor_(info.attribute<float>("factor")) {}

  void run(Call& call) const {
    constexpr std::size_t kPositions = kEightBits ? 2 : 1;  // the table of them
    const auto table = call.shape(0), positions = call.shape(kPositions);
    const auto tokens = call.shape(kPositions + 1);
    require(table.size() == 2 && positions.size() == 2 && tokens.size() == 2 &&
                positions[1] == table[1] && call.shape(kPositions + 2) == Shape{tokens[0]},
            "tables, tokens and positions do not fit each other");
    const Embedding embedding{
        product(tokens, 0, 1),
        product(tokens, 1, 2),
        product(table, 1, 2),
        call.input<std::int64_t>(kPositions + 1),
        call.input<std::int64_t>(kPositions + 2),
        call.input<float>(kPositions),
        factor_,
    };
    require(within(embedding.tokens, product(tokens, 0, 2), table[0]), "a token is out of range");
    require(within(embedding.positions, embedding.sentences, positions[0]),
            "a position is out of range");
    auto* y = call.output<float>(0, {tokens[0], tokens[1], table[1]});
    if constexpr (kEightBits) {
      require(call.shape(1) == Shape{table[0], 1}, "there is not one scale for each row");
      embed8(embedding, call.input<std::int8_t>(0), call.input<float>(1), y);
    } else {
      embed(embedding, call.input<float>(0), y);
    }
  }

 private:
  const float factor_;
};

class ForcedColumnsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(Call& call) const {
    const auto beams = call.shape(1);
    require(beams.size() == 2 && call.shape(0) == Shape{beams[0]},
            "forced tokens and beams do not fit each other");
    const auto* forced = call.input<std::int64_t>(0);
    auto* columns = call.output<std::int64_t>(0, {beams[0], beams[1], 1});
    for (std::int64_t n = 0; n < beams[0]; ++n) {
      columns = std::fill_n(columns, beams[1], forced_column(forced[n]));
    }
    *call.output<std::int64_t>(1, {1}) = 2 * beams[1] + 1;
  }
};

class SelectBeamsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(Call& call) const {
    const auto shape = call.shape(0), beams = call.shape(10);
    require(shape.size() == 3 && beams.size() == 2, "wrong number of axes");
    const Shape rows = {shape[0]};
    require(beams == Shape{shape[0], shape[1]} && call.shape(1) == shape &&
                call.shape(2) == Shape{shape[0], shape[1], 1},
            "candidates and beams do not fit each other");
    for (const std::size_t input : {4, 5, 6, 7, 8, 9, 11, 12}) {
      require(call.shape(input) == rows, "there is not one value for each sentence");
    }
    for (const std::size_t input : {13, 14, 15, 16}) {
      require(call.shape(input) == beams, "the pool has not the shape of the beams");
    }
    require(shape[2] >= 1 && shape[1] >= 1, "there are no candidates");
    const Selection selection{
        product(shape, 0, 1),
        product(shape, 1, 2),
        product(shape, 2, 3),
        call.input<float>(0),
        call.input<std::int64_t>(1),
        call.input<float>(2),
        *call.input<std::int64_t>(3),
        call.input<std::int64_t>(4),
        call.input<std::int64_t>(5),
        call.input<std::int64_t>(6),
        call.input<float>(7),
        call.input<float>(8),
        call.input<bool>(9),
        call.input<float>(10),
        call.input<std::int64_t>(11),
        call.input<bool>(12),
        call.input<float>(13),
        call.input<std::int64_t>(14),
        call.input<std::int64_t>(15),
        call.input<bool>(16),
        call.output<std::int64_t>(0, beams),
        call.output<std::int64_t>(1, beams),
        call.output<float>(2, beams),
        call.output<std::int64_t>(3, rows),
        call.output<bool>(4, rows),
        call.output<float>(5, beams),
        call.output<std::int64_t>(6, beams),
        call.output<std::int64_t>(7, beams),
        call.output<bool>(8, beams),
    };
    select_beams(selection);
  }
};

// Of ancestry [N, K, P] and numbers [N, K], which are below `end`.
Ancestry ancestry(Call& call, const Shape& shape, std::int64_t end, const char* what) {
  require(call.shape(1) == Shape{shape[0], shape[1]}, "ancestry and beams do not fit each other");
  require(within(call.input<std::int64_t>(1), product(shape, 0, 2), end), what);
  return {product(shape, 0, 1), product(shape, 1, 2), product(shape, 2, 3), call.input<float>(0),
          call.output<float>(0, shape)};
}

class ExtendAncestryNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(Call& call) const {
    const auto shape = call.shape(0);
    require(shape.size() == 3, "ancestry is [N, K, P]");
    extend_ancestry(ancestry(call, shape, shape[2], "a slot is out of range"),
                    call.input<std::int64_t>(1));
  }
};

class FollowAncestryNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(Call& call) const {
    const auto shape = call.shape(0);
    require(shape.size() == 3, "ancestry is [N, K, P]");
    require(shape[2] >= shape[1], "there are fewer slots than beams");
    follow_ancestry(ancestry(call, shape, shape[1], "a parent is out of range"),
                    call.input<std::int64_t>(1), call.output<std::int64_t>(1, {shape[0], shape[1]}),
                    call.output<bool>(2, {shape[0]}));
  }
};

}  // namespace

void add_search_operators(Registry& registry) {
  registry.add<EmbedNode<false>>("Embed");
  registry.add<EmbedNode<true>>("Embed8");
  registry.add<ForcedColumnsNode>("ForcedColumns");
  registry.add<SelectBeamsNode>("SelectBeams");
  registry.add<ExtendAncestryNode>("ExtendAncestry");
  registry.add<FollowAncestryNode>("FollowAncestry");
}

}  // namespace translate_trt
