"""Products as calls, in 8 bits or not, and the vocabulary's with the candidates taken from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from translate_trt.export.fused_ops.declarations import (
    BIASED,
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    PANEL_COLUMNS,
    linear8_name,
)
from translate_trt.export.fused_ops.matching import (
    Constant,
    FusedNode,
    norm_of_rows,
    operand,
    other,
    producer,
    reader,
    same_axes,
)
from translate_trt.export.passes.base import constant, matrix
from translate_trt.export.residual_stream import is_observed

# Further than any axis goes.
_NO_END = int(np.iinfo(np.int64).max)


class _Stored(NamedTuple):
    """A matrix W in 8 bits as its function wants it."""

    blocked: Constant  # [O' / 16, I / 4, 16, 4]
    rows: int  # I
    columns: int  # O'


def _stored(weights: ir.Value) -> _Stored | str | None:
    """A matrix in blocks, or why it has none; None: it is not constant."""
    array = constant(weights)
    if array is None or array.ndim != 2:
        return None
    rows, columns = array.shape
    for size, block, name in ((rows, BLOCK_ROWS, "rows"), (columns, BLOCK_COLUMNS, "columns")):
        if size % block:
            return f"its matrix has {size} {name}, which is no multiple of {block}"
    blocks = array.reshape(rows // BLOCK_ROWS, BLOCK_ROWS, columns // BLOCK_COLUMNS, BLOCK_COLUMNS)
    blocked = np.ascontiguousarray(blocks.transpose(2, 0, 3, 1))
    return _Stored(Constant(f"{weights.name}_blocked", blocked), rows, columns)


def integer_linear(node: ir.Node) -> FusedNode | str | None:
    """A product as the int8 pass writes it, with what is done to its result."""
    quantized = producer(node.inputs[0], "QuantizeLinear")
    stored, scaled = _stored(operand(node, 1)), _scaled(node)
    zero_point = constant(node.inputs[2])
    if quantized is None or scaled is None or zero_point is None or not isinstance(stored, _Stored):
        return stored if isinstance(stored, str) else None
    scales, product = scaled
    columns = len(scales)
    bias, product = _biased(product, columns)
    after = _after(product)
    filled = np.pad(scales, (0, stored.columns - columns))
    return FusedNode(
        linear8_name(positive=int(zero_point) == 0, epilogue=after.name),
        (
            operand(quantized, 0),
            stored.blocked,
            Constant(f"{stored.blocked.name}_scales", filled),
            bias,
            *after.inputs,
        ),
        after.outputs,
        {
            "shape": [stored.rows, -1],
            "end": [columns if columns < stored.columns else _NO_END],
            "columns": columns,
            "width": stored.rows,
            **after.attributes,
        },
    )


class _Panels(NamedTuple):
    """A matrix W as its function wants it."""

    weights: Constant  # [O' / 64, I, 64]
    columns: int  # O
    attributes: dict[str, list[int]]


def _panels(weights: ir.Value) -> _Panels | None:
    """A matrix in panels; None: it is no constant matrix of this precision."""
    array = matrix(weights)
    if array is None or array.dtype != np.float32:
        return None
    rows, columns = array.shape
    filled = np.pad(array, ((0, 0), (0, -columns % PANEL_COLUMNS)))
    panels = np.ascontiguousarray(filled.reshape(rows, -1, PANEL_COLUMNS).transpose(1, 0, 2))
    end = columns if columns % PANEL_COLUMNS else _NO_END
    constant = Constant(f"{weights.name}_panels", panels)
    return _Panels(constant, columns, {"shape": [rows, -1], "end": [end]})


def linear(node: ir.Node) -> FusedNode | None:
    """A product with a constant matrix, with what is done to its result."""
    stored = _panels(operand(node, 1))
    if stored is None:
        return None
    bias, product = _biased(node.outputs[0], stored.columns)
    after = _after(product)
    return FusedNode(
        f"Linear{after.name}",
        (operand(node, 0), stored.weights, bias, *after.inputs),
        after.outputs,
        {**stored.attributes, **after.attributes},
    )


def _scaled(node: ir.Node) -> tuple[NDArray[np.generic], ir.Value] | None:
    """Of an integer product: the scales of its columns, and the product in floats."""
    cut = reader(node.outputs[0], "Slice")
    by_row = reader((cut or node).outputs[0], "DequantizeLinear")
    by_column = reader(by_row.outputs[0], "Mul") if by_row is not None else None
    if by_row is None or by_column is None:
        return None
    scales = constant(other(by_column, by_row.outputs[0]))
    return None if scales is None else (scales, by_column.outputs[0])


def _biased(product: ir.Value, columns: int) -> tuple[ir.Value | Constant, ir.Value]:
    """The bias that is added to a product, zeros if there is none, and the sum."""
    addition = reader(product, "Add")
    if addition is not None:
        bias = other(addition, product)
        array = constant(bias)
        if array is not None and array.shape == (columns,):
            return bias, addition.outputs[0]
    return Constant(f"no_bias_{columns}", np.zeros(columns, np.float32)), product


class _After(NamedTuple):
    """What is done to a product."""

    name: str  # the end of the function's
    outputs: tuple[ir.Value, ...]
    inputs: tuple[ir.Value, ...] = ()
    attributes: dict[str, float] = {}  # noqa: RUF012  # a NamedTuple's default


def _after(product: ir.Value) -> _After:
    for name in ("Relu", "Gelu"):
        activation = reader(product, name)
        if activation is not None and _is_exact(activation):
            return _After(name, (activation.outputs[0],))
    swish = _swish(product)
    if swish is not None:
        return _After("Swish", (swish,))
    addition = reader(product, "Add")
    if addition is None or not same_axes(other(addition, product), product):
        return _After("", (product,))
    residual, total = other(addition, product), addition.outputs[0]
    norm = _only_norm(total)
    attributes = norm_of_rows(norm) if norm is not None else None
    if norm is None or attributes is None:
        return _After("Add", (total,), (residual,))
    inputs, normalized = (residual, operand(norm, 1), operand(norm, 2)), norm.outputs[0]
    if reader(total, norm.op_type) is None or is_observed(total.name):
        return _After("AddAndNorm", (total, normalized), inputs, attributes)
    return _After("AddNorm", (normalized,), inputs, attributes)


def _only_norm(total: ir.Value) -> ir.Node | None:
    """The LayerNormalization of a sum, whatever else reads it; None: there is not just one."""
    norms = [use.node for use in total.uses() if use.node.op_type == "LayerNormalization"]
    return norms[0] if len(norms) == 1 else None


def _is_exact(activation: ir.Node) -> bool:
    """Whether it is not GELU's approximation."""
    return activation.attributes.get_string("approximate", "none") == "none"


