"""Rules that fuse graphs of GPU targets, and the bodies of their operators."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import (
    Axes,
    assert_close,
    assert_left_alone,
    assert_reasons,
    assert_rewrites,
    build,
    feeds,
    node,
    operators,
    run,
    weights,
    written,
)

from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.fused_ops.gpu import FuseGpuOps
from translate_trt.export.targets import STATIC_OPSET
from translate_trt.runtime.bundle.contract import MASKED

pytestmark = pytest.mark.slow

HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE
FP32, FP16 = int(ir.DataType.FLOAT), int(ir.DataType.FLOAT16)


def in_heads(part: str) -> list[NodeProto]:
    """Split a value [N, S, H * D] into heads [N, H, S, D]."""
    return [
        node("Reshape", f"{part} {part}_shape", f"{part}_tokens"),
        node("Transpose", f"{part}_tokens", f"{part}_heads", perm=[0, 2, 1, 3]),
    ]


# ---- self-attention ----


def attention(
    parts: str = "q k v", value: int = SIZE, mask: str = "source_bias", fp16: bool = True
) -> ir.Model:
    """Self-attention over the result of one matmul, with a clamped mask if that is in FP16."""
    sizes = {"q": SIZE, "k": SIZE, "v": value}
    clamped = [node("Max", f"{mask} lowest", "limited"), node("Cast", "limited", "m", to=FP16)]
    nodes = [
        node("Identity", "given", "source_bias"),
        *(clamped if fp16 else []),
        node("Cast", "x", "qkv", to=FP16 if fp16 else FP32),
        node("Split", "qkv splits", parts, axis=-1),
        *itertools.chain.from_iterable(map(in_heads, sizes)),
        node("Attention", f"q_heads k_heads v_heads {'m' if fp16 else mask}", "context", scale=1.0),
        node("Transpose", "context", "by_token", perm=[0, 2, 1, 3]),
        node("Reshape", "by_token joined", "joined_heads"),
        node("Cast", "joined_heads", "y", to=FP32),
    ]  # fmt: skip
    bias: Axes = ["N", 1, 1, "S"]
    return build(
        nodes,
        {"x": ["N", "S", HEADS * sum(sizes.values())], "given": bias, "other": bias},
        {"y": ["N", "S", HEADS * value], "source_bias": bias},
        {
            "splits": np.array([HEADS * size for size in sizes.values()]),
            "joined": np.array([0, 0, HEADS * value]),
            "lowest": np.array(-60000.0, np.float32),
            **{f"{part}_shape": np.array([0, 0, HEADS, size]) for part, size in sizes.items()},
        },
        STATIC_OPSET,
    )


@pytest.mark.parametrize("fp16", [True, False])
def test_self_attention(fp16: bool) -> None:
    model = attention(fp16=fp16)
    # By ONNX's reference, since ONNX Runtime's Attention does not broadcast a mask over queries.
    visible = np.where(np.arange(7) < np.array([[4], [7]]), 0, MASKED)
    inputs = feeds(model, given={"given": visible[:, None, None].astype(np.float32)})
    right = run(model, inputs, by_onnx=True)
    assert FuseGpuOps().run(model).matches == 1
    assert operators(model) == {"Identity": 1, "Cast": 2, "GpuSelfAttention": 1}
    assert_close(run(model, inputs, by_onnx=True), right, "float16" if fp16 else "float32")
    once = written(model)
    assert FuseGpuOps().run(model).matches == 0
    assert written(model) == once


@pytest.mark.parametrize(
    ("model", "reason", "unavoidable"),
    [
        (attention("k q v"), "queries, keys and values are not the outputs of one matmul", 0),
        (attention(mask="other"), "the mask is not that of the source", 0),
        (attention(value=4), "keys and values have different sizes", 1),
    ],
)
def test_other_attention_is_left_alone(model: ir.Model, reason: str, unavoidable: int) -> None:
    before = written(model)
    outcome = FuseGpuOps().run(model)
    assert_reasons(outcome, [reason])
    assert (outcome.matches, outcome.unavoidable) == (0, unavoidable)
    assert written(model) == before


# ---- attention over caches ----


def cached_attention(
    beams: int = 2, most: int = 3, query: str = "positions", ancestry: str = "ancestry",
    slots: str = "slots",
) -> ir.Model:  # fmt: skip
    """A step's attention over static caches, with biases of distances to the tokens there."""
    nodes = [
        node("Split", "qkv splits", "q k v", axis=-1),
        *itertools.chain.from_iterable(map(in_heads, "qkv")),
        node("TensorScatter", "keys k_heads at", "new_keys", axis=2),
        node("TensorScatter", "values v_heads at", "new_values", axis=2),
        node("Slice", "new_keys zero limit two", "seen_keys"),
        node("Slice", "new_values zero limit two", "seen_values"),
        node("Where", f"own none {ancestry}", "extended"),
        node("Unsqueeze", "extended one", "mask"),
        node("Range", "first last step", "slots"),
        node("Neg", "slots", "others"),
        node("Mod", f"{slots} beams", "rest"),
        node("Sub", f"{slots} rest", "whole"),
        node("Div", "whole beams", "of_slots"),
        node("Unsqueeze", f"{query} one", "queries"),
        node("Sub", "queries of_slots", "distance"),
        node("Clip", "distance first most", "rows"),
        node("Gather", "table rows", "found", axis=0),
        node("Transpose", "found", "by_head", perm=[0, 2, 1]),
        node("Unsqueeze", "by_head two", "biases"),
        node("Add", "mask biases", "bias"),
        node("Attention", "q_heads seen_keys seen_values bias", "context", scale=1.0),
        node("Transpose", "context", "by_token", perm=[0, 2, 1, 3]),
        node("Reshape", "by_token joined", "y"),
    ]
    cache: Axes = ["N", HEADS, "P", SIZE]
    return build(
        nodes,
        {
            "qkv": ["N", 2, 3 * WIDTH], "keys": cache, "values": cache, "at": ["N"], "limit": [1],
            "ancestry": ["N", 2, "P"], "other": ["N", 2, "P"], "own": ["N", 2, "P"], "done": ["N"],
            "positions": ["N"], "last": [],
        },
        {"y": ["N", 2, WIDTH], "new_keys": cache, "new_values": cache},
        {
            "splits": np.array([WIDTH] * 3),
            **{f"{part}_shape": np.array([0, 0, HEADS, SIZE]) for part in "qkv"},
            "joined": np.array([0, 0, WIDTH]), "none": np.array(0, np.float32),
            "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
            "first": np.array(0), "step": np.array(1), "beams": np.array(beams),
            "most": np.array(most), "table": weights(4, HEADS),
        },
        STATIC_OPSET,
        {"own": "bool", "done": "bool"}
        | dict.fromkeys(("at", "limit", "positions", "last"), "int"),
        known={"y": ["N", 2, WIDTH]},
    )  # fmt: skip


