"""Fusion of the three attentions of a Transformer for ONNX Runtime, and near misses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import Axes, assert_left_alone, assert_rewrites, build, feeds, node, run, slots

from translate_trt.export.passes.multi_head import FuseMultiHeadAttention
from translate_trt.runtime.bundle.contract import MASKED

HEADS, SIZE = 4, 8
SPLIT = {"heads": np.array([0, 0, HEADS, SIZE]), "joined": np.array([0, 0, HEADS * SIZE])}
FLAT: Axes = ["N", "T", HEADS * SIZE]


def split(name: str) -> list[NodeProto]:
    return [
        node("Reshape", f"{name} heads", f"{name}_split"),
        node("Transpose", f"{name}_split", f"{name}_heads", perm=[0, 2, 1, 3]),
    ]


def attend(keys: str, values: str, join: str = "joined") -> list[NodeProto]:
    return [
        node("MatMul", f"q_heads {keys}", "s"),
        node("Add", "s bias", "biased"),
        node("Softmax", "biased", "w", axis=-1),
        node("MatMul", f"w {values}", "context"),
        node("Transpose", "context", "turned", perm=[0, 2, 1, 3]),
        node("Reshape", f"turned {join}", "y"),
    ]


def encoder(*more: NodeProto, outputs: tuple[str, ...] = ("y",), **changes: Axes) -> ir.Model:
    nodes = [
        *split("q"), *split("v"), node("Reshape", "k heads", "k_split"),
        node("Transpose", "k_split", "kt", perm=[0, 2, 3, 1]), *attend("kt", "v_heads"), *more,
    ]  # fmt: skip
    inputs = {"q": FLAT, "k": FLAT, "v": FLAT, "bias": ["N", 1, 1, "T"], **changes}
    return build(
        nodes, inputs, {name: [None] * (3 if name == "y" else 4) for name in outputs}, SPLIT
    )


def cached(
    *more: NodeProto, outputs: tuple[str, ...] = ("y", "ks", "vs"), value_size: int = SIZE
) -> ir.Model:
    """Build an attention over caches that keys and values are written into."""
    constants = {
        **SPLIT, "value_heads": np.array([0, 0, HEADS, value_size]),
        "joined": np.array([0, 0, HEADS * value_size]), "places": slots(HEADS),
    }  # fmt: skip
    shapes: dict[str, Axes] = {
        "y": ["N", "K", HEADS * value_size], "ks": ["N", HEADS, "P", SIZE],
        "vs": ["N", HEADS, "P", value_size], "w": ["N", HEADS, "K", "P"],
        "z": ["N", HEADS, "K", "P"],
    }  # fmt: skip
    inputs: dict[str, Axes] = {
        "q": ["N", "K", HEADS * SIZE], "k": ["N", "K", HEADS * SIZE],
        "v": ["N", "K", HEADS * value_size], "pk": shapes["ks"], "pv": shapes["vs"],
        "bias": ["N", 1, "K", "P"],
    }  # fmt: skip
    nodes = [
        *split("q"), *split("k"),
        node("Reshape", "v value_heads", "v_split"),
        node("Transpose", "v_split", "v_heads", perm=[0, 2, 1, 3]),
        node("ScatterND", "pk places k_heads", "ks"), node("ScatterND", "pv places v_heads", "vs"),
        node("Transpose", "ks", "kt", perm=[0, 1, 3, 2]), *attend("kt", "vs"), *more,
    ]  # fmt: skip
    return build(nodes, inputs, {name: shapes[name] for name in outputs}, constants)


def cross(value_size: int = SIZE, rank: int = 3, outputs: tuple[str, ...] = ("y",)) -> ir.Model:
    inputs: dict[str, Axes] = {
        "q": FLAT, "k": ["N", HEADS, "S", SIZE], "v": ["N", HEADS, "S", value_size],
        "bias": ["N", 1, 1, "S"],
    }  # fmt: skip
    nodes = [
        *split("q"), node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), *attend("kt", "v", "rows"),
    ]  # fmt: skip
    rows = [0, 0, HEADS * value_size] if rank == 3 else [-1, HEADS * value_size]
    ranks = {"y": rank, "w": 4}
    return build(
        nodes, inputs, {name: [None] * ranks[name] for name in outputs},
        {**SPLIT, "rows": np.array(rows)},
    )  # fmt: skip


@pytest.mark.parametrize("bias", [["N", 1, 1, "T"], ["N", 1, "T", "T"]])
def test_self_attention_over_the_source(bias: Axes) -> None:
    left = assert_rewrites(FuseMultiHeadAttention(), encoder(bias=bias), 1)
    assert left["MultiHeadAttention"] == 1
    assert left.keys() <= {"MultiHeadAttention", "Expand", "Shape", "Concat"}


def test_cross_attention() -> None:
    left = assert_rewrites(FuseMultiHeadAttention(), cross(), 1)
    assert left["MultiHeadAttention"] == 1
    assert left["MatMul"] == left["Transpose"] == left["Reshape"] == 0


@pytest.mark.parametrize("outputs", [("y", "ks", "vs"), ("y",)])
def test_self_attention_over_caches(outputs: tuple[str, ...]) -> None:
    bias = np.random.default_rng(1).standard_normal((2, 1, 3, 9)).astype(np.float32)
    bias[:, :, :, 5] = MASKED
    model = cached(outputs=outputs)
    left = assert_rewrites(FuseMultiHeadAttention(), model, 1, given={"bias": bias})
    # New keys and values are still written; queries are no longer split.
    assert left == {"MultiHeadAttention": 1, "ScatterND": 2, "Reshape": 2, "Transpose": 2}


def test_what_is_hidden_in_a_cache_may_be_anything() -> None:
    bias = np.zeros((2, 1, 3, 9), np.float32)
    bias[:, :, :, 5] = MASKED
    model = cached(outputs=("y",))
    given = feeds(model, given={"bias": bias})
    FuseMultiHeadAttention().run(model)
    right = run(model, given)["y"]
    for name in ("pk", "pv"):
        given[name][:, :, 5] = 1e4
    np.testing.assert_array_equal(run(model, given)["y"], right)


MORE = node("Abs", "w", "z")


@pytest.mark.parametrize(
    "model",
    [
        encoder(outputs=("y", "w")), encoder(MORE, outputs=("y", "z")),
        cached(outputs=("y", "w")), cached(MORE, outputs=("y", "z")),
        cross(outputs=("y", "w")),
    ],
    ids=["encoder", "encoder, inside", "cached", "cached, inside", "cross"],
)  # fmt: skip
def test_what_computes_weights_that_are_read_elsewhere_stays(model: ir.Model) -> None:
    left = assert_rewrites(FuseMultiHeadAttention(), model, 1)
    # The matmul of weights and values is in the operator alone.
    assert (left["MultiHeadAttention"], left["Softmax"], left["MatMul"]) == (1, 1, 1)


def test_keys_and_values_of_different_sizes() -> None:
    reason = "the operator needs keys and values of equal size"
    assert_left_alone(FuseMultiHeadAttention(), cross(value_size=6), reason)
    assert_left_alone(FuseMultiHeadAttention(), cached(value_size=6), reason)


def test_heads_that_are_joined_otherwise() -> None:
    reason = "queries and joined heads are not known to be [N, T, H * D]"
    assert_left_alone(FuseMultiHeadAttention(), cross(rank=2), reason)


def test_a_number_of_heads_that_is_not_known() -> None:
    model = cross()
    for one in model.graph:
        if one.outputs[0].name == "q_heads":
            one.outputs[0].shape = None
    outcome = FuseMultiHeadAttention().run(model)
    assert outcome.matches == 0
    assert outcome.refused == ("y: the number of heads is not known",)


def test_keys_that_were_computed_and_not_just_split_are_taken_too() -> None:
    # If they have heads of their own: the cache is written, not an input.
    model = cross()
    key = next(v for v in model.graph.inputs if v.name == "k")
    absolute = ir.node("Abs", [key])
    absolute.outputs[0].name, absolute.outputs[0].type = "made", key.type
    absolute.outputs[0].shape = key.shape
    key.replace_all_uses_with(absolute.outputs[0])
    absolute.replace_input_with(0, key)
    model.graph.insert_before(model.graph[0], absolute)
    left = assert_rewrites(FuseMultiHeadAttention(), model, 1)
    assert left["Abs"] == left["MultiHeadAttention"] == 1


def test_heads_that_were_split_here_are_the_encoder_s_alone() -> None:
    # Keys [N, H, T, D] transposed twice match neither rule, and neither reports a refusal.
    nodes = [
        *split("q"), *split("k"), *split("v"),
        node("Transpose", "k_heads", "kt", perm=[0, 1, 3, 2]), *attend("kt", "v_heads"),
    ]  # fmt: skip
    inputs = {"q": FLAT, "k": FLAT, "v": FLAT, "bias": ["N", 1, 1, "T"]}
    assert_left_alone(FuseMultiHeadAttention(), build(nodes, inputs, {"y": [None] * 3}, SPLIT))