def _swish(product: ir.Value) -> ir.Value | None:
    """product * sigmoid(product), if nothing else reads either."""
    readers = {use.node.op_type: use.node for use in product.uses()}
    if len(product.uses()) != 2 or set(readers) != {"Sigmoid", "Mul"} or product.is_graph_output():
        return None
    share = readers["Sigmoid"].outputs[0]
    result = readers["Mul"]
    return result.outputs[0] if reader(share, "Mul") is result else None


def top_logits(node: ir.Node) -> FusedNode | str | None:
    """Log-probabilities as the pass top-k-first writes them, from their top-k."""
    logits, (values, indices) = operand(node, 0), node.outputs
    softmax = next((use.node for use in logits.uses() if use.node.op_type == "Softmax"), None)
    log_total = _log_total(softmax) if softmax is not None else None
    if log_total is None:
        return None
    shifted = {operand(use.node, 0): use.node.outputs[0] for use in log_total.uses()}
    best = shifted.pop(values, None)
    logit = next(iter(shifted), None)
    lookup = producer(logit, "GatherElements")
    if best is None or logit is None or lookup is None or len(shifted) > 1:
        return "besides the best, not exactly one log-probability is looked up"
    at_column = shifted[logit]
    inputs = (logits, operand(lookup, 1), operand(node, 1))
    return FusedNode("TopLogits", inputs, (best, indices, at_column))


