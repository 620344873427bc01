"""Trace PyTorch modules into ONNX graphs with the contract's names, types and dynamic axes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import nn
from torch.export import ExportedProgram

from translate_trt.export.aten_to_onnx import to_onnx
from translate_trt.export.build_options import SHORTEST_SOURCE
from translate_trt.export.roles import remove_roles
from translate_trt.export.targets import DYNAMIC_OPSET, EXAMPLE_SLOTS
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.errors import TranslateTrtError

_TYPES = {
    "int64": ir.DataType.INT64,
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "bool": ir.DataType.BOOL,
}

# Sizes of the example inputs. They all differ, or torch would take two axes for the same.
_EXAMPLE_SIZES = {
    "N": 2,
    "K": 3,
    "S": SHORTEST_SOURCE,
    "P": EXAMPLE_SLOTS,
    "W": 23,
    "B": 11,
    "R": 13,
    "D": 19,
    "U": 17,
}
# A protobuf holds less than 2 GiB; the rest is for the nodes.
_MOST_BYTES = 2**31 - 2**24


def record(module: nn.Module, inputs: Sequence[TensorSpec]) -> ExportedProgram:
    """Record the operators that a module calls, for inputs of any size."""
    arguments = tuple(
        torch.ones(
            [axis if isinstance(axis, int) else _EXAMPLE_SIZES[axis] for axis in spec.axes],
            dtype=getattr(torch, spec.dtype),
        )
        for spec in inputs
    )
    dynamic = torch.export.Dim.DYNAMIC
    axes = tuple(
        {index: dynamic for index, axis in enumerate(spec.axes) if axis in _EXAMPLE_SIZES}
        for spec in inputs
    )
    with (
        warnings.catch_warnings(),
        torch.inference_mode(mode=False),
        torch.no_grad(),
        # With symbolic sizes, looking up a cached fake tensor takes longer than computing it.
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
    ):
        warnings.simplefilter("ignore")
        return torch.export.export(
            module.eval(),
            arguments,
            # For a module with a variable argument list, torch expects one more tuple around axes.
            dynamic_shapes=(axes,) if len(inputs) > 2 else axes,
            strict=False,
        )


def trace(
    module: nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    name: str,
    opset: int = DYNAMIC_OPSET,
    named: Sequence[str] = (),
) -> ir.Model:
    """Trace a module whose arguments and results are those of a contract.

    Args:
        module: Module that takes the inputs in order and returns a tuple of the outputs in order.
        inputs: Inputs of the graph.
        outputs: Outputs of the graph.
        name: Name of the graph.
        opset: Version of ONNX's operator set.
        named: Names of further tensors that the module returns after the outputs. The graph has
            them under these names, but not as outputs.

    Raises:
        TranslateTrtError: The traced graph does not match the contract.
    """
    program = record(module, inputs)
    model = to_onnx(
        program,
        inputs={spec.name: spec.axes for spec in inputs},
        outputs=[*(spec.name for spec in outputs), *named],
        name=name,
        opset=opset,
    )
    # After `del`, the removed values would still claim to be outputs.
    model.graph.outputs[len(outputs) :] = []
    declare(model.graph.inputs, inputs, name)
    declare(model.graph.outputs, outputs, name)
    return model


def declare(values: Sequence[ir.Value], specs: Sequence[TensorSpec], name: str) -> None:
    """Check the inputs or outputs of a graph against the contract and name their axes."""
    found = [value.name for value in values]
    if found != [spec.name for spec in specs]:
        raise TranslateTrtError(
            f"the {name} graph has {found}, but the contract has {[spec.name for spec in specs]}."
        )
    for value, spec in zip(values, specs, strict=True):
        dtype = _TYPES[spec.dtype]
        if value.dtype is not None and value.dtype != dtype:
            raise TranslateTrtError(
                f"{spec.name} of the {name} graph is {value.dtype}, not {spec.dtype}."
            )
        # Setting `dtype` would change the type object, which a copy of the graph shares.
        value.type = ir.TensorType(dtype)
        value.shape = ir.Shape(spec.axes)


def check(model: ir.Model) -> onnx.ModelProto:
    """Convert a model to a protobuf and check it, shapes included, with `onnx.checker`.

    Metadata is removed: torch's stack traces contain local paths and are a large part of a small
    graph.

    Raises:
        TranslateTrtError: The weights do not fit into one file.
    """
    tensors = [value.const_value for value in model.graph.initializers.values()]
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if size > _MOST_BYTES:
        raise TranslateTrtError(
            f"the {model.graph.name} graph has {size / 2**30:.2f} GiB of weights, and an ONNX file "
            "holds less than 2 GiB. Choose a target of lower precision or, in an ensemble, fewer "
            "or smaller members."
        )
    model = model.clone()
    ClearMetadataAndDocStringPass()(model)
    remove_roles(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto
