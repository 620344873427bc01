"""Rewrite of FP16 and BF16 graphs that makes ONNX Runtime's CPU provider round like a GPU.

The CPU provider has almost no 16-bit kernels. It runs FP16 operators in FP32 and removes the casts
between them, which hides rounding and overflow, and it rejects BF16 graphs. The rewrite puts casts
around every operator: to FP32 before it and to its own type after it. A matmul then computes what
tensor cores do: 16-bit factors, FP32 accumulation, and a single rounding of the result. Attention
is rounded once, as a whole.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from translate_trt.export.passes.base import Outcome, Pass, add_constant
from translate_trt.runtime.errors import TranslateTrtError

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# Operators that only move values and have kernels for both types (tested with ONNX Runtime 1.31.1;
# Expand lacks a BF16 kernel).
_MOVES = {
    "Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Split", "TensorScatter",
    "Transpose", "Unsqueeze",
}  # fmt: skip


class Emulate(Pass):
    """Emulate 16-bit operators on the CPU; no target contains this pass.

    BF16 inputs and outputs become float32 with 16-bit values, because numpy has no bfloat16.
    """

    name = "emulate"
    summary = "compute 16-bit operators in FP32 and round their results"

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is an operator that now computes in FP32.

        Raises:
            TranslateTrtError: An operator with a subgraph has 16-bit values.
        """
        emulator = _Emulator(model.graph)
        for node in list(model.graph):
            if node.op_type not in _MOVES:
                emulator.widen(node)
            if node.op_type == "Attention":
                emulator.repeat_mask(node)
        emulator.widen_inputs()
        emulator.widen_outputs()
        return Outcome(emulator.matches)


class _Emulator:
    """Emulation of one graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._wide: dict[ir.Value, ir.Value] = {}  # float32 of 16-bit values that are read
        self.matches = 0

    def widen(self, node: ir.Node) -> None:
        """Make an operator read and write float32, between casts."""
        inputs = [(i, x) for i, x in enumerate(node.inputs) if x is not None and is_half(x)]
        outputs = [x for x in node.outputs if is_half(x)]
        if not inputs and not outputs:
            return
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
               for a in node.attributes.values()):  # fmt: skip
            raise TranslateTrtError(
                f"cannot emulate {node.op_type} {node.name}: it has a subgraph and 16-bit values."
            )
        self.matches += 1
        for index, value in inputs:
            node.replace_input_with(index, self._up(value, node))
        for value in outputs:
            self._down(value, node)

    def _up(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        if value not in self._wide:
            cast = _cast(value, ir.DataType.FLOAT, f"{value.name}_wide")
            self._graph.insert_before(reader, cast)
            self._wide[value] = cast.outputs[0]
        return self._wide[value]

    def _down(self, value: ir.Value, node: ir.Node) -> None:
        """Round an operator's FP32 output; the rounded value keeps the name."""
        dtype, name = value.dtype, str(value.name)
        assert dtype is not None
        value.name, value.type = f"{name}_unrounded", ir.TensorType(ir.DataType.FLOAT)
        cast = _cast(value, dtype, name)
        value.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        self._graph.insert_after(node, cast)

    def repeat_mask(self, node: ir.Node) -> None:
        """Expand a mask with a single row to all queries: ONNX Runtime does not broadcast it."""
        query, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
        if mask is None or (mask.shape is not None and mask.shape[-2] != 1):
            return
        one = add_constant(self._graph, "emulate_one", np.array([1], dtype=np.int64))
        queries = ir.node("Shape", [query], {"start": 2, "end": 3})
        sizes = ir.node("Concat", [one, one, queries.outputs[0], one], {"axis": 0})
        expand = ir.node("Expand", [mask, sizes.outputs[0]])
        for new in (queries, sizes, expand):
            new.outputs[0].name = f"{node.outputs[0].name}_mask_{new.op_type.lower()}"
        self._graph.insert_before(node, [queries, sizes, expand])
        node.replace_input_with(3, expand.outputs[0])

    def widen_inputs(self) -> None:
        """Replace BF16 inputs by float32 inputs and a cast to BF16."""
        for value in self._graph.inputs:
            if value.dtype == ir.DataType.BFLOAT16:
                value.type = ir.TensorType(ir.DataType.FLOAT)
                cast = _cast(value, ir.DataType.BFLOAT16, f"{value.name}_half")
                value.replace_all_uses_with(cast.outputs[0])
                cast.replace_input_with(0, value)
                self._graph.insert_before(self._graph[0], cast)

    def widen_outputs(self) -> None:
        """Replace BF16 outputs by a cast to float32."""
        for index, value in enumerate(self._graph.outputs):
            if value.dtype == ir.DataType.BFLOAT16:
                name, value.name = str(value.name), f"{value.name}_half"
                cast = _cast(value, ir.DataType.FLOAT, name)
                self._graph.append(cast)
                self._graph.outputs[index] = cast.outputs[0]


def is_half(value: ir.Value) -> bool:
    """Return whether a value is known to be FP16 or BF16."""
    dtype = value.dtype if value.const_value is None else value.const_value.dtype
    return dtype in _HALF


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)})
    output = node.outputs[0]
    output.name, output.shape, output.type = name, value.shape, ir.TensorType(dtype)
    return node
