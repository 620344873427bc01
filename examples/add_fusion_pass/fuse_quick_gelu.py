"""A fusion pass: x * sigmoid(alpha * x) becomes ONNX Runtime's QuickGelu."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from translate_trt.export.passes.base import RewritePass, Rule, constant


class _QuickGelu(Rule):
    """Rewrite rule; variables of the pattern are values of the graph."""

    def pattern(self, op: Any, x: ir.Value, alpha: ir.Value) -> Any:
        """Return the subgraph to look for. Operands of Mul match in both orders."""
        return op.Mul(x, op.Sigmoid(op.Mul(alpha, x)))

    def refusal(self, *_: Any, alpha: ir.Value, **matched: Any) -> str | None:
        """Return why a match must stay; `--explain` reports the reason."""
        value = constant(alpha)
        if value is None or value.size != 1:
            return "alpha is not one constant number"
        return None

    def rewrite(self, op: Any, *, x: ir.Value, alpha: ir.Value) -> Any:
        """Return the replacement."""
        value = constant(alpha)
        assert value is not None
        return op.QuickGelu(x, alpha=float(value.item()), _domain="com.microsoft")


class FuseQuickGelu(RewritePass):
    """Fuse a scaled swish."""

    name = "fuse-quick-gelu"
    summary = "x * sigmoid(alpha * x) becomes QuickGelu"
    expected = None  # number of matches in a model: unknown, since no model here has QuickGelu
    rules = (_QuickGelu,)
