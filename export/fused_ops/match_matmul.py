"""Rules that fuse matmuls with their epilogues, and the vocabulary projection with its top-k."""

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
    NORMS,
    Constant,
    FusedNode,
    Unavoidable,
    norm_of_rows,
    other,
    producer,
    reader,
    same_axes,
)
from translate_trt.export.passes.base import constant, matrix, operand
from translate_trt.export.roles import RESIDUAL, has_role

# Larger than any axis.
_NO_END = int(np.iinfo(np.int64).max)


class _Blocks(NamedTuple):
    """An 8-bit matrix W in blocks."""

    blocked: Constant  # [O' / 16, I / 4, 16, 4]
    rows: int  # I
    columns: int  # O'


def _blocks(weights: ir.Value) -> _Blocks | str | None:
    """Store a matrix in blocks, or say why it has none; None if it is not constant."""
    array = constant(weights)
    if array is None or array.ndim != 2:
        return None
    rows, columns = array.shape
    for size, block, name in ((rows, BLOCK_ROWS, "rows"), (columns, BLOCK_COLUMNS, "columns")):
        if size % block:
            return Unavoidable(f"the matrix has {size} {name}, which is no multiple of {block}")
    by_block = array.reshape(
        rows // BLOCK_ROWS, BLOCK_ROWS, columns // BLOCK_COLUMNS, BLOCK_COLUMNS
    )
    blocked = np.ascontiguousarray(by_block.transpose(2, 0, 3, 1))
    return _Blocks(Constant(f"{weights.name}_blocked", blocked), rows, columns)


def integer_linear(node: ir.Node) -> FusedNode | str | None:
    """Match an 8-bit matmul, as the int8 pass emits it, with its epilogue.

    Matmuls whose input has a recorded scale, MatMulIntegerToFloat, only get a reason.
    """
    quantized = producer(node.inputs[0], "QuantizeLinear")
    if quantized is not None and constant(quantized.inputs[1]) is not None:
        return Unavoidable("its input has a recorded scale, and kernels compute a scale per row")
    if node.op_type == "MatMulIntegerToFloat":
        return None  # of the vocabulary, which `integer_candidates` matches
    weights, scaled = _blocks(operand(node, 1)), _scaled(node)
    zero_point = constant(node.inputs[2])
    if quantized is None or scaled is None or zero_point is None:
        return weights if isinstance(weights, str) else None
    if not isinstance(weights, _Blocks):
        return weights
    scales, result = scaled
    columns = len(scales)
    bias, result = _biased(result, columns)
    epilogue = _epilogue(result)
    padded = np.pad(scales, (0, weights.columns - columns))
    return FusedNode(
        linear8_name(positive=int(zero_point) == 0, epilogue=epilogue.suffix),
        (
            operand(quantized, 0),
            weights.blocked,
            Constant(f"{weights.blocked.name}_scales", padded),
            bias,
            *epilogue.inputs,
        ),
        epilogue.outputs,
        {
            "shape": [weights.rows, -1],
            "end": [columns if columns < weights.columns else _NO_END],
            "columns": columns,
            "width": weights.rows,
            **epilogue.attributes,
        },
    )


class _Panels(NamedTuple):
    """A float matrix W in panels."""

    weights: Constant  # [O' / 64, I, 64]
    columns: int  # O
    attributes: dict[str, list[int]]


def _panels(weights: ir.Value) -> _Panels | None:
    """Store a matrix in panels; None if it is no constant FP32 matrix."""
    array = matrix(weights)
    if array is None or array.dtype != np.float32:
        return None
    rows, columns = array.shape
    padded = np.pad(array, ((0, 0), (0, -columns % PANEL_COLUMNS)))
    panels = np.ascontiguousarray(padded.reshape(rows, -1, PANEL_COLUMNS).transpose(1, 0, 2))
    end = columns if columns % PANEL_COLUMNS else _NO_END
    constant = Constant(f"{weights.name}_panels", panels)
    return _Panels(constant, columns, {"shape": [rows, -1], "end": [end]})


