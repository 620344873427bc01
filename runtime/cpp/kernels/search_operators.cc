// Operators of the beam search and the cache slots, for every processor.

#include <algorithm>

#include "beam_search.h"
#include "operator.h"
#include "ports.h"

namespace translate_trt {
namespace {

class ForcedColumnsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    using In = ForcedColumnsInputs;
    using Out = ForcedColumnsOutputs;
    const Sizes sizes = context.sizes();
    const auto constraints = sizes['U'], tails = sizes['D'];
    const auto* forced = context.input(In::forced_tokens);
    const auto* tokens = context.input(In::constraint_tokens);
    const auto* tail_tokens = context.input(In::tail_tokens);
    auto* columns = context.output(Out::columns, {sizes['N'], sizes['K'], 1 + constraints + tails});
    const auto append = [&](const std::int64_t* begin, std::int64_t count) {
      columns = std::transform(begin, begin + count, columns,
                               [](auto token) { return std::max<std::int64_t>(token, 0); });
    };
    for (std::int64_t n = 0; n < sizes['N']; ++n) {
      for (std::int64_t k = 0; k < sizes['K']; ++k) {
        *columns++ = forced_column(forced[n]);
        append(tokens + n * constraints, constraints);
        append(tail_tokens + n * tails, tails);
      }
    }
    *context.output(Out::count, {1}) = std::min(
        2 * sizes['K'] + 1 + sizes['B'] + sizes['R'] + constraints, *context.input(In::choices));
  }
};

class SelectBeamsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    using In = SelectBeamsInputs;
    using Out = SelectBeamsOutputs;
    const Sizes sizes = context.sizes();
    require(sizes['L'] == 1 + sizes['U'] + sizes['D'],
            "the tokens that are looked up must be [N, K, 1 + U + D]");
    require(sizes['C'] >= 1 && sizes['K'] >= 1, "there must be a candidate for each beam");
    const Shape rows = {sizes['N']}, beams = {sizes['N'], sizes['K']};
    Selection s = {};
    s.sentences = sizes.count('N');
    s.beams = sizes.count('K');
    s.candidates = sizes.count('C');
    s.marks = sizes.count('B');
    s.ranks = sizes.count('R');
    s.tails = sizes.count('D');
    s.constraints = sizes.count('U');
    s.log_probabilities = context.input(In::log_probabilities);
    s.choices = context.input(In::choices);
    s.looked_up = context.input(In::looked_up);
    s.end_token = *context.input(In::end_token);
    s.forced_tokens = context.input(In::forced_tokens);
    s.min_lengths = context.input(In::min_lengths);
    s.max_lengths = context.input(In::max_lengths);
    s.alphas = context.input(In::length_penalty_alpha);
    s.betas = context.input(In::length_penalty_beta);
    s.num_hypotheses = context.input(In::num_hypotheses);
    s.early_stopping = context.input(In::early_stopping);
    s.log_probs = context.input(In::log_probs);
    s.positions = context.input(In::positions);
    s.done = context.input(In::done);
    s.finished_scores = context.input(In::finished_scores);
    s.finished_lengths = context.input(In::finished_lengths);
    s.finished_parents = context.input(In::finished_parents);
    s.finished_truncated = context.input(In::finished_truncated);
    s.marked_tokens = context.input(In::marked_tokens);
    s.marked_factors = context.input(In::marked_factors);
    s.noise = context.input(In::sampling_noise);
    s.temperatures = context.input(In::sampling_temperature);
    s.top_shares = context.input(In::sampling_top_p);
    s.tail_tokens = context.input(In::tail_tokens);
    s.tail_noise = context.input(In::tail_noise);
    s.constraint_tokens = context.input(In::constraint_tokens);
    s.constraint_progress = context.input(In::constraint_progress);
    s.other_progress = context.input(In::other_progress);
    s.parents = context.output(Out::parents, beams);
    s.next_tokens = context.output(Out::next_tokens, beams);
    s.next_log_probs = context.output(Out::next_log_probs, beams);
    s.next_positions = context.output(Out::next_positions, rows);
    s.next_done = context.output(Out::next_done, rows);
    s.next_finished_scores = context.output(Out::next_finished_scores, beams);
    s.next_finished_lengths = context.output(Out::next_finished_lengths, beams);
    s.next_finished_parents = context.output(Out::next_finished_parents, beams);
    s.next_finished_truncated = context.output(Out::next_finished_truncated, beams);
    select_beams(s);
  }
};

Ancestry ancestry(const Sizes& sizes, const float* now, float* next) {
  return {sizes.count('N'), sizes.count('K'), sizes.count('P'), now, next};
}

class ExtendAncestryNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    using In = ExtendAncestryInputs;
    const Sizes sizes = context.sizes();
    const auto* slots = context.input(In::slots);
    require(within(slots, sizes.count('N') * sizes.count('K'), sizes['P']),
            "a slot is out of range");
    auto* extended =
        context.output(ExtendAncestryOutputs::extended, {sizes['N'], sizes['K'], sizes['P']});
    extend_ancestry(ancestry(sizes, context.input(In::ancestry), extended), slots);
  }
};

class FollowAncestryNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    using In = FollowAncestryInputs;
    using Out = FollowAncestryOutputs;
    const Sizes sizes = context.sizes();
    const auto* parents = context.input(In::parents);
    require(sizes['P'] >= sizes['K'], "there must be a slot for each beam");
    require(within(parents, sizes.count('N') * sizes.count('K'), sizes['K']),
            "a parent is out of range");
    auto* next = context.output(Out::next_ancestry, {sizes['N'], sizes['K'], sizes['P']});
    follow_ancestry(ancestry(sizes, context.input(In::ancestry), next), parents,
                    context.output(Out::next_slots, {sizes['N'], sizes['K']}),
                    context.output(Out::full, {sizes['N']}));
  }
};

class FollowParentsNode : public PortableNode {
 public:
  using PortableNode::PortableNode;

  void run(OperatorContext& context) const {
    using In = FollowParentsInputs;
    const Sizes sizes = context.sizes();
    const auto beams = sizes.count('K'), columns = sizes.count('D');
    const auto rows = sizes.count('N') * beams;
    const auto* parents = context.input(In::parents);
    require(within(parents, rows, sizes['K']), "a parent is out of range");
    const auto* state = context.input(In::state);
    auto* next =
        context.output(FollowParentsOutputs::next_state, {sizes['N'], sizes['K'], sizes['D']});
    for (std::size_t row = 0; row < rows; ++row) {
      const auto parent = row / beams * beams + static_cast<std::size_t>(parents[row]);
      std::copy_n(state + parent * columns, columns, next + row * columns);
    }
  }
};

}  // namespace

void add_search_operators(Registry& registry) {
  registry.add<ForcedColumnsNode>("ForcedColumns");
  registry.add<SelectBeamsNode>("SelectBeams");
  registry.add<ExtendAncestryNode>("ExtendAncestry");
  registry.add<FollowAncestryNode>("FollowAncestry");
  registry.add<FollowParentsNode>("FollowParents");
}

}  // namespace translate_trt
