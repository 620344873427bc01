"""Cache of traced graphs: models that differ only in their weights are traced once.

Tracing takes some seconds of processor time, and what it yields depends on a model's weights in
their values alone. So the graph is kept without them, and gets those of the model at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.tensor_adapters import TorchTensor
from torch import nn

from support.disk_cache import hash_files
from support.shared import SharedFiles
from translate_trt.export import compile as compile_module
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.export.trace import trace
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.train.model import Transformer

#: What traces, and what is traced.
MAKERS = (
    "translate_trt.export.trace",
    "translate_trt.export.ensemble",
    "translate_trt.export.taps",
)


@pytest.fixture(scope="session", autouse=True)
def traced_once(shared: SharedFiles) -> Iterator[None]:
    """Make `compile_bundle` and `trace_graphs` trace each structure once, in this run or before.

    Tests of tracing itself call `trace.trace`, which is what it was.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_module, "trace", cached_trace(shared))
        yield


def cached_trace(shared: SharedFiles) -> Callable[..., ir.Model]:
    """Call `trace` and keep its graphs in shared files."""
    file_format = hash_files(Path(__file__))

    def cached(
        module: nn.Module,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        name: str,
        opset: int = DYNAMIC_OPSET,
        named: Sequence[str] = (),
    ) -> ir.Model:
        asked = (
            structure(module), tuple(inputs), tuple(outputs), name, opset, tuple(named),
            file_format,
        )  # fmt: skip
        path = shared.kept(
            f"{name}-graph",
            MAKERS,
            asked,
            lambda path: path.write_bytes(
                without_weights(trace(module, inputs, outputs, name, opset, named), module)
            ),
        )
        return with_weights(path.read_bytes(), module)

    return cached


def structure(module: nn.Module) -> tuple[object, ...]:
    """Describe everything that shapes the graph of a module, except its inputs."""
    owners: dict[int, str] = {}
    tensors = [
        (name, tuple(x.shape), x.dtype, owners.setdefault(x.data_ptr(), name))  # tied ones
        for name, x in module.state_dict().items()
    ]
    shape = (getattr(module, "contract", None), getattr(module, "attention", None))
    configs = [one.config for one in module.modules() if isinstance(one, Transformer)]
    # The module's text shows its layers; dropout is for training alone.
    layers = re.sub(r"Dropout\(p=[0-9.]+", "Dropout(", str(module))
    return [replace(config, dropout=0.0) for config in configs], shape, layers, tuple(tensors)


def without_weights(graph: ir.Model, module: nn.Module) -> bytes:
    """Serialize a graph without the values of the module's weights."""
    proto = ir.to_proto(graph)
    weights = module.state_dict().keys()
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("raw_data")
    return proto.SerializeToString()


def with_weights(content: bytes, module: nn.Module) -> ir.Model:
    """Restore a graph of `without_weights` with the weights of another module."""
    graph = ir.from_proto(onnx.ModelProto.FromString(content))
    weights = module.state_dict(keep_vars=True)
    for name, value in graph.graph.initializers.items():
        if name in weights:
            value.const_value = TorchTensor(weights[name], name)
    return graph
