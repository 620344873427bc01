"""An ONNX graph through TensorRT's parser, and what came of it against the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from translate_trt.runtime.backends.engines import PACKAGES, import_package, is_noise, logger
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.errors import OptionError, TranslateTrtError

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "BOOL": "bool",
}

# Operators that our own passes make for other targets.
_INT8 = "it comes from the int8 passes, which are for ONNX Runtime: choose a tensorrt target"
_MENDS = {
    "MatMulInteger": _INT8,
    "DynamicQuantizeLinear": _INT8,
    "DynamicQuantizeMatMul": _INT8,
    "MatMulNBits": _INT8,
}
_MEND = "replace it, in export/graphs.py or by a pass, with operators that the parser knows"


class EngineError(TranslateTrtError):
    """A graph that TensorRT cannot make an engine of."""


@dataclass(frozen=True)
class Builder:
    """An installed package that builds engines.

    Attributes:
        package: its name, one of `PACKAGES`.
        version: of the package.
        module: the package itself.
    """

    package: str
    version: str
    module: Any

    @property
    def is_rtx(self) -> bool:
        """True for TensorRT-RTX, whose engines are finished on the machine that loads them."""
        return self.package == "tensorrt_rtx"


def load_builder(package: str) -> Builder:
    """The builder of that package.

    Args:
        package: "tensorrt" or "tensorrt_rtx".

    Raises:
        TranslateTrtError: it is not installed; the message says what to install.
        OptionError: there is no such package for engines.
    """
    if package not in PACKAGES:
        raise OptionError(f"no engines of {package!r}; choose from {', '.join(PACKAGES)}.")
    module: Any = import_package(package)
    return Builder(package, str(module.__version__), module)


@dataclass(frozen=True)
class Graph:
    """What an engine is made of.

    Attributes:
        name: for messages, such as "step".
        model: the ONNX graph, weights included, or the file it is in.
        inputs: what it must take, by export/contract.py.
        outputs: what it must give.
    """

    name: str
    model: bytes | Path
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def content(self) -> bytes:
        """The ONNX file's bytes."""
        return self.model.read_bytes() if isinstance(self.model, Path) else self.model


def parse(builder: Builder, trt_builder: Any, content: bytes, name: str) -> Any:
    """The graph as TensorRT's INetworkDefinition.

    Attention layers may be taken apart where no fused kernel takes their types and shapes: in
    float32 there is none, and the build would fail.

    Raises:
        EngineError: naming every operator that the parser does not know, or else each of its
            errors with the node, the reason and what to change.
    """
    trt = builder.module
    network = trt_builder.create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)  # TensorRT 11 has no other kind
    )
    parser = trt.OnnxParser(network, logger(builder.package))
    _check_operators(builder, parser, content, name)
    if not parser.parse(content):
        errors = [_describe(parser.get_error(index)) for index in range(parser.num_errors)]
        raise EngineError(
            f"{builder.package} {builder.version} cannot take the {name} graph: "
            + " | ".join(dict.fromkeys(errors))
        )
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings give the base class
            layer.attention.decomposable = True
    return network


def _check_operators(builder: Builder, parser: Any, content: bytes, name: str) -> None:
    try:
        nodes = onnx.load_model_from_string(content).graph.node
    except DecodeError as error:  # the parser itself takes such bytes for an empty graph
        raise EngineError(f"the {name} graph is not an ONNX model; export it again.") from error
    unknown = [node for node in nodes if not parser.supports_operator(node.op_type)]
    if unknown:
        shown_nodes = [f"{node.op_type} at {node.name or node.output[0]!r}" for node in unknown[:8]]
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        mends = dict.fromkeys(
            f"{node.op_type}: {_MENDS.get(node.op_type, _MEND)}" for node in unknown
        )
        raise EngineError(
            f"{builder.package} {builder.version} has no operator for {len(unknown)} nodes of the "
            f"{name} graph: {', '.join(shown_nodes)}{more}. {'. '.join(mends)}."
        )


def _describe(error: Any) -> str:
    """Node, operator, reason and mend of one of the parser's errors."""
    mend = {
        "UNSUPPORTED_NODE_DATATYPE": "cast its inputs to a type that it takes",
        "UNSUPPORTED_NODE_DYNAMIC": "make that axis a constant",
    }.get(error.code().name, "check the types and shapes of its inputs: none is converted silently")
    reason = (
        " ".join(line for line in error.desc().splitlines() if not is_noise(line))
        .strip()
        .rstrip(".")
    )
    where = f"{error.node_operator()} at {error.node_name()!r}: " if error.node_operator() else ""
    return f"{where}{reason} ({error.code().name}); {mend}."


def check_network(network: Any, graph: Graph) -> None:
    """Hold the parsed network against the contract: names, types, fixed sizes and dynamic axes.

    Raises:
        EngineError: listing every departure.
    """
    departures = []
    sides = (("input", graph.inputs), ("output", graph.outputs))
    for (side, specs), tensors in zip(sides, inputs_outputs(network), strict=True):
        found = {tensor.name: tensor for tensor in tensors}
        wanted = {spec.name: spec for spec in specs}
        departures += [f"{side} {missing} is missing" for missing in wanted.keys() - found.keys()]
        departures += [f"{side} {extra} is not known" for extra in found.keys() - wanted.keys()]
        for spec in specs:
            if spec.name in found:
                departures += _departures(side, spec, found[spec.name])
    if departures:
        raise EngineError(
            f"the {graph.name} graph departs from export/contract.py once parsed: "
            f"{'; '.join(sorted(departures))}. Make the passes keep the contract."
        )


def _departures(side: str, spec: TensorSpec, tensor: Any) -> list[str]:
    found = []
    if (dtype := dtype_name(tensor)) != spec.dtype:
        found.append(f"{side} {spec.name} is {dtype}, not {spec.dtype}")
    sizes = [-1 if isinstance(axis, str) else axis for axis in spec.axes]
    if list(tensor.shape) != sizes:
        found.append(f"{side} {spec.name} has axes {axes(tensor)}, not {list(spec.axes)}")
    elif side == "input":  # the parser names no axis of an output
        names = [tensor.get_dimension_name(index) for index in range(len(sizes))]
        if any(isinstance(a, str) and a != n for a, n in zip(spec.axes, names, strict=True)):
            found.append(f"{side} {spec.name} has axes named {names}, not {list(spec.axes)}")
    return found


def inputs_outputs(network: Any) -> tuple[list[Any], list[Any]]:
    """The network's inputs and its outputs, each an ITensor."""
    return (
        [network.get_input(index) for index in range(network.num_inputs)],
        [network.get_output(index) for index in range(network.num_outputs)],
    )


def dtype_name(tensor: Any) -> str:
    """Its element type as the contract calls it."""
    name: str = tensor.dtype.name
    return _DTYPES.get(name, name)


def axes(tensor: Any) -> str:
    """Its axes for people: "[?, 4, ?, 16]", a question mark for each dynamic one."""
    return f"[{', '.join(str(size) if size >= 0 else '?' for size in tensor.shape)}]"
