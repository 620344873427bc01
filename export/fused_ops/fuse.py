"""What a library of kernels can take over, as calls of functions (`declarations.py`).

A rule reads the graph around one node and gives the call that computes the same, or says why there
is none. Products take along what is done to their result: a bias, then an activation, or the
residual connection and the LayerNorm after it. A sum that is read beside its norm is an output too.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import common

from translate_trt.export.fused_ops.declarations import OPERATORS
from translate_trt.export.fused_ops.match_attention import (
    beam_attention,
    cached_attention,
    self_attention,
    split_heads,
)
from translate_trt.export.fused_ops.match_embedding import embed
from translate_trt.export.fused_ops.match_matmul import (
    candidates,
    integer_candidates,
    integer_linear,
    linear,
    top_logits,
)
from translate_trt.export.fused_ops.match_search import (
    extend_ancestry,
    follow_ancestry,
    forced_columns,
    select_beams,
)
from translate_trt.export.fused_ops.matching import (
    FusedNode,
    add_functions,
    check_declared,
    norm_of_rows,
    operand,
    producer,
    reader,
    same_axes,
)
from translate_trt.export.passes.base import Outcome, Pass
from translate_trt.export.residual_stream import is_observed


class FuseOps(Pass):
    """For ONNX Runtime on a CPU; the last pass, for an optimizer may put bodies back in place."""

    name = "kernels"
    summary = "products, attention and candidates become calls that kernels can take over"

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is a call."""
        calls, refused = 0, []
        for operator, rule in RULES:
            for node in [node for node in model.graph if node.op_type == operator]:
                found = rule(node)
                if isinstance(found, FusedNode):
                    check_declared(found, rule.__name__)
                    found.insert(model)
                    calls += 1
                elif found:
                    refused.append(f"{node.outputs[0].name}: {found}")
            # What a call has taken along is dead, and the next rule must not see it.
            common.RemoveUnusedNodesPass()(model)
        add_functions(model)
        return Outcome(calls, tuple(refused))


def add_norm(node: ir.Node) -> FusedNode | str | None:
    """LayerNorm(x + residual), where no product has taken it along."""
    addition, attributes = producer(node.inputs[0], "Add"), norm_of_rows(node)
    if addition is None or attributes is None:
        return None
    x, residual = operand(addition, 0), operand(addition, 1)
    if reader(addition.outputs[0], node.op_type) is None:
        return "the sum is read elsewhere too"
    if is_observed(addition.outputs[0].name):
        return "the sum is one that verify --layers compares"
    if not same_axes(x, residual):
        return "the two that are added are not known to have the same axes"
    inputs = (x, residual, operand(node, 1), operand(node, 2))
    return FusedNode("AddNorm", inputs, node.outputs, attributes)


#: Operators that return candidates. Their last two inputs are a column to look up and a count.
CANDIDATES = tuple(op.name for op in OPERATORS.values() if [*op.inputs][-2:] == ["column", "count"])

#: In order, the operator that a rule looks at, and the rule: a sum and its norm belong to a product
#: if there is one, candidates are found by their TopLogits, and so is the vocabulary's product.
RULES: tuple[tuple[str, Callable[[ir.Node], FusedNode | str | None]], ...] = (
    ("MatMulInteger", integer_linear),
    ("TopK", top_logits),
    ("TopLogits", integer_candidates),
    ("TopLogits", candidates),
    ("MatMul", linear),
    ("MultiHeadAttention", cached_attention),
    ("MultiHeadAttention", beam_attention),
    ("MultiHeadAttention", self_attention),
    ("Transpose", split_heads),
    ("LayerNormalization", add_norm),
    ("Add", embed),
    *((name, rule) for name in CANDIDATES for rule in (select_beams, forced_columns)),
    ("GatherElements", extend_ancestry),
    ("GatherElements", follow_ancestry),
)
