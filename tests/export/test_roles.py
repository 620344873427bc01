"""Roles of tensors: set when graphs are traced, handed on by passes, removed before saving."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import onnx_ir as ir
import pytest
from support.models import SHAPES

from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.passes.base import constant, is_embedding
from translate_trt.export.passes.expectations import ModelShape
from translate_trt.export.passes.pipeline import run_passes
from translate_trt.export.roles import (
    EMBEDDING,
    RESIDUAL,
    copy_input_magnitude,
    has_role,
    input_magnitude,
    remove_roles,
    set_input_magnitudes,
)
from translate_trt.export.taps import stream
from translate_trt.export.targets import DYNAMIC_OPSET, TARGETS
from translate_trt.export.trace import check
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.activation_scales import matmul_weights
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.model import Transformer

pytestmark = pytest.mark.slow


def traced(checkpoint: Checkpoint, **changes: Any) -> dict[str, ir.Model]:
    config = dataclasses.replace(checkpoint.model, **changes)
    model, contract = Transformer(config).eval(), ensemble_contract([config])
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


# ---- input magnitudes ----


def test_the_largest_magnitude_of_merged_matrices() -> None:
    matrices = [ir.Value(name=name) for name in ("a", "b", "c")]
    graph = ir.Graph([], [], nodes=[], initializers=[])
    merged, partial = ir.Value(name="merged"), ir.Value(name="partial")
    for value in matrices[:2]:
        value.const_value = ir.tensor([1.0], name=value.name)
        graph.register_initializer(value)
    set_input_magnitudes(ir.Model(graph, ir_version=10), {"a": 1.25, "b": 0.1, "other": 3.0})
    copy_input_magnitude(matrices[:2], merged)
    copy_input_magnitude(matrices, partial)
    assert [input_magnitude(value) for value in (*matrices, merged, partial, None)] == [
        1.25, 0.1, None, 1.25, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [
        "post", "ssru, pre-norm, tied layers",
        *(
            pytest.param(shape, marks=pytest.mark.nightly)
            for shape in ("marian", "gelu, untied", "ssru", "pre-norm, tied layers")
        ),
    ],
)  # fmt: skip
def test_every_matmul_has_its_recorded_scale(shape: str, checkpoint: Checkpoint) -> None:
    """No pass loses a scale, and no expected match is missing, whatever the model's shape."""
    config = dataclasses.replace(checkpoint.model, **SHAPES[shape])
    model, contract = Transformer(config).eval(), ensemble_contract([config])
    names = list(matmul_weights(model))
    magnitudes = {name: 1 + index / len(names) for index, name in enumerate(names)}
    graphs = trace_graphs(model, Limits(48, 98), contract, DYNAMIC_OPSET, None, magnitudes)
    counts = {"encoder": config.encoder_layers, "decoder": config.distinct_decoder_layers}

    def largest(stack: str, *parts: str) -> list[float]:
        return [
            max(magnitudes[f"{stack}.{layer}.{part}"] for part in parts)
            for layer in range(counts[stack])
        ]

    merged = tuple(f"self_attention.{part}" for part in ("query", "key", "value"))
    feed_forward = [("feed_forward.inner",), ("feed_forward.outer",)]
    of_encoder = [merged, ("self_attention.output",), *feed_forward]
    of_step = [("cross_attention.query",), ("cross_attention.output",), *feed_forward]
    if config.is_recurrent:
        of_step.append(("ssru.forget", "ssru.input"))
    else:
        of_step += [merged, ("self_attention.output",)]
    memory = max(largest("decoder", "cross_attention.key", "cross_attention.value"))
    expected = {
        "encoder": [*(x for parts in of_encoder for x in largest("encoder", *parts)), memory],
        "step": [magnitudes["projection"]],
    }
    for parts in of_step:
        of_layers = largest("decoder", *parts)
        expected["step"] += [of_layers[index] for index in config.decoder_weights]
    for role, graph in graphs.items():
        passes = TARGETS["onnx-int8"].passes
        reports, _ = run_passes(graph, passes, shapes=[ModelShape.of(config, contract)])
        (refused,) = (one.refused for one in reports if one.name == "fuse-ops")
        assert sum("a recorded scale" in reason for reason in refused) == len(expected[role])
        nodes = [node for node in graph.graph if node.op_type == "MatMulIntegerToFloat"]
        scales = [constant(node.inputs[2]) for node in nodes]
        found = sorted(127 * float(scale) for scale in scales if scale is not None)
        assert found == pytest.approx(sorted(expected[role]), rel=1e-6)
        assert not {node.op_type for node in graph.graph} & {"MatMulInteger", "Candidates8"}
        assert not any(node.op_type.startswith("Linear8") for node in graph.graph)
        assert b"input_magnitude" not in check(graph).SerializeToString()


def test_other_precisions_ignore_recorded_scales(checkpoint: Checkpoint) -> None:
    config, limits = checkpoint.model, Limits(48, 98)
    model, contract = Transformer(config).eval(), ensemble_contract([config])
    magnitudes = dict.fromkeys(matmul_weights(model), 2.0)
    plain = trace_graphs(model, limits, contract, DYNAMIC_OPSET)
    recorded = trace_graphs(model, limits, contract, DYNAMIC_OPSET, None, magnitudes)
    for target in ("onnx-fp32", "onnx-fp16"):
        for role in plain:
            pair = [graphs[role].clone() for graphs in (plain, recorded)]
            for graph in pair:
                run_passes(graph, TARGETS[target].passes)
            first, second = (check(graph).SerializeToString() for graph in pair)
            assert first == second
