"""Value bounds: how large the values of a graph can get for any input, proven, not calibrated.

The bounds start at LayerNorm: whatever its input, a row of its output has at most the norm
max|scale| sqrt(d_model) + |shift|; RMSNorm has no shift. Cauchy-Schwarz then bounds every matmul
with a constant matrix, column by column, and every query-key matmul by the norms of both. The
result of an attention is a weighted mean of values and has their bound. Letters as in
runtime/bundle/contract.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from translate_trt.export.fused_ops.declarations import RMS_NORM
from translate_trt.export.passes.base import axes, constant
from translate_trt.export.passes.bound import Bound, Vector
from translate_trt.runtime.bundle.contract import NEXT


def bounds_of(model: ir.Model, inputs: Mapping[str, Bound]) -> dict[ir.Value, Bound]:
    """Compute bounds of all floating-point values of a graph that can be bounded.

    Args:
        model: The graph.
        inputs: Known bounds of the graph's inputs, by name. Self-attention caches need none: they
            hold what earlier steps appended, which has the bound of what this step appends.
    """
    found: dict[ir.Value, Bound] = {}
    for value in model.graph.inputs:
        if str(value.name) in inputs:
            found[value] = inputs[str(value.name)]
    for node in model.graph:
        rule = _RULES.get(node.op_type)
        bounds = rule(node, found) if rule is not None else None
        if bounds is not None:
            found.update(zip(node.outputs, bounds, strict=False))
    return found


def bound_of_constant(array: NDArray[Any]) -> Bound:
    """Bound of the rows of a constant table, or of a constant vector."""
    rows = np.abs(array.astype(np.float64)).reshape(-1, array.shape[-1] if array.ndim else 1)
    return Bound.of(rows.max(axis=0), float(np.linalg.norm(rows, axis=1).max()))


_Found = dict[ir.Value, Bound]


def _get(value: ir.Value | None, found: _Found) -> Bound | None:
    if value is None:
        return None
    array = constant(value)
    if array is not None and array.size and np.issubdtype(array.dtype, np.floating):
        return bound_of_constant(array)
    return found.get(value)


def _same(node: ir.Node, found: _Found) -> list[Bound] | None:
    bound = _get(node.inputs[0], found)
    return None if bound is None else [bound] * len(node.outputs)


def _is_last(axis: int, value: ir.Value | None) -> bool:
    """Whether an axis is, or could be, the feature axis of a value."""
    sizes = None if value is None else axes(value)
    return sizes is None or axis in (-1, len(sizes) - 1)


def _is_known_last(axis: int, value: ir.Value | None) -> bool:
    """Whether an axis is known to be the feature axis of a value."""
    sizes = None if value is None else axes(value)
    return axis == -1 or (sizes is not None and axis == len(sizes) - 1)


def _gather(node: ir.Node, found: _Found) -> list[Bound] | None:
    table = node.inputs[0]
    array = constant(table)
    rank = array.ndim if array is not None else len((table and axes(table)) or ())
    rows = node.attributes.get_int("axis", 0) == 0 and rank > 1
    return _same(node, found) if rows else None


def _slice(node: ir.Node, found: _Found) -> list[Bound] | None:
    along = constant(node.inputs[3]) if len(node.inputs) > 3 else None
    if along is None and _keeps_last(node):
        bound = _get(node.inputs[0], found)  # the slice may reorder features
        if bound is None:
            return None
        return [Bound.of(np.full(len(bound.columns), bound.columns.max()), bound.norm)]
    if along is None or any(_is_last(int(axis), node.outputs[0]) for axis in along):
        return None
    return _same(node, found)


def _unsqueeze(node: ir.Node, found: _Found) -> list[Bound] | None:
    new = constant(node.inputs[1])
    if new is None or any(_is_last(int(axis), node.outputs[0]) for axis in new):
        return None
    return _same(node, found)


def _expand(node: ir.Node, found: _Found) -> list[Bound] | None:
    return _same(node, found) if _keeps_last(node) else None


def _keeps_last(node: ir.Node) -> bool:
    """Whether the number of features is known and unchanged."""
    assert node.inputs[0] is not None
    before, after = axes(node.inputs[0]), axes(node.outputs[0])
    return bool(before and after and isinstance(after[-1], int) and before[-1] == after[-1])


def _transpose(node: ir.Node, found: _Found) -> list[Bound] | None:
    """Keys may have their features second to last if only query-key matmuls read them."""
    perm = node.attributes.get_ints("perm", ())
    features = len(perm) - 1
    if perm and perm[-1] == features:
        return _same(node, found)
    keys = node.outputs[0]
    scores = all(
        (use.node.op_type, use.idx) == ("MatMul", 1) and not is_softmax(use.node.inputs[0])
        for use in keys.uses()
    )
    moved = len(perm) > 1 and perm[-2] == features and not keys.is_graph_output()
    return _same(node, found) if moved and scores else None


def is_softmax(value: ir.Value | None) -> bool:
    """Whether a value is the weights of a mean over its last axis: a softmax over that axis."""
    producer = value.producer() if value is not None else None
    return (
        producer is not None
        and producer.op_type == "Softmax"
        and _is_last(producer.attributes.get_int("axis", -1), value)
    )


def _is_cache(value: ir.Value | None, node: ir.Node) -> bool:
    """Whether a value is an input that the next step gets from this graph's output."""
    assert node.graph is not None
    outputs = {output.name for output in node.graph.outputs}
    return value is not None and value.is_graph_input() and f"{NEXT}{value.name}" in outputs


