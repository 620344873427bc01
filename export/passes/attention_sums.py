"""Attention of a few queries as multiplications and sums, which read keys and values in place.

TensorRT's attention kernel takes keys and values in a layout of its own, so the step engine would
copy every cache at every step. A matmul copies them as well. Multiplications, sums and a softmax
become kernels that read the caches where they lie, and only the slots that are in use: with K
queries, a step is bound by that reading, not by arithmetic. Scores are in FP32. docs/gpu.md has the
bytes and kernel launches of both forms, read from execution plans of TensorRT-RTX; which is faster
has not been measured on a GPU, so `--disable-pass attention-sums` keeps the attention operator.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from translate_trt.export.passes.base import RewritePass, Rule, axes
from translate_trt.export.passes.expectations import Expected

_FP32 = ir.DataType.FLOAT
_KEYS_TRANSPOSED = [0, 1, 3, 2]
# Up to this number of queries, each has a sum of its own: TensorRT-RTX fuses the sums into one
# kernel, which loads keys and values once. The kernel of one sum for all loads them for each query.
_MOST_SUMS = 8

_Numbers = dict[int, ir.Value]


class _Sums(Rule):
    """Base of the rules, with the two matmuls of an attention in FP32."""

    def numbers(self, op: Any, query: ir.Value) -> _Numbers:
        """Constants of axes and of queries, made once in a rewrite."""
        largest = max(4, _queries(query))
        return {n: self.store_integers(op, f"number_{n}", n) for n in range(largest + 1)}

    def scores(self, op: Any, query: ir.Value, key: ir.Value, numbers: _Numbers) -> Any:
        """Query [N, H, T, D], key [N, H, S, D] -> scores [N, H, T, S]."""
        rows, keys = op.Cast(query, to=int(_FP32)), op.Cast(key, to=int(_FP32))
        count = _queries(query)
        if count > _MOST_SUMS:
            terms = op.Mul(op.Unsqueeze(rows, numbers[3]), op.Unsqueeze(keys, numbers[2]))
            return op.ReduceSum(terms, numbers[4], keepdims=0)  # over [N, H, T, S, D]
        sums = [
            op.Unsqueeze(op.ReduceSum(op.Mul(row, keys), numbers[3], keepdims=0), numbers[2])
            for row in _split(op, rows, count, numbers)
        ]
        return op.Concat(*sums, axis=2)

    def mean(self, op: Any, weights: Any, count: int, value: ir.Value, numbers: _Numbers) -> Any:
        """Weights [N, H, T, S] of `count` queries, value [N, H, S, D] -> means [N, H, T, D]."""
        factors, rows = op.Cast(weights, to=int(_FP32)), op.Cast(value, to=int(_FP32))
        if count > _MOST_SUMS:
            terms = op.Mul(op.Unsqueeze(factors, numbers[4]), op.Unsqueeze(rows, numbers[2]))
            return op.ReduceSum(terms, numbers[3], keepdims=0)  # over [N, H, T, S, D]
        columns = [
            op.Transpose(one, perm=_KEYS_TRANSPOSED)  # [N, H, S, 1]
            for one in _split(op, factors, count, numbers)
        ]
        sums = [op.ReduceSum(op.Mul(one, rows), numbers[2], keepdims=1) for one in columns]
        return op.Concat(*sums, axis=2)


def _split(op: Any, values: Any, count: int, numbers: _Numbers) -> list[Any]:
    """Values [N, H, T, X] -> T values [N, H, 1, X]."""
    return [op.Slice(values, numbers[n], numbers[n + 1], numbers[2]) for n in range(count)]


def _queries(value: ir.Value) -> int:
    """Return the static number of queries of [N, H, T, X], which `_unfit` has checked."""
    count = (axes(value) or ())[2]
    assert isinstance(count, int)
    return count


def _type(value: ir.Value) -> int:
    return int(value.dtype or _FP32)


def _unfit(query: ir.Value, *others: ir.Value) -> str | None:
    """Return the reason why an attention is left alone, or None.

    The encoder, whose number of queries is dynamic, is no match: its matmuls are large.
    """
    if any(len(axes(x) or ()) != 4 or x.dtype is None for x in (query, *others)):
        return "queries, keys and values are not known to be [N, H, T, D]"
    if not isinstance((axes(query) or ())[2], int):
        return ""
    return None


class _Attention(_Sums):
    """Attention(query, key, value, bias) -> Mul, ReduceSum, Add, Softmax, Mul, ReduceSum."""

    def pattern(self, op: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        return op.Attention(query, key, value, bias, scale=1.0)

    def refusal(self, query: ir.Value, key: ir.Value, value: ir.Value, **_: Any) -> str | None:
        return _unfit(query, key, value)

    def rewrite(
        self, op: Any, query: ir.Value, key: ir.Value, value: ir.Value, bias: ir.Value
    ) -> Any:
        numbers = self.numbers(op, query)
        scores = op.Add(self.scores(op, query, key, numbers), op.Cast(bias, to=int(_FP32)))
        means = self.mean(op, op.Softmax(scores, axis=-1), _queries(query), value, numbers)
        return op.Cast(means, to=_type(query))


class _Scores(_Sums):
    """MatMul(query, transposed key) -> Mul, ReduceSum: of attention weights that are an output."""

    def pattern(self, op: Any, query: Any, key: Any) -> Any:
        return op.MatMul(query, op.Transpose(key, perm=_KEYS_TRANSPOSED))

    def refusal(self, query: ir.Value, key: ir.Value, **_: Any) -> str | None:
        return _unfit(query, key)

    def rewrite(self, op: Any, query: ir.Value, key: ir.Value) -> Any:
        return op.Cast(self.scores(op, query, key, self.numbers(op, query)), to=_type(query))


class _Mean(_Sums):
    """MatMul(weights, value) -> Mul, ReduceSum: of attention weights that are an output."""

    def pattern(self, op: Any, weights: Any, value: Any) -> Any:
        return op.MatMul(weights, value)

    def refusal(self, weights: ir.Value, value: ir.Value, **_: Any) -> str | None:
        if value.const_value is not None or len(axes(value) or ()) != 4:
            return ""
        return _unfit(weights, value)

    def rewrite(self, op: Any, weights: ir.Value, value: ir.Value) -> Any:
        means = self.mean(op, weights, _queries(weights), value, self.numbers(op, weights))
        return op.Cast(means, to=_type(value))


class AttentionSums(RewritePass):
    """Rewriting for engines of the step; the encoder, with many queries, keeps its attention."""

    name = "attention-sums"
    summary = "attention of a few queries becomes sums that read keys and values in place"
    expected = Expected(
        encoder=lambda _: 0,
        # The attention whose weights are an output is two matmuls.
        step=lambda model: model.self_attentions + model.decoder_layers + model.attention,
    )
    rules = (_Attention, _Scores, _Mean)
    commute = False