def linear(node: ir.Node) -> FusedNode | None:
    """Match a matmul with a constant matrix, with its epilogue."""
    panels = _panels(operand(node, 1))
    if panels is None:
        return None
    bias, result = _biased(node.outputs[0], panels.columns)
    epilogue = _epilogue(result)
    return FusedNode(
        f"Linear{epilogue.suffix}",
        (operand(node, 0), panels.weights, bias, *epilogue.inputs),
        epilogue.outputs,
        {**panels.attributes, **epilogue.attributes},
    )


def _scaled(node: ir.Node) -> tuple[NDArray[np.generic], ir.Value] | None:
    """Find the column scales of an integer matmul, and the dequantized result."""
    cut = reader(node.outputs[0], "Slice")
    by_row = reader((cut or node).outputs[0], "DequantizeLinear")
    by_column = reader(by_row.outputs[0], "Mul") if by_row is not None else None
    if by_row is None or by_column is None:
        return None
    scales = constant(other(by_column, by_row.outputs[0]))
    return None if scales is None else (scales, by_column.outputs[0])


def _biased(result: ir.Value, columns: int) -> tuple[ir.Value | Constant, ir.Value]:
    """Find the bias that is added to a matmul's result, zeros by default, and the sum."""
    addition = reader(result, "Add")
    if addition is not None:
        bias = other(addition, result)
        array = constant(bias)
        if array is not None and array.shape == (columns,):
            return bias, addition.outputs[0]
    return Constant(f"no_bias_{columns}", np.zeros(columns, np.float32)), result


class _Epilogue(NamedTuple):
    """Operators after a matmul that the fused operator includes."""

    suffix: str  # of the operator's name
    outputs: tuple[ir.Value, ...]
    inputs: tuple[ir.Value, ...] = ()
    attributes: dict[str, float] = {}  # noqa: RUF012  # a NamedTuple's default


def _epilogue(result: ir.Value) -> _Epilogue:
    for name in ("Relu", "Gelu"):
        activation = reader(result, name)
        # Not the tanh approximation of GELU.
        if activation is not None and (
            activation.attributes.get_string("approximate", "none") == "none"
        ):
            return _Epilogue(name, (activation.outputs[0],))
    activated = swish(result)
    if activated is not None:
        return _Epilogue("Swish", (activated,))
    addition = reader(result, "Add")
    if addition is None or not same_axes(other(addition, result), result):
        return _Epilogue("", (result,))
    residual, total = other(addition, result), addition.outputs[0]
    norms = [use.node for use in total.uses() if use.node.op_type in NORMS]
    norm = norms[0] if len(norms) == 1 else None
    attributes = norm_of_rows(norm) if norm is not None else None
    if norm is None or attributes is None:
        return _Epilogue("Add", (total,), (residual,))
    constants = [operand(norm, index) for index in range(1, len(norm.inputs))]
    inputs, normalized, kind = (residual, *constants), norm.outputs[0], NORMS[norm.op_type]
    if reader(total, norm.op_type) is None or has_role(total, RESIDUAL):
        return _Epilogue(f"AddAnd{kind}", (total, normalized), inputs, attributes)
    return _Epilogue(f"Add{kind}", (normalized,), inputs, attributes)


def swish(result: ir.Value) -> ir.Value | None:
    """Match x * sigmoid(x), if nothing else reads x or sigmoid(x)."""
    readers = {use.node.op_type: use.node for use in result.uses()}
    if len(result.uses()) != 2 or set(readers) != {"Sigmoid", "Mul"} or result.is_graph_output():
        return None
    gate, multiplication = readers["Sigmoid"].outputs[0], readers["Mul"]
    return multiplication.outputs[0] if reader(gate, "Mul") is multiplication else None


def gated_gelu(node: ir.Node) -> FusedNode | None:
    """Match GELU, by tanh, of the first half of a matmul's columns times the second half."""
    activated = node.outputs[0]
    split, gated = producer(node.inputs[0], "Split"), reader(activated, "Mul")
    if split is None or gated is None or len(split.outputs) != 2:
        return None
    by_tanh = node.attributes.get_string("approximate", "none") == "tanh"
    halves = [operand(node, 0), other(gated, activated)] == list(split.outputs)
    sizes = constant(split.inputs[1])
    if not by_tanh or not halves or sizes is None or sizes[0] != sizes[1]:
        return None
    return FusedNode("GatedGelu", (operand(split, 0),), gated.outputs)


