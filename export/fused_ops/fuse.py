"""The pass that replaces subgraphs with fused operators (`declarations.py`).

A rule looks at the graph around one node and returns the fused operator that computes the same, or
the reason why it cannot. A matmul includes its epilogue: the bias, then an activation, or the
residual sum and LayerNorm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import common

from translate_trt.export.fused_ops.declarations import OPERATORS
from translate_trt.export.fused_ops.match_attention import (
    beam_attention,
    beam_attention_mean,
    cached_attention,
    self_attention,
    split_heads,
)
from translate_trt.export.fused_ops.match_embedding import embed, source_bias
from translate_trt.export.fused_ops.match_matmul import (
    candidates,
    gated_gelu,
    integer_candidates,
    integer_linear,
    linear,
    top_logits,
)
from translate_trt.export.fused_ops.match_recurrence import follow_parents, recurrent_unit
from translate_trt.export.fused_ops.match_search import (
    extend_ancestry,
    follow_ancestry,
    forced_columns,
    select_beams,
)
from translate_trt.export.fused_ops.matching import (
    NORMS,
    FusedNode,
    Unavoidable,
    add_functions,
    check_declared,
    norm_of_rows,
    producer,
    reader,
    same_axes,
)
from translate_trt.export.passes.base import Outcome, Pass, operand
from translate_trt.export.passes.expectations import Expected, ModelShape
from translate_trt.export.roles import RESIDUAL, has_role

#: Operators with the rules that match there, in order.
Rules: TypeAlias = tuple[tuple[str, Callable[[ir.Node], FusedNode | str | None]], ...]


def norm(node: ir.Node) -> FusedNode | str | None:
    """Match a norm of x or of x + residual that is no epilogue of a matmul."""
    attributes = norm_of_rows(node)
    if attributes is None:
        return None
    constants = [operand(node, index) for index in range(1, len(node.inputs))]
    kind = NORMS[node.op_type]
    addition = producer(node.inputs[0], "Add")
    if addition is None or not same_axes(*(x := (operand(addition, 0), operand(addition, 1)))):
        return FusedNode(kind, (operand(node, 0), *constants), node.outputs, attributes)
    total = addition.outputs[0]
    if reader(total, node.op_type) is None or has_role(total, RESIDUAL):
        outputs = (total, node.outputs[0])
        return FusedNode(f"AddAnd{kind}", (*x, *constants), outputs, attributes)
    return FusedNode(f"Add{kind}", (*x, *constants), node.outputs, attributes)


#: Operators that return candidates. Their last two inputs are columns to look up and a count.
CANDIDATES = tuple(
    op.name for op in OPERATORS.values() if [*op.inputs][-2:] == ["columns", "count"]
)

#: Operators with the rules that match there, in the order in which they run. Matmuls come before
#: LayerNorm, because a sum and its LayerNorm belong to the matmul before them. TopLogits comes
#: first of all candidates and then includes the vocabulary projection.
RULES: Rules = (
    ("MatMulInteger", integer_linear),
    ("MatMulIntegerToFloat", integer_linear),
    ("TopK", top_logits),
    ("TopLogits", integer_candidates),
    ("TopLogits", candidates),
    ("MatMul", linear),
    ("MultiHeadAttention", cached_attention),
    ("MultiHeadAttention", beam_attention),
    ("MultiHeadAttention", self_attention),
    ("ReduceMean", beam_attention_mean),
    ("Transpose", split_heads),
    ("Add", embed),
    *((name, norm) for name in NORMS),
    ("Gelu", gated_gelu),
    ("Where", source_bias),
    *((name, rule) for name in CANDIDATES for rule in (select_beams, forced_columns)),
    ("GatherElements", extend_ancestry),
    ("GatherElements", follow_ancestry),
    ("Sigmoid", recurrent_unit),
    ("GatherElements", follow_parents),
)


def norms_after_embedding(model: ModelShape) -> int:
    """Count the norms after an embedding: its own, and the first of pre-norm layers."""
    return model.embedding_norm + (not model.post_norm)


class FuseOps(Pass):
    """Fuse operators for the compiled kernels of CPUs.

    Passes that optimize run before, because an optimizer may inline functions.
    """

    name = "fuse-ops"
    summary = "matmuls, attention, candidates and the beam search become fused operators"
    rules = RULES

    expected = Expected(
        # The matmuls and the attention of a layer; one matmul of all cross-attentions, and the
        # keys and values that are split from it; the embedding and the norms after it.
        encoder=lambda model: (
            (4 + model.equal_heads + model.gated) * model.encoder_layers
            + 1
            + 2 * model.cross_layers
            + 1
            + norms_after_embedding(model)
        ),
        source=lambda _: 1,  # the bias
        # The matmuls and both attentions of a layer, or with an SSRU one attention, the unit, the
        # order of its state and the sum after the unit; the embedding and the norms after it; the
        # mean attention; and, unless a shortlist is traced as a fused op, the vocabulary
        # projection.
        step=lambda model: (
            (6 + 2 * model.equal_heads) * model.self_attentions
            + (8 + model.equal_heads) * model.ssrus
            + model.gated * model.decoder_layers
            + 1
            + norms_after_embedding(model)
            + (model.attention and model.equal_heads)
            + (not model.shortlist)
        ),
        # Two of the search; two of the ancestry; and, without a shortlist, the candidates.
        search=lambda model: 2 + 2 * (model.self_attentions > 0) + (not model.shortlist),
    )

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; each fused operator is a match."""
        fused, unavoidable, refused = 0, 0, []
        for operator, rule in self.rules:
            for node in [node for node in model.graph if node.op_type == operator]:
                found = rule(node)
                if isinstance(found, FusedNode):
                    check_declared(found, rule.__name__)
                    found.insert(model)
                    fused += 1
                elif found:
                    refused.append(f"{node.outputs[0].name}: {found}")
                    unavoidable += isinstance(found, Unavoidable)
            # Nodes inside a fused operator are dead; the next rule must not match them.
            common.RemoveUnusedNodesPass()(model)
        add_functions(model)
        return Outcome(fused, tuple(refused), unavoidable)

    def near_misses(self, model: ir.Model) -> list[str]:
        """List the operators that a rule looks at and that are still in the graph."""
        operators = {operator for operator, _ in self.rules}
        return [
            f"{node.op_type} {node.outputs[0].name} is left"
            for node in model.graph
            if node.op_type in operators
        ]
