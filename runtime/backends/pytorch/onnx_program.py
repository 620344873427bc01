"""An ONNX graph as a list of PyTorch calls.

Shapes are known when a graph is launched, so everything that depends on shapes and weights alone is
computed once per set of shapes (`Plan`). What remains are calls that only enqueue work on a device,
which a CUDA graph can capture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import torch
from onnx import numpy_helper
from torch import Tensor

from translate_trt.runtime.backends.pytorch.fused_operators import DOMAIN, FusedOperator, operators
from translate_trt.runtime.backends.pytorch.onnx_operators import (
    DTYPES,
    OPERATORS,
    Attributes,
    Call,
    Operator,
    scatter_slots,
)
from translate_trt.runtime.bundle.contract import (
    NEXT,
    TensorSpec,
    check_in_place,
    check_tensors,
)
from translate_trt.runtime.errors import BackendError, BundleError

# Constants up to this many elements can be shapes, axes and sizes.
_MOST_NUMBERS = 1024

# Operators that launch nothing: views, and what is known on the host. A reshape of transposed
# values copies them, but none of these is left beside fused operators.
_VIEWS = {
    "Expand", "Identity", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip

_REMEDY = "Export the bundle again, or upgrade translate-trt."


@dataclass(frozen=True)
class _Node:
    """A call of a program; values are named as in the graph, and "" is an absent input."""

    operator: str
    call: Call
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    host: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    launches: int = 1
    # Inputs that are updated in place, by the output; None: the call allocates all outputs.
    in_place: Mapping[str, str] | None = None


@dataclass(frozen=True)
class _Step:
    """A call of a plan; values are numbered."""

    node: _Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    unused: tuple[int, ...]  # values that no later step reads


class Program:
    """An ONNX graph with its weights on a device. Thread-safe.

    Args:
        path: Path of the ONNX file.
        inputs: Expected inputs.
        outputs: Expected outputs.
        device: Device of the weights.
        kernels: Whether fused operators run their kernels; otherwise their bodies run.

    Attributes:
        in_place: Names of the inputs that the graph updates, by their outputs.

    Raises:
        BundleError: The file is not an ONNX graph, has an unknown operator, or has other inputs or
            outputs.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        device: torch.device,
        kernels: bool = False,
    ) -> None:
        fused = operators() if kernels else {}
        graph = _read(path, fused)
        self.device = device
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        found = {
            value.name: DTYPES.get(value.type.tensor_type.elem_type)
            for value in (*graph.input, *graph.output)
        }
        specs = (*self.inputs, *self.outputs)
        check_tensors(str(path), found, {spec.name: getattr(torch, spec.dtype) for spec in specs})
        self.weights: dict[str, Tensor] = {}
        self.numbers: dict[str, Tensor] = {}  # small weights, on the host
        for name, value in _constants(graph):
            self.weights[name] = value.to(device)
            if value.numel() <= _MOST_NUMBERS:
                self.numbers[name] = value
        self.nodes = _nodes(path, graph, fused)
        self.in_place = _in_place(path, self.nodes, {spec.name for spec in self.inputs})
        self.unused = _unused(self.nodes, {spec.name for spec in self.outputs})
        self._path = path

    def blank_inputs(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Return uninitialized inputs, for sizes by the letters of their axes."""
        return {
            spec.name: torch.empty(
                [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes],
                dtype=getattr(torch, spec.dtype),
                device=self.device,
            )
            for spec in self.inputs
        }

    def check_aliases(self, caches: Sequence[str]) -> None:
        """Refuse a graph that does not update its caches in place.

        Raises:
            BundleError: A cache output is not an alias of its input.
        """
        check_in_place(str(self._path), {name: self.in_place.get(NEXT + name) for name in caches})


class Plan:
    """A program for one set of input shapes, with its constants. Not thread-safe.

    Args:
        program: The program.

    Attributes:
        outputs: Names of the outputs, in order.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._names = [spec.name for spec in program.inputs]
        self.outputs = [spec.name for spec in program.outputs]
        # Values known before a run: on the host if they are few, on the device once they are read.
        self._host = dict(program.numbers)
        self._device = dict(program.weights)
        self._indices: dict[str, int] = {}
        self._initial: list[Any] = []
        self._steps: list[_Step] = []

    @classmethod
    def record(cls, program: Program, inputs: Mapping[str, Tensor]) -> tuple[Plan, list[Tensor]]:
        """Run a program for the first time, and return its plan for these shapes and its outputs.

        Raises:
            BackendError: A call fails; the message names its operator.
        """
        plan = cls(program)
        return plan, plan._record(inputs)

    @property
    def constants(self) -> Mapping[str, Tensor]:
        """Weights and values that were computed in the first run, on the device."""
        return self._device

    @property
    def launches(self) -> int:
        """Number of kernels that `run` launches, where every call that computes launches one."""
        return sum(step.node.launches for step in self._steps)

    def run(
        self, inputs: Mapping[str, Tensor], targets: Mapping[str, Tensor | None] | None = None
    ) -> list[Tensor]:
        """Enqueue the calls and return the outputs, in order.

        Args:
            inputs: Inputs of the graph by name.
            targets: Tensors that fused operators write outputs of the graph to. Operators of
                PyTorch return others.

        Raises:
            BackendError: A call fails; the message names its operator.
        """
        values = [*self._initial]
        for name in self._names:
            values[self._indices[name]] = inputs[name]
        for step in self._steps:
            found = _call(step.node, [values[index] for index in step.inputs], targets)
            for index, value in zip(step.outputs, found, strict=True):
                values[index] = value
            for index in step.unused:
                values[index] = None
        return [values[self._indices[name]] for name in self.outputs]

    # ---- the first run ----

    def _record(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        values: dict[str, Tensor] = dict(inputs)
        recorded = []
        for node, unused in zip(self._program.nodes, self._program.unused, strict=True):
            if node.operator == "Shape":
                (source,) = node.inputs
                self._host[node.outputs[0]] = node.call(self._find(source, values))
            elif all(name in self._host for name in node.inputs if name):
                found = _call(node, self._arguments(node, self._host))
                self._host |= zip(node.outputs, found, strict=True)
            elif all(name in self._device or name in self._host for name in node.inputs if name):
                found = _call(node, self._arguments(node, {}))
                self._device |= zip(node.outputs, found, strict=True)
            else:
                found = _call(node, self._arguments(node, values))
                values |= zip(node.outputs, found, strict=True)
                recorded.append(node)
            for name in unused:
                values.pop(name, None)
        for name in [*self._names, *self.outputs]:
            self._index(name, constant=name not in values and name not in inputs)
        self._number(recorded, kept={*self._names, *self.outputs})
        return [self._find(name, values) for name in self.outputs]

    def _find(self, name: str, values: Mapping[str, Tensor]) -> Tensor:
        """Return a value on the device."""
        return values[name] if name in values else self._on_device(name)

    def _arguments(self, node: _Node, values: Mapping[str, Tensor]) -> list[Any]:
        """Look up the inputs of a node: known numbers, given values, or constants."""
        return [self._argument(node, index, name, values) for index, name in enumerate(node.inputs)]

    def _argument(self, node: _Node, index: int, name: str, values: Mapping[str, Tensor]) -> Any:
        if not name:
            return None
        if index in node.host:
            if name not in self._host:
                raise BackendError(
                    f"{node.operator} {node.outputs[0]} needs {name} as a number, but it depends "
                    f"on the inputs of the graph. {_REMEDY}"
                )
            return _numbers(self._host[name])
        if index in node.scalars and name in self._host and not self._host[name].ndim:
            return _numbers(self._host[name])
        return self._find(name, values)

    def _on_device(self, name: str) -> Tensor:
        """Return a constant on the device, copied there if necessary."""
        if name not in self._device:
            self._device[name] = self._host[name].to(self._program.device)
        return self._device[name]

    def _number(self, nodes: Sequence[_Node], kept: set[str]) -> None:
        """Make steps of the recorded nodes, and find where each value is read last."""
        dynamic = {name for node in nodes for name in node.outputs} | set(self._names)
        for node, done in zip(nodes, _unused(nodes, kept), strict=True):
            inputs = []
            for index, name in enumerate(node.inputs):
                if name in dynamic:
                    inputs.append(self._index(name, constant=False))
                else:
                    argument = self._argument(node, index, name, {})
                    inputs.append(len(self._initial))
                    self._initial.append(argument)
            outputs = tuple(self._index(name, constant=False) for name in node.outputs)
            unused = tuple(self._indices[name] for name in done if name in dynamic)
            self._steps.append(_Step(node, tuple(inputs), outputs, unused))

    def _index(self, name: str, constant: bool) -> int:
        """Return the index of a named value."""
        if name not in self._indices:
            self._indices[name] = len(self._initial)
            self._initial.append(self._on_device(name) if constant else None)
        return self._indices[name]


def _call(
    node: _Node, arguments: Sequence[Any], targets: Mapping[str, Tensor | None] | None = None
) -> Sequence[Any]:
    try:
        if node.in_place is not None and targets is not None:
            found = node.call(*arguments, targets=[targets.get(name) for name in node.outputs])
        else:
            found = node.call(*arguments)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise BackendError(f"{node.operator} {node.outputs[0]} failed: {error}") from error
    return (found,) if isinstance(found, Tensor) else found


def _numbers(value: Tensor) -> Any:
    """Convert a tensor of rank 0 to a number, and one of rank 1 to a tuple."""
    numbers = value.tolist()
    return tuple(numbers) if isinstance(numbers, list) else numbers


def _read(path: Path, fused: Collection[str]) -> onnx.GraphProto:
    """Read a graph, with the bodies of fused operators that have no entry in a table."""
    try:
        model = onnx.load(path)
        bodies = [(f.domain, f.name) for f in model.functions if f.name not in {*fused, *OPERATORS}]
        model = onnx.inliner.inline_selected_functions(model, bodies)
    except Exception as error:  # errors of protobuf and onnx share no other base class
        raise BundleError(f"cannot read {path}: {error}. {_REMEDY}") from error
    return model.graph


def _tensor(tensor: onnx.TensorProto) -> Tensor:
    """Convert an initializer; NumPy has no bfloat16 of its own."""
    if tensor.data_type == onnx.TensorProto.BFLOAT16:
        bits = numpy_helper.to_array(tensor).view("int16")
        return torch.from_numpy(bits.copy()).view(torch.bfloat16)
    return torch.from_numpy(numpy_helper.to_array(tensor).copy())


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a graph and the constants of bodies, by name."""
    for tensor in graph.initializer:
        yield tensor.name, _tensor(tensor)
    for node in graph.node:
        if node.op_type == "Constant":
            value = onnx.helper.get_attribute_value(node.attribute[0])
            if isinstance(value, onnx.TensorProto):
                yield node.output[0], _tensor(value)
            else:
                yield node.output[0], torch.tensor(value)


def _nodes(
    path: Path, graph: onnx.GraphProto, fused: Mapping[str, FusedOperator]
) -> tuple[_Node, ...]:
    """Bind every node of a graph."""
    unknown = {
        f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)
        for node in graph.node
        if node.domain not in ("", "ai.onnx", DOMAIN)
        or node.op_type not in {*OPERATORS, *fused, "Constant"}
    }
    if unknown:
        raise BundleError(
            f"{path} has operators that the torch backend does not have: "
            f"{', '.join(sorted(unknown))}. {_REMEDY}"
        )
    nodes: list[_Node] = []
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in graph.output}
    uncast: dict[str, str] = {}  # inputs of Cast, which have the shape of its outputs
    slots: dict[str, str] = {}  # by the positions that they are computed of
    for proto in graph.node:
        if proto.op_type == "Constant":
            continue
        values = {one.name: onnx.helper.get_attribute_value(one) for one in proto.attribute}
        if proto.op_type in fused:
            nodes.append(_fused(proto, fused[proto.op_type], values, read))
            continue
        operator: Operator = OPERATORS[proto.op_type]
        attributes = Attributes(proto.op_type, values)
        call = operator.bind(attributes)
        attributes.check_read()
        inputs = tuple(proto.input)
        if proto.op_type == "TensorScatter":  # all caches of a step write the same slots
            cache, update, positions = inputs
            if positions not in slots:
                slots[positions] = f"slots of {positions}"
                nodes.append(
                    _Node("TensorScatter", scatter_slots, (positions, update), (slots[positions],))
                )
            inputs = (cache, update, slots[positions])
        outputs = tuple(proto.output)
        if proto.op_type == "Cast":
            uncast[outputs[0]] = inputs[0]
        elif proto.op_type == "Shape":  # a cast would read a whole tensor for its shape
            inputs = (uncast.get(inputs[0], inputs[0]),)
        launches = int(proto.op_type not in _VIEWS)
        nodes.append(
            _Node(proto.op_type, call, inputs, outputs, operator.host, operator.scalars, launches)
        )
    return _read_by_others(nodes, {value.name for value in graph.output})


def _fused(
    proto: onnx.NodeProto, operator: FusedOperator, attributes: dict[str, Any], read: set[str]
) -> _Node:
    """Bind a fused operator."""
    inputs, outputs = tuple(proto.input), tuple(proto.output)
    call = operator.bind(attributes, [name in read for name in outputs])
    in_place = {outputs[index]: inputs[updated] for index, updated in operator.in_place}
    return _Node(
        proto.op_type, call, inputs, outputs, (), operator.scalars, operator.launches, in_place
    )


def _read_by_others(nodes: Sequence[_Node], outputs: set[str]) -> tuple[_Node, ...]:
    """Leave out nodes whose results nothing reads."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            found.append(node)
    return tuple(reversed(found))


def _in_place(path: Path, nodes: Sequence[_Node], inputs: Collection[str]) -> dict[str, str]:
    """Find the inputs of the graph that nodes update, by their outputs."""
    found = {}
    for node in nodes:
        updates = dict(node.in_place or {})
        if node.operator == "TensorScatter" and node.call is not scatter_slots:
            updates[node.outputs[0]] = node.inputs[0]
        for output, updated in updates.items():
            others = {id(one) for one in nodes if updated in one.inputs and one.operator != "Shape"}
            if updated not in inputs or others != {id(node)}:
                raise BundleError(
                    f"{path} updates {updated}, which must be an input that nothing else reads. "
                    f"{_REMEDY}"
                )
            found[output] = updated
    return found


def _unused(nodes: Sequence[_Node], kept: Collection[str]) -> list[list[str]]:
    """Names that no node after each node reads, except those to keep."""
    last = {name: index for index, node in enumerate(nodes)
            for name in (*node.inputs, *node.outputs)}  # fmt: skip
    return [
        [
            name
            for name in dict.fromkeys((*node.inputs, *node.outputs))
            if last[name] == index and name not in kept
        ]
        for index, node in enumerate(nodes)
    ]
