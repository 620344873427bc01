"""Dynamic int8 quantization: weights per output channel ahead of time, activations per row.

    x W   becomes   scale(x) * scale(W) * (q(x) - 128) q(W)

scale(W) has one number per column of W and scale(x) one per row of x: largest magnitude / 127. In a
column, no two neighbours at an even and an odd input have a sum of more than 128, so that with any
q(x) the sum of their terms fits 16 bits, which AVX2's instruction for bytes needs
(docs/adr/0017-pairs-of-weights.md). A W that was stored in 8 bits before, as in int8 models of
Marian, keeps its integers. No two rows of x share a scale, so the other sentences of a batch cannot
change a translation. Activations are unsigned with zero point 128 and weights are signed, which is
the pair that ONNX Runtime has fast kernels for: signed activations are at least ten times slower,
unsigned weights up to several times (docs/adr/0006-operators-of-onnx-runtime.md). The output of a
ReLU has no sign to store: its zero point is 0 and its scale largest / 255, twice as fine. Embedding
tables are quantized per row.

If the matrices have recorded activation scales (train/activation_scales.py), all rows of an
activation share the recorded scale, and larger values are clipped to it, as in Bergamot's engine:

    q(x) - 128 = clip(round(x * multiplier), -127, 127)   with multiplier = 127 / largest magnitude
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from translate_trt.export.fused_ops.declarations import BIASED, DOMAIN, SHORTLIST_CANDIDATES
from translate_trt.export.fused_ops.matching import other, reader
from translate_trt.export.passes.base import (
    Outcome,
    Pass,
    add_constant,
    constant,
    constant_of,
    drop_unused_constants,
    is_embedding,
    matrix,
    operand,
    substitute,
)
from translate_trt.export.passes.expectations import Expected
from translate_trt.export.roles import input_magnitude
from translate_trt.runtime.errors import TranslateTrtError

_LARGEST = 127  # largest signed 8-bit value of a symmetric range
_ZERO_POINT = 128  # zero point of unsigned activations
_LARGEST_UNSIGNED = 255
# Bias of padding columns: below any logit, and finite after scaling.
_HIDDEN = -1e30
# Matrices are padded with zeros to a multiple of so many columns. On processors with AMX, ONNX
# Runtime 1.23.2 (the last for Python 3.10) computes wrong results for other numbers of columns and
# 32 rows or more; 1.31.1 does not.
_COLUMNS = 16
# Smallest scale of weights: avoids a division by zero for a column of zeros.
_SMALLEST_SCALE = 1e-12
# Largest distance of a number of steps from an integer that is a rounding error of float32.
_ROUNDING = 1e-3
# Largest number of scales to look for in a matrix: keys and values of 32 decoder layers.
_MOST_SCALES = 64


def quantize_weights(
    weights: NDArray[np.float32], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize a matrix symmetrically to 8 bits, exactly if it was stored in 8 bits before.

    The largest magnitude of a column, or of the sum of neighbours, is 127 steps; with the rounding
    of both, a sum is at most 128. Marian stores a matrix with one scale: only the column of its
    largest magnitude has 127 steps, and a scale of their own would round the others a second time.
    They get its scale. Each of the matrices that were merged into one has such a column.

    Args:
        weights: The matrix.
        axis: 0 for one scale per column, 1 for one scale per row.

    Returns:
        The int8 matrix and its float32 scales; matrix times scales approximates `weights`.
    """
    columns = weights if axis == 0 else weights.T
    largest = np.abs(columns).max(axis=0)
    scales = np.maximum(largest / _LARGEST, _SMALLEST_SCALE).astype(np.float32)
    exact: NDArray[np.bool_] = np.logical_or(_are_integers(columns / scales), largest == 0)
    even = len(columns) // 2 * 2
    sums = np.abs(columns[:even:2] + columns[1:even:2]).max(axis=0, initial=0)
    scales = np.where(exact, scales, np.maximum(scales, sums / _LARGEST)).astype(np.float32)
    quantized = np.clip(np.rint(columns / scales), -_LARGEST, _LARGEST).astype(np.int8)
    for scale in np.unique(scales[exact & (largest > 0)])[: -_MOST_SCALES - 1 : -1]:
        # At least one step: a column of far smaller numbers would become zeros.
        most = largest / scale
        fits = (most > 0.5) & (most < _LARGEST + 0.5) & (np.abs(most - np.rint(most)) < _ROUNDING)
        others = np.flatnonzero(~exact & fits)
        steps = columns[:, others] / scale
        stored = _are_integers(steps)
        found = others[stored]
        quantized[:, found] = np.rint(steps[:, stored]).astype(np.int8)
        scales[found] = scale
        exact[found] = True
    return np.ascontiguousarray(quantized if axis == 0 else quantized.T), scales


