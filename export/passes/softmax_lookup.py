"""Lookups in a softmax without the table of all probabilities.

A softmax of the logits of a whole vocabulary, of which one value per row is looked up, is cheapest
for ONNX Runtime (`top_k.py`). TensorRT writes the whole table to memory: at 64 sentences and 37,000
tokens, 38 MB at every step. The sum of exponentials is a single number per row.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from translate_trt.export.passes.base import RewritePass, Rule, axes
from translate_trt.export.passes.expectations import Expected


class _Lookup(Rule):
    """GatherElements(softmax(x), i) -> exp(x[i] - max(x)) / sum(exp(x - max(x)))."""

    def pattern(self, op: Any, x: Any, index: Any) -> Any:
        probabilities = op.Softmax(x, _allow_other_attributes=True, _outputs=["table"])
        return op.GatherElements(
            probabilities, index, _allow_other_attributes=True, _outputs=["found"]
        )

    def refusal(self, x: ir.Value, table: ir.Value, found: ir.Value, **_: Any) -> str | None:
        rank = len(axes(x) or ())
        last = {-1, rank - 1}
        nodes = (table.producer(), found.producer())
        if not rank or any(n is None or _axis(n) not in last for n in nodes):
            return "its axis is not known to be the last one"
        return None

    def rewrite(
        self, op: Any, x: ir.Value, index: ir.Value, table: ir.Value, found: ir.Value
    ) -> Any:
        last = self.store_integers(op, "last_axis", len(axes(x) or ()) - 1)
        largest = op.ReduceMax(x, last, keepdims=1)
        total = op.ReduceSum(op.Exp(op.Sub(x, largest)), last, keepdims=1)
        logit = op.GatherElements(x, index, axis=-1)
        return op.Div(op.Exp(op.Sub(logit, largest)), total)


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", -1 if node.op_type == "Softmax" else 0)


class SoftmaxLookup(RewritePass):
    """Rewriting for engines, after `top-k-first`."""

    name = "softmax-lookup"
    summary = "look up probabilities without a table of all of them"
    expected = Expected(encoder=lambda _: 0, step=lambda model: not model.shortlist)
    rules = (_Lookup,)
    commute = False
