"""ONNX Runtime's attention: the three kinds of a Transformer, and what resembles them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import Axes, assert_left_alone, assert_rewrites, build, node

from translate_trt.export.passes.multi_head import FuseMultiHeadAttention

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
    constants = {**SPLIT, "value_heads": np.array([0, 0, HEADS, value_size]),
                 "joined": np.array([0, 0, HEADS * value_size])}  # fmt: skip
    past: dict[str, Axes] = {
        "pk": ["N", HEADS, "P", SIZE], "pv": ["N", HEADS, "P", value_size],
        "bias": ["N", 1, "K", "P+K"],
    }  # fmt: skip
    new: dict[str, Axes] = {
        "q": ["N", "K", HEADS * SIZE], "k": ["N", "K", HEADS * SIZE],
        "v": ["N", "K", HEADS * value_size],
    }  # fmt: skip
    nodes = [
        *split("q"), *split("k"),
        node("Reshape", "v value_heads", "v_split"),
        node("Transpose", "v_split", "v_heads", perm=[0, 2, 1, 3]),
        node("Concat", "pk k_heads", "ks", axis=2), node("Concat", "pv v_heads", "vs", axis=2),
        node("Transpose", "ks", "kt", perm=[0, 1, 3, 2]), *attend("kt", "vs"), *more,
    ]  # fmt: skip
    shapes: dict[str, Axes] = {
        "y": ["N", "K", HEADS * value_size], "ks": ["N", HEADS, "P+K", SIZE],
        "vs": ["N", HEADS, "P+K", value_size], "w": ["N", HEADS, "K", "P+K"],
    }  # fmt: skip
    return build(nodes, {**new, **past}, {name: shapes[name] for name in outputs}, constants)


def cross(value_size: int = SIZE, rank: int = 3) -> ir.Model:
    inputs: dict[str, Axes] = {
        "q": FLAT, "k": ["N", HEADS, "S", SIZE], "v": ["N", HEADS, "S", value_size],
        "bias": ["N", 1, 1, "S"],
    }  # fmt: skip
    nodes = [
        *split("q"), node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), *attend("kt", "v", "rows"),
    ]  # fmt: skip
    rows = [0, 0, HEADS * value_size] if rank == 3 else [-1, HEADS * value_size]
    return build(nodes, inputs, {"y": [None] * rank}, {**SPLIT, "rows": np.array(rows)})


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
def test_self_attention_that_appends_to_its_caches(outputs: tuple[str, ...]) -> None:
    bias = np.random.default_rng(1).standard_normal((2, 1, 3, 9)).astype(np.float32)
    model = cached(outputs=outputs)
    left = assert_rewrites(FuseMultiHeadAttention(), model, 1, given={"bias": bias})
    assert left == {"MultiHeadAttention": 1}


@pytest.mark.parametrize("made", ["encoder", "cached"])
def test_weights_that_are_read_elsewhere(made: str) -> None:
    reason = "the attention weights are read elsewhere"
    if made == "encoder":
        assert_left_alone(FuseMultiHeadAttention(), encoder(outputs=("y", "w")), reason)
        more = node("Abs", "w", "z")
        assert_left_alone(FuseMultiHeadAttention(), encoder(more, outputs=("y", "z")), reason)
    else:
        bias = {"bias": np.zeros((2, 1, 3, 9), np.float32)}
        model = cached(outputs=("y", "w"))
        assert_left_alone(FuseMultiHeadAttention(), model, reason, given=bias)


def test_keys_and_values_of_different_sizes() -> None:
    reason = "the operator wants keys and values of one size"
    assert_left_alone(FuseMultiHeadAttention(), cross(value_size=6), reason)
    bias = {"bias": np.zeros((2, 1, 3, 9), np.float32)}
    assert_left_alone(FuseMultiHeadAttention(), cached(value_size=6), reason, given=bias)


def test_heads_that_are_joined_otherwise() -> None:
    reason = "queries and what is joined are not known to be [N, T, H * D]"
    assert_left_alone(FuseMultiHeadAttention(), cross(rank=2), reason)


def test_a_number_of_heads_that_is_not_known() -> None:
    model = cross()
    for one in model.graph:
        if one.outputs[0].name == "q_heads":
            one.outputs[0].shape = None
    outcome = FuseMultiHeadAttention().run(model)
    assert outcome.matches == 0
    assert outcome.refused == ("y: the number of heads is not known",)


def test_keys_that_were_computed_are_not_a_cross_attention() -> None:
    model = cross()
    key = next(v for v in model.graph.inputs if v.name == "k")
    absolute = ir.node("Abs", [key])
    absolute.outputs[0].name, absolute.outputs[0].type = "made", key.type
    absolute.outputs[0].shape = key.shape
    key.replace_all_uses_with(absolute.outputs[0])
    absolute.replace_input_with(0, key)
    model.graph.insert_before(model.graph[0], absolute)
    assert_left_alone(FuseMultiHeadAttention(), model)
