// Operators of the embedding, the beam search and the cache slots, for every processor.

#include <algorithm>

#include "beam_search.h"
#include "operator.h"

namespace translate_trt {
namespace {

bool within(const std::int64_t* values, std::size_t count, std::int64_t end) {
  return std::all_of(values, values + count, [=](auto v) { return v >= 0 && v < end; });
}

// Base of nodes that need neither the processor's kernels nor attributes.
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

  void run(OperatorContext& context) const {
    constexpr std::size_t kPositions = kEightBits ? 2 : 1;  // index of the position table
    const auto table = context.shape(0), positions = context.shape(kPositions);
    const auto tokens = context.shape(kPositions + 1);
    require(table.size() == 2 && positions.size() == 2 && tokens.size() == 2 &&
                positions[1] == table[1] && context.shape(kPositions + 2) == Shape{tokens[0]},
            "the shapes of tables, tokens and positions do not match");
    const Embedding embedding{
        element_count(tokens, 0, 1),
        element_count(tokens, 1, 2),
        element_count(table, 1, 2),
        context.input<std::int64_t>(kPositions + 1),
        context.input<std::int64_t>(kPositions + 2),
        context.input<float>(kPositions),
        factor_,
    };
    require(within(embedding.tokens, element_count(tokens, 0, 2), table[0]),
            "a token is out of range");
    require(within(embedding.positions, embedding.sentences, positions[0]),
            "a position is out of range");
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

class ForcedColumnsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto beams = context.shape(1);
    require(beams.size() == 2 && context.shape(0) == Shape{beams[0]},
            "the shapes of forced tokens and beams do not match");
    const auto marks = context.shape(2);
    const auto noise = context.shape(3), wanted = context.shape(4), tail = context.shape(5);
    require(marks.size() == 3 && noise.size() == 2 && context.shape(6).empty(),
            "marked tokens must be [N, K, B], noise [N, R], and the number of tokens a scalar");
    require(wanted.size() == 2 && wanted[0] == beams[0], "tokens of constraints must be [N, U]");
    require(tail.size() == 2 && tail[0] == beams[0], "tokens of the tail must be [N, D]");
    const auto* forced = context.input<std::int64_t>(0);
    const auto* tokens = context.input<std::int64_t>(4);
    const auto* tail_tokens = context.input<std::int64_t>(5);
    auto* columns = context.output<std::int64_t>(0, {beams[0], beams[1], 1 + wanted[1] + tail[1]});
    const auto append = [&](const std::int64_t* begin, std::int64_t count) {
      columns = std::transform(begin, begin + count, columns,
                               [](auto token) { return std::max<std::int64_t>(token, 0); });
    };
    for (std::int64_t n = 0; n < beams[0]; ++n) {
      for (std::int64_t k = 0; k < beams[1]; ++k) {
        *columns++ = forced_column(forced[n]);
        append(tokens + n * wanted[1], wanted[1]);
        append(tail_tokens + n * tail[1], tail[1]);
      }
    }
    *context.output<std::int64_t>(1, {1}) = std::min(
        2 * beams[1] + 1 + marks[2] + noise[1] + wanted[1], *context.input<std::int64_t>(6));
  }
};

class SelectBeamsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0), beams = context.shape(10), marks = context.shape(17);
    require(shape.size() == 3 && beams.size() == 2,
            "candidates must be [N, K, C], and beams [N, K]");
    const Shape rows = {shape[0]};
    const auto looked_up = context.shape(2), tail = context.shape(22), wanted = context.shape(24);
    require(looked_up.size() == 3, "the tokens that are looked up must be [N, K, 1 + U + D]");
    require(beams == Shape{shape[0], shape[1]} && context.shape(1) == shape &&
                Shape{looked_up[0], looked_up[1]} == beams,
            "the shapes of candidates and beams do not match");
    for (const std::size_t input : {4, 5, 6, 7, 8, 9, 11, 12}) {
      require(context.shape(input) == rows, "there must be one value for each sentence");
    }
    for (const std::size_t input : {13, 14, 15, 16}) {
      require(context.shape(input) == beams, "the pool and the beams must have the same shape");
    }
    require(marks.size() == 3 && Shape{marks[0], marks[1]} == beams && context.shape(18) == marks,
            "marked tokens and their factors must be [N, K, B]");
    const auto noise = context.shape(19);
    require(noise.size() == 2 && noise[0] == shape[0] && context.shape(20) == rows &&
                context.shape(21) == rows,
            "noise must be [N, R], and temperatures and top shares [N]");
    require(tail.size() == 2 && tail[0] == shape[0] && context.shape(23) == tail,
            "tokens of the tail and their noise must be [N, D]");
    require(wanted.size() == 2 && wanted[0] == shape[0] && context.shape(26) == beams &&
                context.shape(25) == Shape{shape[0], shape[1], wanted[1]},
            "tokens of constraints must be [N, U], and their progress [N, K, U] and [N, K]");
    require(looked_up[2] == 1 + wanted[1] + tail[1],
            "the tokens that are looked up must be [N, K, 1 + U + D]");
    require(shape[2] >= 1 && shape[1] >= 1, "there must be a candidate for each beam");
    const Selection selection{
        element_count(shape, 0, 1),
        element_count(shape, 1, 2),
        element_count(shape, 2, 3),
        context.input<float>(0),
        context.input<std::int64_t>(1),
        context.input<float>(2),
        *context.input<std::int64_t>(3),
        context.input<std::int64_t>(4),
        context.input<std::int64_t>(5),
        context.input<std::int64_t>(6),
        context.input<float>(7),
        context.input<float>(8),
        context.input<bool>(9),
        context.input<float>(10),
        context.input<std::int64_t>(11),
        context.input<bool>(12),
        context.input<float>(13),
        context.input<std::int64_t>(14),
        context.input<std::int64_t>(15),
        context.input<bool>(16),
        element_count(marks, 2, 3),
        context.input<std::int64_t>(17),
        context.input<float>(18),
        element_count(noise, 1, 2),
        context.input<float>(19),
        context.input<float>(20),
        context.input<float>(21),
        element_count(tail, 1, 2),
        context.input<std::int64_t>(22),
        context.input<float>(23),
        element_count(wanted, 1, 2),
        context.input<std::int64_t>(24),
        context.input<std::int64_t>(25),
        context.input<std::int64_t>(26),
        context.output<std::int64_t>(0, beams),
        context.output<std::int64_t>(1, beams),
        context.output<float>(2, beams),
        context.output<std::int64_t>(3, rows),
        context.output<bool>(4, rows),
        context.output<float>(5, beams),
        context.output<std::int64_t>(6, beams),
        context.output<std::int64_t>(7, beams),
        context.output<bool>(8, beams),
    };
    select_beams(selection);
  }
};