def top_logits(node: ir.Node) -> FusedNode | str | None:
    """Match the top-k of log-probabilities, as the pass top-k-first emits it."""
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
        return "not exactly one log-probability is looked up besides the best"
    at_columns = shifted[logit]
    inputs = (logits, operand(lookup, 1), operand(node, 1))
    return FusedNode("TopLogits", inputs, (best, indices, at_columns))


def _log_total(softmax: ir.Node) -> ir.Value | None:
    """Find the log-sum-exp of each row, from its softmax."""
    value = softmax.outputs[0]
    for operator in ("GatherElements", "Log", "Sub"):
        node = reader(value, operator)
        if node is None:
            return None
        value = node.outputs[0]
    return value


def candidates(node: ir.Node) -> FusedNode | None:
    """Match TopLogits of the vocabulary projection; `linear` fuses one that is read elsewhere."""
    logits, column, count = (operand(node, index) for index in range(3))
    if reader(logits, node.op_type) is None:
        return None
    plain, bias = _without_bias(logits)
    matmul = producer(plain, "MatMul")
    weights = matrix(operand(matmul, 1)) if matmul is not None else None
    if matmul is None or weights is None or weights.dtype != np.float32:
        return None
    if not _fits(bias, weights.shape[1]):
        return None
    inputs = (operand(matmul, 0), _rows(matmul, weights), *bias, column, count)
    return FusedNode(f"{BIASED if bias else ''}VocabularyCandidates", inputs, node.outputs)


def _without_bias(logits: ir.Value) -> tuple[ir.Value, tuple[ir.Value, ...]]:
    """Split logits into the result of a matmul and the constant bias added to it, if any."""
    addition = producer(logits, "Add")
    for plain in addition.inputs if addition is not None else ():
        assert addition is not None
        assert plain is not None
        bias = other(addition, plain)
        if constant(bias) is not None and reader(plain, "Add") is addition:
            return plain, (bias,)
    return logits, ()


def _fits(bias: tuple[ir.Value, ...], columns: int) -> bool:
    """Whether a bias, if any, has one value per column."""
    arrays = [constant(value) for value in bias]
    return all(array is not None and array.shape == (columns,) for array in arrays)


def _rows(matmul: ir.Node, weights: NDArray[np.generic]) -> ir.Value | Constant:
    """Transpose a matrix [I, V] to [V, I], or reuse the embedding table if it is equal."""
    rows = weights.T
    graph = matmul.graph
    assert graph is not None
    for value in graph.initializers.values():
        table = constant(value)
        if table is not None and table.dtype == rows.dtype and np.array_equal(table, rows):
            return value
    return Constant(f"{operand(matmul, 1).name}_rows", np.ascontiguousarray(rows))


def integer_candidates(node: ir.Node) -> FusedNode | str | None:
    """Match TopLogits of the 8-bit vocabulary projection, as the int8 pass emits it."""
    logits, column, count = (operand(node, index) for index in range(3))
    plain, bias = _without_bias(logits)
    by_row = producer(plain, "Mul")
    matmul = producer(by_row.inputs[0], "MatMulIntegerToFloat") if by_row is not None else None
    if matmul is None:
        return None
    if reader(logits, node.op_type) is None:
        return "the logits are read elsewhere too"
    quantized, weights = producer(matmul.inputs[0], "QuantizeLinear"), _blocks(operand(matmul, 1))
    if quantized is None or not isinstance(weights, _Blocks):
        return weights if isinstance(weights, str) else None
    if not _fits(bias, weights.columns):
        return None
    added: ir.Value | Constant = Constant("none_hidden", np.zeros(weights.columns, np.float32))
    if bias:
        added = bias[0]
    elif len(matmul.inputs) > 6:
        added = operand(matmul, 6)
    inputs = (operand(quantized, 0), weights.blocked, operand(matmul, 3), added, column, count)
    return FusedNode(
        f"{BIASED if bias else ''}Candidates8",
        inputs,
        node.outputs,
        {"shape": [weights.rows, -1], "width": weights.rows},
    )
