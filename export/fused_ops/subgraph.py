"""A region of a graph that becomes the body of a function, node by node as it stands there.

Bodies of most functions are written by hand (`declarations.py`). Where many small operators belong
together, as those of the beam search do, what was traced is the better text: it is known to be
right, and it stays so if the traced code changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.fused_ops.matching import FusedNode, operand
from translate_trt.export.passes.base import axes, constant

# Constants of a body are small: sizes, axes, bounds.
_LARGEST_CONSTANT = 64


@dataclass(frozen=True)
class Subgraph:
    """All that is computed of `outputs` from `inputs`.

    Attributes:
        name: of the function.
        inputs: what the region begins with, by the names of the function's inputs, in their order.
        outputs: what it ends with; values of the graph.
    """

    name: str
    inputs: Mapping[str, ir.Value]
    outputs: Sequence[ir.Value]

    def fuse(self) -> FusedNode | str:
        """A call of the function in the region's place, or why there is none."""
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
    """A region needs more than its inputs; the message says what."""


class _Copy:
    """Nodes that compute values of a graph, written once more with parameters for inputs.

    Args:
        inputs: of the region.
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
        """The copy of a value, with all that it is computed from.

        Raises:
            _NotClosedError: it needs something that is neither computed nor a small constant.
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
        if array is None or array.size > _LARGEST_CONSTANT:
            raise _NotClosedError(f"it also reads {value.name}")
        return self._add("Constant", [], [ir.AttrTensor("value", ir.tensor(array))], [value])

    def _copy(self, node: ir.Node) -> None:
        if node.domain:
            raise _NotClosedError(f"there is a {node.op_type} in it")
        attributes = list(node.attributes.values())
        if node.op_type == "Shape" and node.inputs[0] not in self._copies:
            self._size(node)
            return
        # Written down before the node that needs them.
        inputs = [None if value is None else self.value(value) for value in node.inputs]
        self._add(node.op_type, inputs, attributes, node.outputs)

    def _size(self, node: ir.Node) -> None:
        """One size of a value that the region may not read: that of an input's axis of equal name.

        Nodes of equal results are merged, so the number of sentences may be taken from anything.
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
        raise _NotClosedError(f"it also reads sizes of {operand(node, 0).name}")

    def _add(
        self, operator: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr],
        outputs: Sequence[ir.Value],
    ) -> ir.Value:  # fmt: skip
        """A node whose outputs are the copies of others; returns the first."""
        node = ir.Node("", operator, inputs, attributes, num_outputs=len(outputs))
        self.nodes.append(node)
        for new, old in zip(node.outputs, outputs, strict=True):
            new.name = self._fresh(str(old.name))
            self._copies[old] = new
        return node.outputs[0]

    def _fresh(self, name: str) -> str:
        while name in self._names:
            name += "_inside"
        self._names.add(name)
        return name
