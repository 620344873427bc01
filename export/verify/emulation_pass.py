"""Graphs meant for a GPU made to run, and to round, in ONNX Runtime on a CPU.

ONNX Runtime on a CPU has next to none. Without one for an FP16 operator it computes in FP32 and
drops the casts between such operators, so that what FP16 would round, or could not hold, never
shows; for BF16 it refuses the graph. Here each operator has casts of its own, which it keeps: up,
the operator in FP32, down. For a product that is what tensor cores do: 16-bit factors, sums in
FP32, one rounding of the result. (The operator Attention is rounded once, as a whole.)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from translate_trt.export.passes.base import Outcome, Pass, add_constant
from translate_trt.runtime.errors import TranslateTrtError

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# They move values and have kernels for both types (tried with ONNX Runtime 1.31.1; Expand, which
# moves values too, has none for BF16).
_MOVES = {
    "Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Split", "TensorScatter",
    "Transpose", "Unsqueeze",
}  # fmt: skip


class Emulate(Pass):
    """No pass of any target: it makes a copy of a target's graph runnable on any CPU.

    Inputs and outputs of BF16 become float32 that hold 16-bit values, for numpy has no bfloat16.
    """

    name = "emulate"
    summary = "16-bit operators compute in FP32 and round, for a CPU that has none"

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is an operator that now computes in FP32.

        Raises:
            TranslateTrtError: an operator with a graph inside has 16-bit values.
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
    """One graph on its way."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._wide: dict[ir.Value, ir.Value] = {}  # float32 of 16-bit values that are read
        self.matches = 0

    def widen(self, node: ir.Node) -> None:
        """Let an operator read and write float32, between casts."""
        inputs = [(i, x) for i, x in enumerate(node.inputs) if x is not None and is_half(x)]
        outputs = [x for x in node.outputs if is_half(x)]
        if not inputs and not outputs:
            return
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
               for a in node.attributes.values()):  # fmt: skip
            raise TranslateTrtError(
                f"cannot emulate {node.op_type} {node.name}: it holds a graph with 16-bit values."
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
        """What an operator now writes in FP32, rounded under the old name."""
        dtype, name = value.dtype, str(value.name)
        assert dtype is not None
        value.name, value.type = f"{name}_unrounded", ir.TensorType(ir.DataType.FLOAT)
        cast = _cast(value, dtype, name)
        value.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        self._graph.insert_after(node, cast)

    def repeat_mask(self, node: ir.Node) -> None:
        """A row of the mask for every query: ONNX Runtime does not repeat a single one itself."""
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
        """Float32 in place of BF16, cast down for whoever reads it."""
        for value in self._graph.inputs:
            if value.dtype == ir.DataType.BFLOAT16:
                value.type = ir.TensorType(ir.DataType.FLOAT)
                cast = _cast(value, ir.DataType.BFLOAT16, f"{value.name}_half")
                value.replace_all_uses_with(cast.outputs[0])
                cast.replace_input_with(0, value)
                self._graph.insert_before(self._graph[0], cast)

    def widen_outputs(self) -> None:
        """Float32 in place of BF16, cast up at the very end."""
        for index, value in enumerate(self._graph.outputs):
            if value.dtype == ir.DataType.BFLOAT16:
                name, value.name = str(value.name), f"{value.name}_half"
                cast = _cast(value, ir.DataType.FLOAT, name)
                self._graph.append(cast)
                self._graph.outputs[index] = cast.outputs[0]


def is_half(value: ir.Value) -> bool:
    """Whether a value is known to be of 16 bits."""
    dtype = value.dtype if value.const_value is None else value.const_value.dtype
    return dtype in _HALF


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)})
    output = node.outputs[0]
    output.name, output.shape, output.type = name, value.shape, ir.TensorType(dtype)
    return node
