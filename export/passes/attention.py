"""Fuse attention into the ONNX operator: softmax(q k^T + bias) v (equation 1, scale folded)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from translate_trt.export.passes.base import RewritePass, Rule, axes
from translate_trt.export.passes.expectations import Expected

_OPSET = 23  # the first opset with the operator


class _FuseAttention(Rule):
    """MatMul, Add, Softmax, MatMul -> the ONNX operator Attention (opset 23)."""

    remove_nodes = False

    def pattern(self, op: Any, query: Any, key: Any, bias: Any, value: Any) -> Any:
        scores = op.Add(op.MatMul(query, key), bias)
        return op.MatMul(op.Softmax(scores, axis=-1, _outputs=["weights"]), value)

    def refusal(
        self, query: ir.Value, key: ir.Value, value: ir.Value, weights: ir.Value, **_: Any
    ) -> str | None:
        if self.opset() < _OPSET:
            return f"the operator needs opset {_OPSET}, the graph has {self.opset()}"
        if len(weights.uses()) > 1 or weights.is_graph_output():
            return "the attention weights are read elsewhere (--attention)"
        if any(len(axes(x) or ()) != 4 for x in (query, key, value)):
            return "queries, keys and values are not known to be [N, H, T, D]"
        return None

    def rewrite(
        self, op: Any, query: ir.Value, key: ir.Value, bias: ir.Value, value: ir.Value, **_: Any
    ) -> Any:
        rows = op.Transpose(key, perm=[0, 1, 3, 2])  # [N, H, S, D]
        return op.Attention(query, rows, value, bias, scale=1.0)


class _TransposedTwice(Rule):
    """Transpose(Transpose(x)) -> one Transpose, or x itself.

    Layers with the same weights share the inner one.
    """

    remove_nodes = False

    def pattern(self, op: Any, x: Any, first: Any, second: Any) -> Any:
        return op.Transpose(op.Transpose(x, perm=first), perm=second)

    def rewrite(self, op: Any, x: ir.Value, first: ir.Attr, second: ir.Attr) -> Any:
        inner = first.as_ints()
        perm = [inner[axis] for axis in second.as_ints()]
        return op.Identity(x) if perm == sorted(perm) else op.Transpose(x, perm=perm)


class FuseAttention(RewritePass):
    """Fusion for TensorRT, whose attention layer is made from the ONNX operator."""

    name = "fuse-attention"
    summary = "matmuls, bias and softmax of an attention become one operator"
    expected = Expected(
        encoder=lambda model: model.encoder_layers,
        # The last cross-attention stays as it is if its weights are an output.
        step=lambda model: model.self_attentions + model.decoder_layers - model.attention,
    )
    rules = (_FuseAttention,)


class FuseTransposes(RewritePass):
    """Remove the transpositions of keys whose matmul is now inside the attention."""

    name = "fuse-transposes"
    summary = "two consecutive transpositions become one or none"
    expected = FuseAttention.expected  # one per attention
    rules = (_TransposedTwice,)
