"""Subgraphs that become bodies of fused operators, node by node.

Most bodies are written by hand (`bodies/`). The beam search consists of so many small operators
that its body is the traced subgraph, which follows the traced code when that changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.fused_ops.matching import FusedNode
from translate_trt.export.passes.base import axes, constant, operand

# Sizes, axes and bounds are constants of a body; anything larger must be an input.
_MAX_CONSTANT_SIZE = 64


@dataclass(frozen=True)
class Subgraph:
    """The nodes that compute `outputs` from `inputs`.

    Attributes:
        name: Name of the fused operator.
        inputs: Values at which the subgraph begins, by the operator's input names, in order.
        outputs: Values of the graph at which the subgraph ends.
    """

    name: str
    inputs: Mapping[str, ir.Value]
    outputs: Sequence[ir.Value]

    def fuse(self) -> FusedNode | str:
        """Return a fused operator for the subgraph, or the reason why this is impossible."""
        copy = _Copy(self.inputs)
        try:
            outputs = [copy.value(output) for output in self.outputs]
        except _NotClosedError as reason:
            return str(reason)
        assert self.outputs[0].graph is not None
        version = self.outputs[0].graph.opset_imports[""]
        graph = ir.Graph(copy.parameters, outputs, nodes=copy.nodes, opset_imports={"": version})
        body = ir.Function(DOMAIN, self.name, graph=graph, attributes=())
        return FusedNode(self.name, tuple(self.inputs.values()), self.outputs, body=body)


class _NotClosedError(Exception):
    """A subgraph reads more than its inputs; the message names the value."""


class _Copy:
    """A copy of the nodes that compute values of a graph, with parameters for inputs.

    Args:
        inputs: Inputs of the subgraph.
    """

    def __init__(self, inputs: Mapping[str, ir.Value]) -> None:
        self._inputs = inputs
        self.parameters = [
            ir.Value(name=name, type=value.type, shape=value.shape)
            for name, value in inputs.items()
        ]
        self.nodes: list[ir.Node] = []
        self._names = set(inputs)
        self._copies = dict(zip(inputs.values(), self.parameters, strict=True))

    def value(self, value: ir.Value) -> ir.Value:
        """Copy a value and the nodes that compute it.

        Raises:
            _NotClosedError: The value depends on one that is neither computed nor a small constant.
        """
        if value not in self._copies:
            node = value.producer()
            if node is None:
                self._copies[value] = self._constant(value)
            else:
                self._copy(node)
        return self._copies[value]

    def _constant(self, value: ir.Value) -> ir.Value:
        array = constant(value)
        if array is None or array.size > _MAX_CONSTANT_SIZE:
            raise _NotClosedError(f"the subgraph also reads {value.name}")
        return self._add("Constant", [], [ir.AttrTensor("value", ir.tensor(array))], [value])

    def _copy(self, node: ir.Node) -> None:
        if node.domain:
            raise _NotClosedError(f"the subgraph contains a {node.op_type}")
        attributes = list(node.attributes.values())
        if node.op_type == "Shape" and node.inputs[0] not in self._copies:
            self._size(node)
            return
        # Copied first: nodes are in topological order.
        inputs = [None if value is None else self.value(value) for value in node.inputs]
        self._add(node.op_type, inputs, attributes, node.outputs)

    def _size(self, node: ir.Node) -> None:
        """Copy a Shape of a value outside the subgraph, from an input with an axis of that name.

        Common-subexpression elimination merges equal sizes, so the number of sentences may be
        read from any value of the graph.
        """
        sizes, first = axes(operand(node, 0)), node.attributes.get_int("start", 0)
        last = node.attributes.get_int("end", len(sizes or ()))
        letter = str(sizes[first]) if sizes and last == first + 1 else ""
        for parameter in self.parameters:
            letters = [str(axis) for axis in axes(parameter) or ()]
            if letter in letters:
                axis = letters.index(letter)
                ends = [ir.AttrInt64("start", axis), ir.AttrInt64("end", axis + 1)]
                self._add("Shape", [parameter], ends, node.outputs)
                return
        raise _NotClosedError(f"the subgraph also reads sizes of {operand(node, 0).name}")

    def _add(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr],
        outputs: Sequence[ir.Value],
    ) -> ir.Value:  # fmt: skip
        """Append a node whose outputs are the copies of `outputs`, and return the first."""
        node = ir.Node("", operator, inputs, attributes, num_outputs=len(outputs))
        self.nodes.append(node)
        for new, old in zip(node.outputs, outputs, strict=True):
            new.name = self._unused_name(str(old.name))
            self._copies[old] = new
        return node.outputs[0]

    def _unused_name(self, name: str) -> str:
        while name in self._names:
            name += "_inside"
        self._names.add(name)
        return name
