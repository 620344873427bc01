"""Fuse attention into ONNX Runtime's MultiHeadAttention, which splits and joins heads itself.

The operator reads queries and writes its result as [N, T, H * D], so neither is transposed. No
other formulation was faster on a CPU at any size tried
(docs/adr/0006-operators-of-onnx-runtime.md).

If the attention weights have readers of their own (--attention), the nodes that compute them stay
beside the fused operator. That layer computes its scores twice, and translations equal those of a
target without attention weights.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from translate_trt.export.passes.base import RewritePass, Rule, axes
from translate_trt.export.passes.expectations import Expected

_HEADS_FIRST = [0, 2, 1, 3]  # [N, T, H, D] <-> [N, H, T, D]


def _split(op: Any, x: Any, name: str) -> Any:
    return op.Transpose(op.Reshape(x, _outputs=[f"{name}_split"], _allow_other_inputs=True),
                        perm=_HEADS_FIRST, _outputs=[f"{name}_heads"])  # fmt: skip


def _attend(op: Any, query: Any, transposed_key: Any, bias: Any, value: Any) -> Any:
    scores = op.Add(op.MatMul(query, transposed_key), bias)
    context = op.MatMul(op.Softmax(scores, axis=-1), value)
    joined = op.Transpose(context, perm=_HEADS_FIRST)
    return op.Reshape(joined, _allow_other_inputs=True, _outputs=["joined"])


class _Fuse(Rule):
    """Base of both rules."""

    remove_nodes = False  # scores and weights may have other readers

    def refusal(self, *_: Any, **matched: Any) -> str | None:
        query, query_heads, joined = (matched[name] for name in ("query", "query_heads", "joined"))
        if any(len(axes(x) or ()) != 3 for x in (query, joined)):
            return "queries and joined heads are not known to be [N, T, H * D]"
        sizes = axes(query_heads)
        if sizes is None or len(sizes) != 4 or not isinstance(sizes[1], int):
            return "the number of heads is not known"
        return None

    def rewrite(
        self, op: Any, query: ir.Value, key: ir.Value, value: ir.Value, bias: ir.Value,
        query_heads: ir.Value, **_: Any,
    ) -> Any:  # fmt: skip
        """Build the operator for query [N, T, H * D]."""
        sizes = axes(query_heads)
        assert sizes is not None
        return op.MultiHeadAttention(
            query, key, value, None, None, self._for_every_query(op, bias, query),
            num_heads=sizes[1], scale=1.0, _domain="com.microsoft",
        )  # fmt: skip

    def _for_every_query(self, op: Any, bias: ir.Value, query: ir.Value) -> Any:
        """Expand a bias [N, 1, 1, S] to [N, 1, T, S], the shape that the operator requires."""
        sizes = axes(bias)
        if sizes is None or sizes[2] != 1:
            return bias
        ones = self.store_integers(op, "ones", 1, 1)
        queries = op.Shape(query, start=1, end=2)
        return op.Expand(bias, op.Concat(ones, queries, self.store_integers(op, "one", 1), axis=0))


class _Encoder(_Fuse):
    """Self-attention over the whole source."""

    def pattern(self, op: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        key_split = op.Reshape(key, _allow_other_inputs=True)
        transposed_key = op.Transpose(key_split, perm=[0, 2, 3, 1])
        heads = _split(op, value, "value")
        return _attend(op, _split(op, query, "query"), transposed_key, bias, heads)


class _Step(_Fuse):
    """Self- and cross-attention of a step, whose keys and values already have heads."""

    def pattern(self, op: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        transposed_key = op.Transpose(key, perm=[0, 1, 3, 2])
        return _attend(op, _split(op, query, "query"), transposed_key, bias, value)

    def refusal(self, *_: Any, **matched: Any) -> str | None:
        key, value = matched["key"], matched["value"]
        producers = [x.producer() for x in (key, value)]
        if any(node is not None and node.op_type == "Transpose" for node in producers):
            return ""  # the encoder's attention
        if (axes(key) or (None,))[-1] != (axes(value) or (None,))[-1]:
            return "the operator needs keys and values of equal size"
        return super().refusal(**matched)


class FuseMultiHeadAttention(RewritePass):
    """Fusion for ONNX Runtime."""

    name = "fuse-multi-head"
    summary = "heads, matmuls, bias and softmax become one operator of ONNX Runtime"
    expected = Expected(
        encoder=lambda model: model.encoder_layers,
        step=lambda model: (model.self_attentions + model.decoder_layers) * model.equal_heads,
    )
    rules = (_Encoder, _Step)
