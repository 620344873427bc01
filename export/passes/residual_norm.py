"""LayerNorm(x + sub-layer) as ONNX Runtime's one operator, with the sub-layer's bias."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from translate_trt.export.passes.base import RewritePass, Rule, axes, constant, take_place


def _why_not(sum_of: tuple[ir.Value, ir.Value], norm: ir.Value) -> str | None:
    first, second = (axes(x) for x in sum_of)
    if (
        first is None
        or second is None
        or any(isinstance(size, ir.SymbolicDim) and size.value is None for size in first)
    ):
        return "the sizes of what is added are not known"
    if tuple(first) != tuple(second):
        return "what is added differs in size (positions, say)"
    node = norm.producer()
    assert node is not None
    if node.attributes.get_int("axis", -1) not in (-1, len(first) - 1):
        return "the norm is over more than the last axis"
    if len(first) not in (2, 3):
        return "ONNX Runtime's operator takes two axes or three"
    return None


class _Fuse(Rule):
    """LayerNormalization(x + y) -> SkipLayerNormalization(x, y).

    In a pre-norm model the sum itself goes on as the residual; it is the operator's last output.
    """

    remove_nodes = False

    def pattern(self, op: Any, x: Any, y: Any, scale: Any, shift: Any, epsilon: Any) -> Any:
        total = op.Add(x, y, _outputs=["total"])
        return op.LayerNormalization(
            total, scale, shift, epsilon=epsilon, _allow_other_attributes=True, _outputs=["norm"]
        )

    def refusal(self, x: ir.Value, y: ir.Value, norm: ir.Value, **_: Any) -> str | None:
        return _why_not((x, y), norm)

    def rewrite(
        self, op: Any, x: ir.Value, y: ir.Value, scale: ir.Value, shift: ir.Value,
        epsilon: ir.Attr, total: ir.Value, norm: ir.Value,
    ) -> Any:  # fmt: skip
        bias = None
        for one, other in ((y, x), (x, y)):
            biased = _biased(one)
            if biased is not None:
                (y, bias), x = biased, other
                break
        outputs = op.SkipLayerNormalization(
            y, x, scale, shift, bias, epsilon=epsilon.as_float(), _domain="com.microsoft",
            _outputs=4 if len(total.uses()) > 1 else 1,
        )  # fmt: skip
        if len(total.uses()) > 1:
            take_place(outputs[3], total)
            return outputs[0]
        return outputs


def _biased(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """x and b of a value x + b that nothing else reads, b a constant vector."""
    node = value.producer()
    if node is None or node.op_type != "Add" or len(value.uses()) != 1:
        return None
    for x, b in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        array = constant(b)
        if array is not None and array.ndim == 1 and x is not None and b is not None:
            return x, b
    return None


class FuseResidualNorm(RewritePass):
    """Three passes over the residual stream become one."""

    name = "fuse-residual-norm"
    summary = "bias, residual and LayerNorm become one operator of ONNX Runtime"
    rules = (_Fuse,)
