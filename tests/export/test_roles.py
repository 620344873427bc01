"""Roles of tensors: set when graphs are traced, handed on by passes, removed before saving."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import onnx_ir as ir
import pytest

from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import model_contract
from translate_trt.export.passes.base import is_embedding
from translate_trt.export.passes.pipeline import run_passes
from translate_trt.export.residual_stream import stream
from translate_trt.export.roles import EMBEDDING, RESIDUAL, has_role, remove_roles
from translate_trt.export.targets import DYNAMIC_OPSET, TARGETS
from translate_trt.export.trace import check
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.model import Transformer


def traced(checkpoint: Checkpoint, **changes: Any) -> dict[str, ir.Model]:
    config = dataclasses.replace(checkpoint.model, **changes)
    model, contract = Transformer(config).eval(), model_contract(config)
    return trace_graphs(model, Limits(48, 98), contract, DYNAMIC_OPSET)


def values(model: ir.Model) -> list[ir.Value]:
    return [
        *model.graph.initializers.values(),
        *(value for node in model.graph for value in node.outputs),
    ]


def named(model: ir.Model, role: str) -> set[str | None]:
    return {value.name for value in values(model) if has_role(value, role)}


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def test_embeddings_and_the_residual_stream_have_roles(checkpoint: Checkpoint) -> None:
    graphs, config = traced(checkpoint, norm="pre"), checkpoint.model
    assert named(graphs["encoder"], RESIDUAL) == set(stream(config, "encoder"))
    assert named(graphs["step"], RESIDUAL) == set(stream(config, "decoder"))
    for graph in graphs.values():
        assert named(graph, EMBEDDING) == {"model.embedding.weight"}


@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8", "onnx-fp16"])
def test_passes_hand_roles_on_and_no_file_has_them(target: str, checkpoint: Checkpoint) -> None:
    for model in traced(checkpoint, norm="pre").values():
        lookups = 0

        def count(name: str, model: ir.Model) -> None:
            nonlocal lookups
            if name == "fold-scales":  # which makes a table of its own in graphs for GPUs
                lookups = sum(is_embedding(n) for n in model.graph if n.op_type == "Gather")

        residual = named(model, RESIDUAL)
        run_passes(model, TARGETS[target].passes, after=count)
        assert lookups == 1
        assert {x.name for x in values(model) if x.name in residual} == named(model, RESIDUAL)
        assert b"translate_trt.role" not in check(model).SerializeToString()


def test_names_do_not_decide_on_a_fusion(checkpoint: Checkpoint) -> None:
    for role, model in traced(checkpoint, norm="pre").items():
        renamed, bare = model.clone(), model.clone()
        for number, value in enumerate(values(renamed)):
            if not value.is_graph_output():
                value.name = f"value_{number}"
        remove_roles(bare)
        for graph in (model, renamed, bare):
            run_passes(graph, TARGETS["onnx-int8"].passes)
        assert operators(renamed) == operators(model)
        assert operators(bare) != operators(model), role
