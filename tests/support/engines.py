"""Graphs for engines: small and base Transformers, and handmade graphs of a few nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler
from translate_trt.export.engines.network import Graph
from translate_trt.export.trace import check
from translate_trt.runtime.bundle.contract import Contract, TensorSpec
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

ONNX_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}


#: Beam size of the graphs.
GRAPH_BEAMS = 3


def transformer_graphs(
    config: ModelConfig,
    target: str,
    limits: Limits,
    beams: int = GRAPH_BEAMS,
    disabled_passes: tuple[str, ...] = (),
    all_options: bool = False,
) -> tuple[Contract, dict[str, Graph]]:
    """Compile encoder and step graphs of a random model, without building engines."""
    torch.manual_seed(0)
    model = Transformer(config).eval()
    options = BuildOptions(
        (target,), beam_size=beams, disabled_passes=disabled_passes, all_options=all_options
    )
    compiler = Compiler(model, limits, options)
    contract = compiler.contract(target)
    graphs = {
        name: Graph(name, check(graph).SerializeToString(), *contract.graphs[name])
        for name, graph in compiler.graphs(target).items()
    }
    return contract, graphs


def crafted(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    domain: str = "",
) -> Graph:
    """Return a graph of these nodes."""

    def declared(spec: TensorSpec) -> Any:
        return helper.make_tensor_value_info(spec.name, ONNX_TYPES[spec.dtype], list(spec.axes))

    opsets = [helper.make_opsetid("", 24)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    graph = helper.make_graph(nodes, "crafted", list(map(declared, inputs)),
                              list(map(declared, outputs)))  # fmt: skip
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return Graph("crafted", model.SerializeToString(), inputs, outputs)


def addition(dtype: str = "float32", other: str | None = None) -> Graph:
    """Return the graph of [N, 4] + [N, 4], the second operand of a type of its own if given."""
    inputs = [TensorSpec("x", dtype, ("N", 4)), TensorSpec("y", other or dtype, ("N", 4))]
    nodes = [helper.make_node("Add", ["x", "y"], ["z"], name="sum")]
    return crafted(nodes, inputs, [TensorSpec("z", dtype, ("N", 4))])


def attention(dtype: str, mask: str, slots: int = 64) -> Graph:
    """Return a graph of ONNX Attention: four queries over a cache that TensorScatter updates."""
    past, new = ("N", 8, slots, 64), ("N", 8, 4, 64)
    inputs = [
        TensorSpec("query", dtype, new),
        TensorSpec("past_key", dtype, past),
        TensorSpec("past_value", dtype, past),
        TensorSpec("new_key", dtype, new),
        TensorSpec("new_value", dtype, new),
        TensorSpec("place", "int64", ("N",)),
        TensorSpec("mask", mask, ("N", 1, 4, slots)),
    ]
    outputs = [
        TensorSpec("context", dtype, new),
        TensorSpec("key", dtype, past),
        TensorSpec("value", dtype, past),
    ]
    nodes = [
        helper.make_node("TensorScatter", ["past_key", "new_key", "place"], ["key"], axis=2),
        helper.make_node("TensorScatter", ["past_value", "new_value", "place"], ["value"], axis=2),
        helper.make_node("Attention", ["query", "key", "value", "mask"], ["context"], name="att"),
    ]
    return crafted(nodes, inputs, outputs)
