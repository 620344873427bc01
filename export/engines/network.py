"""Parsing of ONNX graphs by TensorRT, and checks of the networks against the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from translate_trt.runtime.backends.engine_log import is_noise, logger
from translate_trt.runtime.backends.packages import PACKAGES, import_package
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

# Operators that passes of other targets insert.
_ADVICE = dict.fromkeys(
    ("MatMulInteger", "MatMulIntegerToFloat"),
    "the int8 passes for ONNX Runtime inserted it: choose a tensorrt target",
)
_DEFAULT_ADVICE = "replace it by supported operators, in export/graphs.py or in a pass"


class EngineError(TranslateTrtError):
    """TensorRT cannot build an engine from a graph."""


@dataclass(frozen=True)
class Builder:
    """Installed package that builds engines.

    Attributes:
        package: Name of the package, one of `PACKAGES`.
        version: Version of the package.
        module: The imported package.
    """

    package: str
    version: str
    module: Any

    @property
    def is_rtx(self) -> bool:
        """Whether the package is TensorRT-RTX, which compiles kernels when an engine is loaded."""
        return self.package == "tensorrt_rtx"


def load_builder(package: str) -> Builder:
    """Import a package that builds engines.

    Args:
        package: "tensorrt" or "tensorrt_rtx".

    Raises:
        TranslateTrtError: The package is not installed; the message says what to install.
        OptionError: The package does not build engines.
    """
    if package not in PACKAGES:
        raise OptionError(f"{package!r} does not build engines; choose from {', '.join(PACKAGES)}.")
    module: Any = import_package(package)
    return Builder(package, str(module.__version__), module)


@dataclass(frozen=True)
class Graph:
    """ONNX graph to build into an engine.

    Attributes:
        name: Name for error messages, such as "step".
        model: Serialized graph with its weights, or the path of its file.
        inputs: Inputs that the contract requires.
        outputs: Outputs that the contract requires.
    """

    name: str
    model: bytes | Path
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def content(self) -> bytes:
        """Return the content of the ONNX file."""
        return self.model.read_bytes() if isinstance(self.model, Path) else self.model


def parse(builder: Builder, trt_builder: Any, content: bytes, name: str) -> Any:
    """Parse a graph into TensorRT's INetworkDefinition.

    Attention layers are marked as decomposable. Otherwise, the build would fail where no fused
    kernel supports their type and shape, as in FP32.

    Raises:
        EngineError: The parser lacks an operator or reports errors; the message names each node,
            the reason and the remedy.
    """
    trt = builder.module
    network = trt_builder.create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)  # the only kind in TensorRT 11
    )
    parser = trt.OnnxParser(network, logger(builder.package))
    _check_operators(builder, parser, content, name)
    if not parser.parse(content):
        errors = [_describe(parser.get_error(index)) for index in range(parser.num_errors)]
        raise EngineError(
            f"{builder.package} {builder.version} cannot parse the {name} graph: "
            + " | ".join(dict.fromkeys(errors))
        )
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings return the base class
            layer.attention.decomposable = True
    return network


def _check_operators(builder: Builder, parser: Any, content: bytes, name: str) -> None:
    try:
        nodes = onnx.load_model_from_string(content).graph.node
    except DecodeError as error:  # TensorRT's parser would read these bytes as an empty graph
        raise EngineError(f"the {name} graph is not an ONNX model; export it again.") from error
    unknown = [
        node
        for node in nodes
        if not parser.supports_operator(node.op_type)
        and not any(attribute.name == "plugin_namespace" for attribute in node.attribute)
    ]
    if unknown:
        shown_nodes = [f"{node.op_type} at {node.name or node.output[0]!r}" for node in unknown[:8]]
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        advice = dict.fromkeys(
            f"{node.op_type}: {_ADVICE.get(node.op_type, _DEFAULT_ADVICE)}" for node in unknown
        )
        raise EngineError(
            f"{builder.package} {builder.version} has no operator for {len(unknown)} nodes of the "
            f"{name} graph: {', '.join(shown_nodes)}{more}. {'. '.join(advice)}."
        )


def _describe(error: Any) -> str:
    """Format a parser error with node, operator, reason and remedy."""
    advice = {
        "UNSUPPORTED_NODE_DATATYPE": "cast its inputs to a supported type",
        "UNSUPPORTED_NODE_DYNAMIC": "make that axis constant",
    }.get(error.code().name, "check the types and shapes of its inputs: casts are never implicit")
    reason = (
        " ".join(line for line in error.desc().splitlines() if not is_noise(line))
        .strip()
        .rstrip(".")
    )
    where = f"{error.node_operator()} at {error.node_name()!r}: " if error.node_operator() else ""
    return f"{where}{reason} ({error.code().name}); {advice}."


def check_network(network: Any, graph: Graph) -> None:
    """Check names, types, fixed sizes and dynamic axes of the network against the contract.

    Raises:
        EngineError: The network differs; the message lists every difference.
    """
    differences = []
    sides = (("input", graph.inputs), ("output", graph.outputs))
    for (side, specs), tensors in zip(sides, inputs_outputs(network), strict=True):
        found = {tensor.name: tensor for tensor in tensors}
        wanted = {spec.name: spec for spec in specs}
        differences += [f"{side} {missing} is missing" for missing in wanted.keys() - found.keys()]
        differences += [f"{side} {extra} is unexpected" for extra in found.keys() - wanted.keys()]
        for spec in specs:
            if spec.name in found:
                differences += _differences(side, spec, found[spec.name])
    if differences:
        raise EngineError(
            f"the parsed {graph.name} graph violates export/contract.py: "
            f"{'; '.join(sorted(differences))}. Make the passes preserve the contract."
        )


def _differences(side: str, spec: TensorSpec, tensor: Any) -> list[str]:
    found = []
    if (dtype := dtype_name(tensor)) != spec.dtype:
        found.append(f"{side} {spec.name} is {dtype}, not {spec.dtype}")
    sizes = [-1 if isinstance(axis, str) else axis for axis in spec.axes]
    if list(tensor.shape) != sizes:
        found.append(f"{side} {spec.name} has axes {axes(tensor)}, not {list(spec.axes)}")
    elif side == "input":  # the parser does not name the axes of outputs
        names = [tensor.get_dimension_name(index) for index in range(len(sizes))]
        if any(isinstance(a, str) and a != n for a, n in zip(spec.axes, names, strict=True)):
            found.append(f"{side} {spec.name} has axes named {names}, not {list(spec.axes)}")
    return found


def inputs_outputs(network: Any) -> tuple[list[Any], list[Any]]:
    """Return the network's inputs and outputs as ITensors."""
    return (
        [network.get_input(index) for index in range(network.num_inputs)],
        [network.get_output(index) for index in range(network.num_outputs)],
    )


def dtype_name(tensor: Any) -> str:
    """Return the tensor's element type as the contract names it."""
    name: str = tensor.dtype.name
    return _DTYPES.get(name, name)


def axes(tensor: Any) -> str:
    """Format the tensor's axes as "[?, 4, ?, 16]", with "?" for dynamic axes."""
    return f"[{', '.join(str(size) if size >= 0 else '?' for size in tensor.shape)}]"