// Reads ancestry [N, K, P], and checks that input 1 is [N, K] with values below `end`.
Ancestry ancestry(OperatorContext& context, const Shape& shape, std::int64_t end,
                  const char* what) {
  require(context.shape(1) == Shape{shape[0], shape[1]},
          "the shapes of ancestry and beams do not match");
  require(within(context.input<std::int64_t>(1), element_count(shape, 0, 2), end), what);
  return {element_count(shape, 0, 1), element_count(shape, 1, 2), element_count(shape, 2, 3),
          context.input<float>(0), context.output<float>(0, shape)};
}

class ExtendAncestryNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    require(shape.size() == 3, "ancestry must be [N, K, P]");
    extend_ancestry(ancestry(context, shape, shape[2], "a slot is out of range"),
                    context.input<std::int64_t>(1));
  }
};

class FollowAncestryNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    require(shape.size() == 3, "ancestry must be [N, K, P]");
    require(shape[2] >= shape[1], "there must be a slot for each beam");
    follow_ancestry(ancestry(context, shape, shape[1], "a parent is out of range"),
                    context.input<std::int64_t>(1),
                    context.output<std::int64_t>(1, {shape[0], shape[1]}),
                    context.output<bool>(2, {shape[0]}));
  }
};

class FollowParentsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    const auto shape = context.shape(0);
    require(shape.size() == 3, "the state must be [N, K, columns]");
    require(context.shape(1) == Shape{shape[0], shape[1]},
            "the shapes of the state and of the parents do not match");
    const auto beams = element_count(shape, 1, 2), columns = element_count(shape, 2, 3);
    const auto rows = element_count(shape, 0, 2);
    const auto* parents = context.input<std::int64_t>(1);
    require(within(parents, rows, shape[1]), "a parent is out of range");
    const auto* state = context.input<float>(0);
    auto* next = context.output<float>(0, shape);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto parent = row / beams * beams + static_cast<std::size_t>(parents[row]);
      std::copy_n(state + parent * columns, columns, next + row * columns);
    }
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
  registry.add<FollowParentsNode>("FollowParents");
}

}  // namespace translate_trt