def _log_total(softmax: ir.Node) -> ir.Value | None:
    """The log of the sum of a row's exponentials, from the row's softmax."""
    value = softmax.outputs[0]
    for operator in ("GatherElements", "Log", "Sub"):
        node = reader(value, operator)
        if node is None:
            return None
        value = node.outputs[0]
    return value


def candidates(node: ir.Node) -> FusedNode | None:
    """TopLogits of the vocabulary's product; one that is read elsewhere too is one for `linear`."""
    logits, column, count = (operand(node, index) for index in range(3))
    if reader(logits, node.op_type) is None:
        return None
    plain, bias = _without_bias(logits)
    product = producer(plain, "MatMul")
    weights = matrix(operand(product, 1)) if product is not None else None
    if product is None or weights is None or weights.dtype != np.float32:
        return None
    if not _fits(bias, weights.shape[1]):
        return None
    inputs = (operand(product, 0), _rows(product, weights), *bias, column, count)
    return FusedNode(f"{BIASED if bias else ''}VocabularyCandidates", inputs, node.outputs)


def _without_bias(logits: ir.Value) -> tuple[ir.Value, tuple[ir.Value, ...]]:
    """What a constant is added to, and the constant; logits without one as they are."""
    addition = producer(logits, "Add")
    for plain in addition.inputs if addition is not None else ():
        assert addition is not None
        assert plain is not None
        bias = other(addition, plain)
        if constant(bias) is not None and reader(plain, "Add") is addition:
            return plain, (bias,)
    return logits, ()


def _fits(bias: tuple[ir.Value, ...], columns: int) -> bool:
    """Whether there is no bias, or one for each column."""
    arrays = [constant(value) for value in bias]
    return all(array is not None and array.shape == (columns,) for array in arrays)


def _rows(product: ir.Node, weights: NDArray[np.generic]) -> ir.Value | Constant:
    """A matrix [I, V] as [V, I]: the embedding table, where that is the same matrix."""
    rows = weights.T
    graph = product.graph
    assert graph is not None
    for value in graph.initializers.values():
        table = constant(value)
        if table is not None and table.dtype == rows.dtype and np.array_equal(table, rows):
            return value
    return Constant(f"{operand(product, 1).name}_rows", np.ascontiguousarray(rows))


def integer_candidates(node: ir.Node) -> FusedNode | str | None:
    """TopLogits of the vocabulary's product, as the int8 pass writes that."""
    logits, column, count = (operand(node, index) for index in range(3))
    plain, bias = _without_bias(logits)
    by_row = producer(plain, "Mul")
    product = producer(by_row.inputs[0], "MatMulIntegerToFloat") if by_row is not None else None
    if product is None:
        return None
    if reader(logits, node.op_type) is None:
        return "the logits are read elsewhere too"
    quantized, stored = producer(product.inputs[0], "QuantizeLinear"), _stored(operand(product, 1))
    if quantized is None or not isinstance(stored, _Stored):
        return stored if isinstance(stored, str) else None
    if not _fits(bias, stored.columns):
        return None
    added: ir.Value | Constant = Constant("none_hidden", np.zeros(stored.columns, np.float32))
    if bias:
        added = bias[0]
    elif len(product.inputs) > 6:
        added = operand(product, 6)
    inputs = (operand(quantized, 0), stored.blocked, operand(product, 3), added, column, count)
    return FusedNode(
        f"{BIASED if bias else ''}Candidates8",
        inputs,
        node.outputs,
        {"shape": [stored.rows, -1], "width": stored.rows},
    )