def _side_by_side(node: ir.Node, values: Sequence[ir.Value | None], found: _Found) -> Bound | None:
    """Common bound of the rows of several values; those without a bound must be their caches."""
    bounds = [_get(x, found) for x in values]
    known = [bound for bound in bounds if bound is not None]
    unknown = [x for x, bound in zip(values, bounds, strict=True) if bound is None]
    if not known or not all(_is_cache(x, node) for x in unknown):
        return None
    if len({len(bound.columns) for bound in known}) > 1:
        return None
    columns = np.max([bound.columns for bound in known], axis=0)
    return Bound.of(columns, max(bound.norm for bound in known))


def _append(node: ir.Node, found: _Found) -> list[Bound] | None:
    values = node.inputs if node.op_type == "Concat" else node.inputs[:2]
    if _is_last(node.attributes.get_int("axis", -2), node.outputs[0]):
        return None
    bound = _side_by_side(node, values, found)
    return None if bound is None else [bound]


def _scatter(node: ir.Node, found: _Found) -> list[Bound] | None:
    """A scatter that overwrites whole rows of the last axis."""
    past, indices, new = node.inputs
    sizes, at = (axes(x) if x is not None else None for x in (past, indices))
    whole = sizes and at and isinstance(at[-1], int) and at[-1] < len(sizes)
    if not whole or node.attributes.get_string("reduction", "none") != "none":
        return None
    bound = _side_by_side(node, (past, new), found)
    return None if bound is None else [bound]


def _add(node: ir.Node, found: _Found) -> list[Bound] | None:
    first, second = (_get(x, found) for x in node.inputs)
    if first is None or second is None or 1 != len(first.columns) != len(second.columns) != 1:
        return None
    return [first + second]


def _multiply(node: ir.Node, found: _Found) -> list[Bound] | None:
    """Bound x * sigmoid(x), whose second factor is at most 1, and products of bounded values."""
    for x, factor in (node.inputs, node.inputs[::-1]):
        producer = factor.producer() if factor is not None else None
        if producer is not None and producer.op_type == "Sigmoid" and producer.inputs[0] is x:
            bound = _get(x, found)
            return None if bound is None else [bound]
    first, second = (found.get(x) for x in node.inputs if x is not None)
    if first is None or second is None or len(first.columns) != len(second.columns):
        return None
    norm = min(first.norm * second.largest, first.largest * second.norm)
    return [Bound.of(first.columns * second.columns, norm)]


def _layer_norm(node: ir.Node, found: _Found) -> list[Bound] | None:
    constants = [constant(x) for x in node.inputs[1:3]]
    if node.op_type == RMS_NORM:
        constants.append(np.zeros(1))
    scale, shift = constants if len(constants) == 2 else (None, None)
    if scale is None or shift is None:
        return None
    if not _is_known_last(node.attributes.get_int("axis", -1), node.inputs[0]):
        return None
    size = math.sqrt(len(scale))
    norm = float(np.abs(scale).max()) * size + float(np.linalg.norm(shift))
    bound = Bound.of(np.abs(scale).astype(np.float64) * size + np.abs(shift), norm)
    return [bound]


def _matmul(node: ir.Node, found: _Found) -> list[Bound] | None:
    left = _get(node.inputs[0], found)
    weights = constant(node.inputs[1])
    if weights is not None and weights.ndim == 2:
        known = left is not None and np.isfinite(weights).all()
        return [_times(left, weights.astype(np.float64))] if left is not None and known else None
    right = _get(node.inputs[1], found)
    if is_softmax(node.inputs[0]):
        return None if right is None else [right]  # a weighted mean of rows
    keys = node.inputs[1].producer() if node.inputs[1] is not None else None
    if left is None or right is None or keys is None or keys.op_type != "Transpose":
        return None
    if keys.attributes.get_ints("perm", ())[-1] == len(keys.attributes.get_ints("perm", ())) - 1:
        return None  # the columns are positions, whose number is unknown
    return [Bound(np.array([left.norm * right.norm]), math.inf)]


