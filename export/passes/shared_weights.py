"""Readers of shared 8-bit weights, such as those of tied decoder layers.

On processors without VNNI, ONNX Runtime converts the constant weights of 8-bit matmuls to the
format of its exact kernel (`EXACT_INT8`). It converts them once per matmul, under one name, and so
fails at the second matmul with the same weights.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.passes.base import Outcome, Pass, add_constant

_WEIGHTS = 1  # index of the input, in all 8-bit matmuls
_MATMULS = ("MatMulInteger", "MatMulIntegerToFloat")


class SeparateReaders(Pass):
    """Give each 8-bit matmul a matrix of its own, which ONNX Runtime makes at load.

    The graph still has one copy of the weights, which compiled kernels share. Each further reader
    reshapes it to another shape, since ONNX Runtime would merge equal nodes.
    """

    name = "separate-readers"
    summary = "matmuls that share 8-bit weights reshape them separately"
    required = True  # ONNX Runtime loads the graph only with it
    expected = None  # other passes decide which of the model's shared weights are stored once

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is a matmul whose weights another one reads."""
        readers: Counter[ir.Value] = Counter()
        matches = 0
        for node in list(model.graph):
            fused = node.domain == DOMAIN and "shape" in node.attributes
            if not fused and node.op_type not in _MATMULS:
                continue
            weights = node.inputs[_WEIGHTS]
            if weights is None or not weights.is_initializer() or weights.dtype != ir.DataType.INT8:
                continue
            earlier = readers[weights]
            readers[weights] += 1
            if earlier:
                separate = _separate_in_body if fused else _separate
                matches += separate(node, weights, earlier)
        return Outcome(matches)


def _separate_in_body(node: ir.Node, _: ir.Value, earlier: int) -> bool:
    """Change the shape to which the body reshapes the weights; return whether it was another."""
    shape = list(node.attributes.get_ints("shape"))
    separate = [*shape[:2], *[1] * earlier]
    node.attributes["shape"] = ir.AttrInt64s("shape", separate)
    return separate != shape


def _separate(node: ir.Node, weights: ir.Value, earlier: int) -> bool:
    """Reshape the weights, with as many axes of size 1 as earlier readers, and back."""
    graph = node.graph
    assert graph is not None
    assert weights.shape is not None
    shape = np.array([*weights.shape.numpy(), *[1] * earlier], dtype=np.int64)
    name = f"{weights.name}_reader_{earlier}"
    reshaped = ir.node("Reshape", [weights, add_constant(graph, f"{name}_shape", shape)])
    squeezed = ir.node("Squeeze", [reshaped.outputs[0]])
    reshaped.outputs[0].name, squeezed.outputs[0].name = f"{name}_reshaped", name
    graph.insert_before(node, [reshaped, squeezed])
    node.replace_input_with(_WEIGHTS, squeezed.outputs[0])
    return True