def _are_integers(steps: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether all numbers of a column are integers, but for the rounding of float32."""
    return np.asarray((np.abs(steps - np.rint(steps)) < _ROUNDING).all(axis=0))


class _Result(NamedTuple):
    """Result of a matmul with the bias that is added to it.

    Attributes:
        value: The sum, or the result of the matmul itself if it has no bias.
        bias: The bias, if any.
    """

    value: ir.Value
    bias: NDArray[np.float32] | None


def _result(matmul: ir.Node) -> _Result:
    """Return the result of a matmul with its constant bias, if the sum is its only reader."""
    value = matmul.outputs[0]
    addition = reader(value, "Add")
    if addition is not None:
        bias, columns = constant(other(addition, value)), matrix(matmul.inputs[1])
        if bias is not None and columns is not None and bias.shape == columns.shape[1:]:
            return _Result(addition.outputs[0], bias)
    return _Result(value, None)


def _is_ranked(result: _Result) -> bool:
    """Whether the columns of a result are only ranked, so that a column of -1e30 has no effect."""
    readers = {use.node.op_type for use in result.value.uses()}
    ranked = "TopK" in readers and readers <= {"TopK", "Softmax", "GatherElements"}
    return ranked and not result.value.is_graph_output()


class DynamicInt8(Pass):
    """Quantize all matmuls with a constant matrix and all embedding lookups."""

    name = "int8"
    summary = "8-bit matmuls: weights per output channel, activations per row; 8-bit tables"
    required = True
    # Matmuls of a layer; in the encoder one of all cross-attentions, in the step the vocabulary's;
    # and the embedding table.
    expected = Expected(
        encoder=lambda model: 4 * model.encoder_layers + 2,
        step=lambda model: 6 * model.self_attentions + 5 * model.ssrus + 2,
    )
    roots = ("MatMul", "Gather")

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is a matmul or a lookup in 8 bits.

        Raises:
            TranslateTrtError: The graph has no matmul with a constant matrix.
        """
        model.opset_imports.setdefault("com.microsoft", 1)  # for the vocabulary matmul
        return Outcome(_Quantizer(model.graph).run())


@dataclass(frozen=True)
class _Rows:
    """A quantized activation: its values, scales [..., 1] per row, and zero point []."""

    values: ir.Value
    scale: ir.Value
    zero_point: ir.Value


class _Quantizer:
    """Quantization of one graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._activations: dict[ir.Value, _Rows] = {}
        self._clipped_activations: dict[tuple[ir.Value, float], ir.Value] = {}
        self._recorded = False
        self._zeros: dict[str, ir.Value] = {}
        self._tables: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._names = 0

    def run(self) -> int:
        """Quantize the graph; return the number of matmuls and lookups in 8 bits."""
        self._recorded = self._has_recorded_scales()
        matmuls = lookups = 0
        for node in list(self._graph):
            if node.op_type == "MatMul" and matrix(node.inputs[1]) is not None:
                result = _result(node)
                if self._recorded:
                    self._matmul_of_recorded_scale(node, result)
                elif _is_ranked(result):
                    self._logits(node, result)
                else:
                    self._matmul(node)
                matmuls += 1
            elif node.op_type == "Gather" and is_embedding(node):
                self._lookup(node)
                lookups += 1
            elif node.op_type in (SHORTLIST_CANDIDATES, BIASED + SHORTLIST_CANDIDATES):
                self._shortlist_matmul(node)
                matmuls += 1
        if not matmuls:
            raise TranslateTrtError(
                f"the {self._graph.name} graph has no matmul with a constant matrix to quantize."
            )
        drop_unused_constants(self._graph)
        return matmuls + lookups

    def _has_recorded_scales(self) -> bool:
        """Whether the matrices of the graph's matmuls have recorded activation scales.

        Raises:
            TranslateTrtError: Only some of them have: a pass lost the others.
        """
        matrices = [
            node.inputs[1]
            for node in self._graph
            if node.op_type == "MatMul" and matrix(node.inputs[1]) is not None
        ]
        lacking = [one for one in matrices if one is not None and input_magnitude(one) is None]
        if lacking and len(lacking) < len(matrices):
            raise TranslateTrtError(
                f"the {self._graph.name} graph lacks the recorded activation scale of "
                f"{lacking[0].name}, which an earlier pass lost. Import the model without "
                "--recorded-activation-scales, and please report it."
            )
        return bool(matrices) and not lacking

    # ---- rewriting ----

    def _weights(self, node: ir.Node) -> tuple[str, NDArray[np.int8], NDArray[np.float32]]:
        """Quantize the matrix of a matmul: its name, its padded weights, and its scales."""
        matrix = operand(node, 1)
        quantized, scales = quantize_weights(constant_of(matrix), axis=0)
        padded = np.pad(quantized, ((0, 0), (0, -quantized.shape[1] % _COLUMNS)))
        return str(matrix.name), padded, scales

    def _matmul_of_recorded_scale(self, node: ir.Node, result: _Result) -> None:
        """Quantize a matmul whose input has one scale: the kernel scales and adds the bias."""
        magnitude = input_magnitude(node.inputs[1])
        assert magnitude is not None
        ranked, (name, weights, scales) = _is_ranked(result), self._weights(node)
        columns = len(scales)
        padding = weights.shape[1] - columns
        bias = np.zeros(columns, np.float32) if result.bias is None else result.bias
        bias = np.pad(bias, (0, padding), constant_values=_HIDDEN if ranked else 0)
        inputs: list[ir.Value | None] = [
            self._clipped(operand(node, 0), magnitude, node),
            self._constant(f"{name}_int8", weights),
            self._number(f"{name}_input_scale", magnitude / _LARGEST),
            self._constant(f"{name}_scale", np.pad(scales, (0, padding))),
            self._signed_zero_point(),
        ]
        if result.bias is not None or (ranked and padding):
            inputs += [None, self._constant(f"{name}_bias", bias)]
        found = self._add(node, "MatMulIntegerToFloat", inputs, domain="com.microsoft")
        if padding and not ranked:
            found = self._first_columns(node, found, columns, f"{name}_columns")
        self._replace_sum(node, found, result)

    def _clipped(self, x: ir.Value, magnitude: float, before: ir.Node) -> ir.Value:
        """Quantize an activation with a recorded scale, once for all matmuls with that scale.

        QuantizeLinear divides by its scale. Multiplying by the recorded multiplier instead rounds
        as Bergamot's engine does, also halfway between two steps.
        """
        if (x, magnitude) not in self._clipped_activations:
            multiplier = self._number(f"{x.name}_multiplier", _LARGEST / magnitude)
            ends = self._number("first_step", -_LARGEST), self._number("last_step", _LARGEST)
            steps = self._add(before, "Clip", [self._add(before, "Mul", [x, multiplier]), *ends])
            inputs = [steps, self._number("one", 1), self._signed_zero_point()]
            values = self._add(before, "QuantizeLinear", inputs, ir.DataType.UINT8)
            self._clipped_activations[x, magnitude] = values
        return self._clipped_activations[x, magnitude]

    def _signed_zero_point(self) -> ir.Value:
        return self._constant("signed_zero_point", np.array(_ZERO_POINT, dtype=np.uint8))

    def _logits(self, node: ir.Node, logits: _Result) -> None:
        """Quantize the vocabulary matmul, whose result is so wide that every pass over it counts.

        The kernel scales columns in registers. Padding columns get a bias that no candidate
        survives, since cutting them off would copy the whole result. A bias of the model is added
        after the rows are scaled, and then hides the padding columns.
        """
        name, weights, scales = self._weights(node)
        rows = self._quantized(operand(node, 0), len(weights), node)
        columns = len(scales)
        padding = weights.shape[1] - columns
        inputs: list[ir.Value | None] = [
            rows.values,
            self._constant(f"{name}_int8", weights),
            self._constant("one", np.array(1, dtype=np.float32)),
            self._constant(f"{name}_scale", np.pad(scales, (0, padding))),
            rows.zero_point,
        ]
        added = np.zeros(columns, np.float32) if logits.bias is None else logits.bias
        added = np.pad(added, (0, padding), constant_values=_HIDDEN)
        if padding and logits.bias is None:
            inputs += [None, self._constant(f"{name}_hidden", added)]
        found = self._add(node, "MatMulIntegerToFloat", inputs, domain="com.microsoft")
        found = self._add(node, "Mul", [found, rows.scale])
        if logits.bias is not None:
            found = self._add(node, "Add", [found, self._constant(f"{name}_bias", added)])
        self._replace_sum(node, found, logits)

    def _matmul(self, node: ir.Node) -> None:
        name, weights, scales = self._weights(node)
        rows = self._quantized(operand(node, 0), len(weights), node)
        columns = len(scales)
        inputs = [rows.values, self._constant(f"{name}_int8", weights), rows.zero_point]
        integer = self._add(node, "MatMulInteger", inputs, ir.DataType.INT32)
        if weights.shape[1] > columns:
            integer = self._first_columns(node, integer, columns, f"{name}_columns")
        # DequantizeLinear casts and scales rows at once: a block is a whole row.
        scaled = self._add(
            node, "DequantizeLinear", [integer, rows.scale], axis=-1, block_size=columns
        )
        self._replace(
            node, self._add(node, "Mul", [scaled, self._constant(f"{name}_scale", scales)])
        )

    def _first_columns(
        self, before: ir.Node, matrix: ir.Value, columns: int, name: str
    ) -> ir.Value:
        """Cut off padding columns; `name` is that of the constant with the number of the others."""
        bounds = (("first_column", 0), (name, columns), ("last_axis", -1))
        slicing = [self._constant(n, np.array([i], dtype=np.int64)) for n, i in bounds]
        dtype = matrix.dtype
        assert dtype is not None
        return self._add(before, "Slice", [matrix, *slicing], dtype)

    def _quantized(self, x: ir.Value, width: int, before: ir.Node) -> _Rows:
        """Quantize an activation, once for all matmuls that read it."""
        if x not in self._activations:
            producer = x.producer()
            positive = producer is not None and producer.op_type == "Relu"
            magnitude = x if positive else self._add(before, "Abs", [x])
            last = self._constant("last_axis", np.array([-1], dtype=np.int64))
            largest = self._add(before, "ReduceMax", [magnitude, last], keepdims=1)
            name, steps = ("positive", _LARGEST_UNSIGNED) if positive else ("signed", _LARGEST)
            per_step = self._constant(f"{name}_step", np.array(1 / steps, dtype=np.float32))
            # A row of zeros has scale 0, so its 8-bit values are arbitrary (0 / 0); scaling by 0
            # makes them zeros again.
            scale = self._add(before, "Mul", [largest, per_step])
            zero = np.array(0 if positive else _ZERO_POINT, dtype=np.uint8)
            zero_point = self._constant(f"{name}_zero_point", zero)
            zeros = self._zero_points(name, zero_point, scale, before)
            values = self._add(
                before, "QuantizeLinear", [x, scale, zeros], ir.DataType.UINT8,
                axis=-1, block_size=width,
            )  # fmt: skip
            self._activations[x] = _Rows(values, scale, zero_point)
        return self._activations[x]

    def _zero_points(
        self, name: str, zero_point: ir.Value, scale: ir.Value, before: ir.Node
    ) -> ir.Value:
        """Repeat the zero point for every row of `scale`, as QuantizeLinear requires.

        All activations of a graph have the same rows: its beams, or its source tokens.
        """
        if name not in self._zeros:
            sizes = self._add(before, "Shape", [scale], ir.DataType.INT64)
            self._zeros[name] = self._add(before, "Expand", [zero_point, sizes], ir.DataType.UINT8)
        return self._zeros[name]

    def _shortlist_matmul(self, node: ir.Node) -> None:
        """Replace the fused op that multiplies by shortlisted rows by its 8-bit variant."""
        x, table, *others = node.inputs
        inputs = [x, *self._table(table), *others]
        attributes = {"width": constant_of(table).shape[1]}
        fused = ir.node(
            f"{node.op_type}8", inputs, attributes, domain=DOMAIN, num_outputs=len(node.outputs)
        )
        self._graph.insert_before(node, fused)
        for new, old in zip(fused.outputs, node.outputs, strict=True):
            substitute(new, old)
        self._graph.remove(node, safe=True)

    def _table(self, table: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Quantize a matrix [V, I] per row, once for all readers, with scales [V, 1].

        With a shortlist it has two readers: the lookup of tokens and the shortlist matmul.
        """
        assert table is not None
        if table not in self._tables:
            quantized, scales = quantize_weights(constant_of(table), axis=1)
            rows = self._constant(f"{table.name}_int8", quantized)
            self._tables[table] = rows, self._constant(f"{table.name}_scale", scales[:, None])
        return self._tables[table]

    def _lookup(self, node: ir.Node) -> None:
        table, tokens = operand(node, 0), operand(node, 1)
        rows, row_scales = self._table(table)
        found = self._add(node, "Gather", [rows, tokens], ir.DataType.INT8, axis=0)
        scale = self._add(node, "Gather", [row_scales, tokens], axis=0)
        cast = self._add(node, "Cast", [found], to=int(ir.DataType.FLOAT))
        self._replace(node, self._add(node, "Mul", [cast, scale]))

    # ---- graph editing ----

    def _constant(self, name: str, value: NDArray[np.generic]) -> ir.Value:
        return add_constant(self._graph, name, value)

    def _number(self, name: str, value: float) -> ir.Value:
        return self._constant(name, np.array(value, dtype=np.float32))

    def _add(
        self,
        before: ir.Node,
        operator: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType = ir.DataType.FLOAT,
        domain: str = "",
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes, domain=domain)
        self._names += 1
        node.outputs[0].name = f"int8_{operator.lower()}_{self._names}"
        node.outputs[0].dtype = dtype
        self._graph.insert_before(before, node)
        return node.outputs[0]

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        substitute(value, node.outputs[0])
        self._graph.remove(node, safe=True)

    def _replace_sum(self, matmul: ir.Node, value: ir.Value, result: _Result) -> None:
        """Replace a matmul and, if it has one, the sum with its bias."""
        substitute(value, result.value)
        last = result.value.producer()
        assert last is not None
        self._graph.remove({matmul, last}, safe=True)