def _times(left: Bound, weights: Vector) -> Bound:
    """Bound of x W: columns by Cauchy-Schwarz or by sums of magnitudes, the norm by that of W."""
    by_norm = left.norm * np.linalg.norm(weights, axis=0)
    if len(left.columns) == len(weights):
        by_norm = np.minimum(by_norm, left.columns @ np.abs(weights))
    small = weights.T @ weights if weights.shape[1] < len(weights) else weights @ weights.T
    largest = float(np.linalg.eigvalsh(small)[-1]) if len(small) else 0.0
    return Bound.of(by_norm, left.norm * math.sqrt(max(largest, 0.0)) * (1 + 1e-9))


def _split(node: ir.Node, found: _Found) -> list[Bound] | None:
    bound = _get(node.inputs[0], found)
    sizes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if bound is None or sizes is None or int(sizes.sum()) != len(bound.columns):
        return None
    if not _is_known_last(node.attributes.get_int("axis", 0), node.inputs[0]):
        return None
    parts = np.split(bound.columns, np.cumsum(sizes)[:-1])
    return [Bound.of(part, bound.norm) for part in parts]


def _reshape(node: ir.Node, found: _Found) -> list[Bound] | None:
    """A reshape that splits features into heads, or joins heads."""
    bound, shape = _get(node.inputs[0], found), node.outputs[0].shape
    last = shape[-1] if shape is not None and len(shape) else None
    if bound is None or not isinstance(last, int):
        return None
    size = len(bound.columns)
    if size % last == 0:
        return [one_head(bound, last)]
    return [_joined(bound, last // size)] if last % size == 0 else None


def one_head(bound: Bound, size: int) -> Bound:
    """Common bound of all heads of that size that the bounded value is split into."""
    heads = bound.columns.reshape(-1, size)
    norm = float(np.linalg.norm(heads, axis=1).max()) if len(bound.columns) > 1 else math.inf
    return Bound.of(heads.max(axis=0), min(norm, bound.norm))


def heads_of(bound: Bound, x: ir.Value, heads: int) -> Bound | None:
    """Bound of one head of x, which is [N, T, H * D] or already split into [N, H, T, D]."""
    if len(axes(x) or ()) == 4:
        return bound
    if not heads or len(bound.columns) % heads:
        return None
    return one_head(bound, len(bound.columns) // heads)


def _joined(bound: Bound, heads: int) -> Bound:
    return Bound.of(np.tile(bound.columns, heads), bound.norm * math.sqrt(heads))


def _attention(node: ir.Node, found: _Found) -> list[Bound] | None:
    value = node.inputs[2]
    bound = _get(value, found)
    if bound is None or value is None or len(axes(value) or ()) != 4 or any(node.inputs[4:]):
        return None
    return [bound]


def _multi_head_attention(node: ir.Node, found: _Found) -> list[Bound] | None:
    """ONNX Runtime's operator, which splits heads, appends to caches, attends and joins heads."""
    heads = node.attributes.get_int("num_heads", 0)
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    _, key, value, bias, _, _, *past = inputs
    bounds = [_get(x, found) for x in (key, value)]
    if bias is not None:
        return None
    rows: list[Bound] = []
    for x, bound, cache in zip((key, value), bounds, past, strict=True):
        split = None if bound is None or x is None else heads_of(bound, x, heads)
        before = split if cache is None or _is_cache(cache, node) else _get(cache, found)
        if split is None or before is None or len(before.columns) != len(split.columns):
            return None
        columns = np.maximum(split.columns, before.columns)
        rows.append(Bound.of(columns, max(split.norm, before.norm)))
    # The features of a head are weighted means of its values.
    return [_joined(rows[1], heads), *rows][: len(node.outputs)]


def largest_score(node: ir.Node, bounds: Mapping[ir.Value, Bound]) -> float | None:
    """Bound of the query-key matmul inside an attention, or None if it is unknown."""
    if node.outputs[0] not in bounds:  # a cache without a bound, for example
        return None
    heads = node.attributes.get_int("num_heads", 0)
    norms = []
    for value in node.inputs[:2]:
        if value is None or value not in bounds:
            return None
        one = heads_of(bounds[value], value, heads)
        if one is None:
            return None
        norms.append(one.norm)
    return norms[0] * norms[1]


#: Rules by operator: bounds of its outputs, or None if they are unknown.
_RULES: dict[str, Callable[[ir.Node, _Found], list[Bound] | None]] = {
    # |relu(x)| and |gelu(x)| are at most |x|.
    **dict.fromkeys(("Identity", "Cast", "Relu", "Gelu"), _same),
    "Mul": _multiply,
    "Gather": _gather,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Transpose": _transpose,
    "Concat": _append,
    "TensorScatter": _append,
    "ScatterND": _scatter,
    "Add": _add,
    **dict.fromkeys(("LayerNormalization", RMS_NORM), _layer_norm),
    "MatMul": _matmul,
    "Split": _split,
    "Reshape": _reshape,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
}