def test_attention_over_caches_by_distance() -> None:
    model = cached_attention()
    assert FuseGpuOps().run(model).matches == 1
    assert operators(model)["GpuRelativeCachedAttention"] == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"beams": 3}, "the scores have other biases"),
        ({"most": 2}, "the scores have other biases"),
        ({"query": "at"}, "the scores have other biases"),
        ({"slots": "others"}, "the scores have other biases"),
        ({"ancestry": "other"}, "the mask is not that of the ancestry"),
    ],
)
def test_other_distances_are_left_alone(changed: dict[str, Any], reason: str) -> None:
    model = cached_attention(**changed)
    assert_reasons(FuseGpuOps().run(model), [reason])
    assert operators(model)["Attention"] == 1


# ---- keys and values of decoder layers ----


def heads_of(matmuls: dict[str, list[int]], returned: int = 9) -> ir.Model:
    """Matmuls whose columns are heads of these sizes, of which the graph returns the first few."""
    nodes, constants, outputs = [], {}, {}
    for x, sizes in matmuls.items():
        constants[f"{x}_splits"] = np.array([HEADS * size for size in sizes])
        parts = [f"{x}_{index}" for index in range(len(sizes))]
        nodes.append(node("Split", f"{x} {x}_splits", " ".join(parts), axis=-1))
        for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            constants[f"{part}_shape"] = np.array([0, 0, HEADS, size])
            nodes += in_heads(part)
            if index >= returned:
                nodes.append(node("Neg", f"{part}_heads", f"{part}_negative"))
            name = f"{part}_negative" if index >= returned else f"{part}_heads"
            outputs[name] = ["N", HEADS, "S", size]
    inputs = {x: ["N", "S", HEADS * sum(sizes)] for x, sizes in matmuls.items()}
    return build(nodes, inputs, outputs, constants, STATIC_OPSET)


def test_heads_of_all_layers_are_split_at_once() -> None:
    """Members of an ensemble may have different numbers of layers, and heads of different sizes."""
    model = heads_of({"x": [SIZE] * 4, "z": [SIZE + 2] * 6, "w": [SIZE - 4] * 4})
    assert assert_rewrites(FuseGpuOps(), model, 3) == {"GpuSplitHeads": 3}
    assert {*model.functions} == {(DOMAIN, "GpuSplitHeads", count) for count in ("4", "6")}


def test_other_heads_are_left_alone() -> None:
    some = "the encoder returns only some columns of a matmul as heads"
    assert_left_alone(FuseGpuOps(), heads_of({"x": [SIZE, SIZE]}, returned=1), some)
    sizes = "keys and values have different sizes"
    assert_left_alone(FuseGpuOps(), heads_of({"x": [SIZE, 4]}), sizes)


# ---- embedding ----


def embedded(fp16: bool = True) -> ir.Model:
    """Rows of a table in some type plus the positions of the source's tokens."""
    table = weights(4, WIDTH)
    nodes = [
        node("Shape", "tokens", "size", start=1, end=2),
        node("Slice", "positions first size axis step", "rows"),
        node("Gather", "table tokens", "found"),
        *([node("Cast", "found", "wide", to=FP32)] if fp16 else []),
        node("Add", "wide rows" if fp16 else "found rows", "y"),
        *([node("Cast", "y", "y16", to=FP16), node("Cast", "y16", "z", to=FP32)] if fp16 else []),
    ]
    axes: Axes = ["N", "S", WIDTH]
    return build(
        nodes,
        {"tokens": ["N", "S"]},
        {"y": axes, **({"z": axes} if fp16 else {})},
        {
            "table": table.astype(np.float16) if fp16 else table,
            "positions": weights(9, WIDTH), "first": np.array([0]),
            "axis": np.array([0]), "step": np.array([1]),
        },
        STATIC_OPSET,
        types={"tokens": "int"},
    )  # fmt: skip


def test_embedding_of_the_source() -> None:
    left = assert_rewrites(FuseGpuOps(), embedded(), 1)
    assert left == {"GpuEmbedSourceCast": 1, "Cast": 1}
    assert assert_rewrites(FuseGpuOps(), embedded(fp16=False), 1) == {"GpuEmbedSource": 1}
