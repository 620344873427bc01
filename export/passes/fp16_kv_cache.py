"""FP16 KV caches in graphs with 8-bit matmuls, for a CPU.

A step reads all keys and values of all sentences, which are also most of a process's memory. FP16
halves both. Its 11 bits are more than the 8-bit matmul in front keeps. Values beyond its range,
which no trained model comes near, are clipped, so no value becomes infinite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import FP16_MAX
from translate_trt.export.passes.base import Outcome, Pass, add_constant
from translate_trt.export.passes.expectations import Expected
from translate_trt.export.passes.mixed_precision import is_cache

# Operators that only move values, with the indices of the inputs whose values they move.
_MOVES = {"Reshape": (0,), "Transpose": (0,), "Split": (0,), "ScatterND": (0, 2)}

_Input = tuple[ir.Node, int]  # a node and the index of its input


class Fp16KvCache(Pass):
    """Store the keys and values of self- and cross-attention in FP16."""

    name = "fp16-kv-cache"
    summary = "keys and values are stored in 16 bits"
    required = True  # the layout of the target's graphs says so
    # Keys and values of cross-attention; in the step also of self-attention, read and written.
    expected = Expected(
        encoder=lambda model: 2 * model.cross_layers,
        step=lambda model: 2 * model.cross_layers + 4 * model.self_attentions,
    )

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is an input or output that becomes FP16."""
        graph = model.graph
        caches = [value for value in graph.inputs if _is_wide_cache(value)]
        # Values needed in FP16, with the inputs that need them; graph outputs are not listed.
        wanted: dict[ir.Value, list[_Input]] = defaultdict(list)
        wanted.update({value: [] for value in graph.outputs if _is_wide_cache(value)})
        matches = len(caches) + len(wanted)
        narrow, movers = list(caches), set[ir.Node]()
        # Walk from the outputs to the nodes that compute the values: cast there, all that moves
        # them on moves 16 bits.
        for node in reversed(list(graph)):
            here = [value for value in node.outputs if value in wanted]
            if here and len(here) == len(node.outputs) and node.op_type in _MOVES:
                narrow += here
                movers.add(node)
                for index in _MOVES[node.op_type]:
                    value = node.inputs[index]
                    assert value is not None
                    if value not in caches:
                        wanted[value].append((node, index))
            else:
                for value in here:
                    _narrow(graph, value, wanted.pop(value))
        for value in graph.inputs:
            if value in wanted:
                _narrow(graph, value, wanted[value])
        for value in narrow:
            # Setting `dtype` would change the type object, which a copy of the graph shares.
            value.type = ir.TensorType(ir.DataType.FLOAT16)
        for value in narrow:
            _widen(graph, value, movers)
        return Outcome(matches)


def _is_wide_cache(value: ir.Value) -> bool:
    return is_cache(value) and value.dtype != ir.DataType.FLOAT16


def _narrow(graph: ir.Graph, value: ir.Value, inputs: list[_Input]) -> None:
    """Clip and cast a value to FP16 for some inputs of nodes and for the graph's outputs."""
    limits = [
        add_constant(graph, f"{name}_half", np.array(limit, np.float32))
        for name, limit in (("least", -FP16_MAX), ("most", FP16_MAX))
    ]
    clip = ir.node("Clip", [value, *limits])
    cast = ir.node("Cast", clip.outputs, {"to": ir.DataType.FLOAT16.value})
    clipped, half = clip.outputs[0], cast.outputs[0]
    _insert(graph, value, clip, cast)
    clipped.name, half.name = f"{value.name}_limited", f"{value.name}_half"
    clipped.shape = half.shape = value.shape
    clipped.type, half.type = value.type, ir.TensorType(ir.DataType.FLOAT16)
    for node, index in inputs:
        node.replace_input_with(index, half)
    for index, output in enumerate(graph.outputs):
        if output is value:
            half.name, value.name = value.name, f"{value.name}_float"
            graph.outputs[index] = half


def _widen(graph: ir.Graph, value: ir.Value, movers: Collection[ir.Node]) -> None:
    """Cast a value back to FP32 for all readers but the nodes that move it."""
    readers = [use for use in value.uses() if use.node not in movers]
    if not readers:
        return
    cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT.value})
    wide = cast.outputs[0]
    wide.name, wide.shape = f"{value.name}_float", value.shape
    wide.type = ir.TensorType(ir.DataType.FLOAT)
    for use in readers:
        use.node.replace_input_with(use.idx, wide)
    _insert(graph, value, cast)


def _insert(graph: ir.Graph, value: ir.Value, *nodes: ir.Node) -> None:
    """Insert nodes that read a value directly after the node that writes it."""
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], nodes)
    else:
        graph.insert_after(producer, nodes)
