"""Products in 8 bits: weights per output channel beforehand, activations per row as they come.

    x W   becomes   scale(x) * scale(W) * (q(x) - 128) q(W)

with scale(W) one number per column of W, scale(x) one per row of x: largest magnitude / 127. No
scale is shared between two rows, hence none between two sentences: what stands beside a sentence in
the batch cannot change its translation. Activations are unsigned with zero point 128 and weights
signed, the pair ONNX Runtime has fast kernels for: signed activations are ten times slower and
more, unsigned weights up to several times (docs/results.md, made by benchmarks/int8_product.py).
Embedding tables are stored in 8 bits per row as well.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from translate_trt.export.passes.base import (
    Outcome,
    Pass,
    add_constant,
    drop_unused_constants,
    is_embedding,
    matrix,
    take_place,
)
from translate_trt.runtime.errors import TranslateTrtError

_LARGEST = 127  # of a signed byte, symmetric
_ZERO_POINT = 128  # of the unsigned activations
# ONNX Runtime 1.23.2 (the last for Python 3.10) returns wrong products on processors with AMX where
# the columns are no multiple of 16 and the rows are 32 or more; 1.31.1 does not. Columns of zeros
# fill up the matrix.
_COLUMNS = 16
# A row of zeros would divide by zero; any scale serves it.
_SMALLEST_SCALE = 1e-12


def quantize_weights(
    weights: NDArray[np.float32], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric 8-bit weights and their scales, one per slice that remains when `axis` is reduced.

    Args:
        weights: a matrix.
        axis: 0 gives one scale per column, 1 one per row.

    Returns:
        int8 of the same shape, and float32 scales of the other axis' length; weights are nearly
        their product.
    """
    largest = np.abs(weights).max(axis=axis, keepdims=True)
    scales = np.maximum(largest / _LARGEST, _SMALLEST_SCALE).astype(np.float32)
    quantized = np.clip(np.rint(weights / scales), -_LARGEST, _LARGEST).astype(np.int8)
    return quantized, scales.squeeze(axis)


class DynamicInt8(Pass):
    """Every product with, and every lookup in, a constant matrix of one graph."""

    name = "int8"
    summary = "8-bit products: weights per output channel, activations per row; 8-bit tables"
    required = True

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is a product or a table in 8 bits.

        Raises:
            TranslateTrtError: there was nothing to quantize, so the graph is not what it should be.
        """
        return Outcome(_Quantizer(model.graph).run())


class _Quantizer:
    """One graph on its way to 8 bits."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._activations: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._names = 0

    def run(self) -> int:
        """Products and tables that are in 8 bits now."""
        products = tables = 0
        for node in list(self._graph):
            if node.op_type == "MatMul" and matrix(node.inputs[1]) is not None:
                self._product(node)
                products += 1
            elif node.op_type == "Gather" and is_embedding(node):
                self._lookup(node)
                tables += 1
        if not products:
            raise TranslateTrtError(
                f"the {self._graph.name} graph has no product with a constant matrix to quantize."
            )
        drop_unused_constants(self._graph)
        return products + tables

    # ---- rewriting ----

    def _product(self, node: ir.Node) -> None:
        activation, constant = node.inputs
        weights = matrix(constant)
        assert activation is not None
        assert constant is not None
        assert weights is not None
        quantized, scales = quantize_weights(weights, axis=0)
        columns = quantized.shape[1]
        quantized = np.pad(quantized, ((0, 0), (0, -columns % _COLUMNS)))
        name = str(constant.name)
        rows, row_scale = self._quantized(activation, node)
        integer = self._add(
            node,
            "MatMulInteger",
            [
                rows,
                self._constant(f"{name}_int8", quantized),
                self._zero_point(),
            ],
            ir.DataType.INT32,
        )
        if quantized.shape[1] > columns:
            bounds = (("first_column", 0), (f"{name}_columns", columns), ("last_axis", -1))
            slicing = [self._constant(n, np.array([i], dtype=np.int64)) for n, i in bounds]
            integer = self._add(node, "Slice", [integer, *slicing], ir.DataType.INT32)
        real = self._cast(node, integer, ir.DataType.FLOAT)
        scaled = self._add(node, "Mul", [real, self._constant(f"{name}_scale", scales)])
        self._replace(node, self._add(node, "Mul", [scaled, row_scale]))

    def _quantized(self, x: ir.Value, before: ir.Node) -> tuple[ir.Value, ir.Value]:
        """8-bit rows of x and their scales, computed once for all products that read x."""
        if x not in self._activations:
            magnitude = self._add(before, "Abs", [x])
            last = self._constant("last_axis", np.array([-1], dtype=np.int64))
            largest = self._add(before, "ReduceMax", [magnitude, last], keepdims=1)
            step = self._constant("per_step", np.array(1 / _LARGEST, dtype=np.float32))
            floor = self._constant("smallest_scale", np.array(_SMALLEST_SCALE, dtype=np.float32))
            scale = self._add(before, "Max", [self._add(before, "Mul", [largest, step]), floor])
            # The operator that rounds, shifts and casts at once takes one scale per tensor: one.
            rows = [
                self._add(before, "Div", [x, scale]),
                self._constant("no_scale", np.array(1, dtype=np.float32)),
                self._zero_point(),
            ]
            quantized = self._add(before, "QuantizeLinear", rows, ir.DataType.UINT8)
            self._activations[x] = (quantized, scale)
        return self._activations[x]

    def _lookup(self, node: ir.Node) -> None:
        table, tokens = node.inputs
        weights = matrix(table)
        assert table is not None
        assert tokens is not None
        assert weights is not None
        quantized, scales = quantize_weights(weights, axis=1)
        name = str(table.name)
        rows = self._constant(f"{name}_int8", quantized)
        row_scales = self._constant(f"{name}_scale", scales[:, None])
        found = self._add(node, "Gather", [rows, tokens], ir.DataType.INT8, axis=0)
        scale = self._add(node, "Gather", [row_scales, tokens], axis=0)
        self._replace(
            node, self._add(node, "Mul", [self._cast(node, found, ir.DataType.FLOAT), scale])
        )

    # ---- graph handling ----

    def _zero_point(self) -> ir.Value:
        return self._constant("activation_zero_point", np.array(_ZERO_POINT, dtype=np.uint8))

    def _constant(self, name: str, value: NDArray[np.generic]) -> ir.Value:
        return add_constant(self._graph, name, value)

    def _add(
        self,
        before: ir.Node,
        operator: str,
        inputs: list[ir.Value],
        dtype: ir.DataType = ir.DataType.FLOAT,
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes)
        self._names += 1
        node.outputs[0].name = f"int8_{operator.lower()}_{self._names}"
        node.outputs[0].dtype = dtype
        self._graph.insert_before(before, node)
        return node.outputs[0]

    def _cast(self, before: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self._add(before, "Cast", [value], dtype, to=int(dtype))

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        take_place(value, node.outputs[0])
        self._graph.remove(node, safe=True)
