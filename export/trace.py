"""PyTorch modules to ONNX graphs with the contract's names, types and dynamic axes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from translate_trt.runtime.contract import GraphShape, TensorSpec
from translate_trt.runtime.errors import TranslateTrtError

# LayerNormalization needs 17; 20 is the newest whose every operator ONNX Runtime 1.20 runs on CPU.
OPSET = 20

# Sizes of the example inputs. All differ, so that no two axes can be taken for one.
_EXAMPLE_SIZES = {"N": 2, "K": 3, "S": 5, "P": 7}


def _example(spec: TensorSpec) -> Tensor:
    sizes = [axis if isinstance(axis, int) else _EXAMPLE_SIZES[axis] for axis in spec.axes]
    return torch.ones(sizes, dtype=getattr(torch, spec.dtype))


def _dynamic_axes(spec: TensorSpec) -> dict[int, object]:
    return {
        index: torch.export.Dim.DYNAMIC
        for index, axis in enumerate(spec.axes)
        if axis in _EXAMPLE_SIZES
    }


def trace(
    module: nn.Module, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], name: str
) -> ir.Model:
    """Trace a module whose arguments and results are those of the contract.

    Args:
        module: takes the inputs in order, returns a tuple of the outputs in order.
        inputs: the graph's inputs.
        outputs: the graph's outputs.
        name: of the graph.

    Raises:
        TranslateTrtError: the traced graph departs from the contract.
    """
    arguments = tuple(_example(spec) for spec in inputs)
    axes = tuple(_dynamic_axes(spec) for spec in inputs)
    with warnings.catch_warnings(), torch.inference_mode(mode=False), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            module.eval(),
            arguments,
            dynamo=True,
            # A module with a variable argument list wants its tuple of axes inside one more tuple.
            dynamic_shapes=(axes,) if len(inputs) > 2 else axes,
            input_names=[spec.name for spec in inputs],
            output_names=[spec.name for spec in outputs],
            opset_version=OPSET,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise TranslateTrtError(f"torch.onnx.export gave no program for the {name} graph.")
    model = program.model
    model.graph.name = name
    _declare(model.graph.inputs, inputs, name)
    _declare(model.graph.outputs, outputs, name)
    return model


def _declare(values: Sequence[ir.Value], specs: Sequence[TensorSpec], name: str) -> None:
    """Hold the graph's values against the contract and write the contract's axis names on them."""
    found = [value.name for value in values]
    if found != [spec.name for spec in specs]:
        raise TranslateTrtError(
            f"the {name} graph has {found} where the contract says {[spec.name for spec in specs]}."
        )
    for value, spec in zip(values, specs, strict=True):
        dtype = ir.DataType[{"int64": "INT64", "float32": "FLOAT", "bool": "BOOL"}[spec.dtype]]
        if value.dtype is not None and value.dtype != dtype:
            raise TranslateTrtError(
                f"{spec.name} of the {name} graph is {value.dtype}, not {spec.dtype}."
            )
        value.dtype = dtype
        value.shape = ir.Shape(spec.axes)


def check(model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf that `onnx.checker` accepts, shapes inferred and checked."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def contract(shape: GraphShape) -> dict[str, tuple[Sequence[TensorSpec], Sequence[TensorSpec]]]:
    """Inputs and outputs of both graphs, by the graph's name."""
    return {
        "encoder": (shape.encoder_inputs(), shape.encoder_outputs()),
        "step": (shape.step_inputs(), shape.step_outputs()),
    }
