"""Attention as sums: where the number of queries is constant, in FP32 inside, casts outside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import NodeProto
from support.graphs import Axes, assert_left_alone, assert_rewrites, build, node, operators

from translate_trt.export.passes.attention_sums import AttentionSums

QUERIES: Axes = ["N", 4, 3, 8]
INPUTS: dict[str, Axes] = {
    "q": QUERIES, "k": ["N", 4, "S", 8], "v": ["N", 4, "S", 8], "bias": ["N", 1, 3, "S"],
}  # fmt: skip
# Of each query; the weights are computed once.
SUMS = {"Mul": 6, "ReduceSum": 6, "Slice": 6, "Concat": 2, "Softmax": 1, "Add": 1}


def attention(
    inputs: dict[str, Axes] = INPUTS, dtype: str = "float", operands: str = "q k v bias",
    more: Sequence[NodeProto] = (), outputs: tuple[str, ...] = ("y",), **attributes: float,
) -> ir.Model:  # fmt: skip
    nodes = [node("Attention", operands, "y", **{"scale": 1.0, **attributes}), *more]
    return build(
        nodes, inputs, dict.fromkeys(outputs, [None] * 4), opset=23,
        types=dict.fromkeys((*inputs, *outputs), dtype),
    )  # fmt: skip


@pytest.mark.parametrize("bias", [["N", 1, 3, "S"], ["N", 4, 3, "S"], [3, "S"]])
def test_attention_becomes_sums(bias: Axes) -> None:
    model = attention({**INPUTS, "bias": bias})
    left = assert_rewrites(AttentionSums(), model, 1)
    assert {name: left[name] for name in SUMS} == SUMS
    assert "Attention" not in left


def test_many_queries_have_one_sum() -> None:
    inputs: dict[str, Axes] = {**INPUTS, "q": ["N", 4, 9, 8], "bias": ["N", 1, 9, "S"]}
    left = assert_rewrites(AttentionSums(), attention(inputs), 1)
    assert (left["ReduceSum"], left["Slice"]) == (2, 0)


def test_keys_and_values_of_different_sizes() -> None:
    model = attention({**INPUTS, "v": ["N", 4, "S", 6]})
    assert_rewrites(AttentionSums(), model, 1)


def test_16_bits_are_summed_in_fp32() -> None:
    # Scores of 8 features beyond 65,504, whose weights are those of their differences.
    model = attention(dtype="half")
    n, heads, t, d = 2, 4, 3, 8
    large = np.full((n, heads, 7, d), 120.0, np.float16)
    large[:, :, 0, 0] = 121.0
    given = {"q": np.full((n, heads, t, d), 100.0, np.float16), "k": large}
    assert AttentionSums().run(model).matches == 1
    assert operators(model)["Cast"] == 6  # queries, keys, bias, weights, values and the result
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    values = np.arange(n * heads * 7 * d, dtype=np.float16).reshape(n, heads, 7, d) / 64
    bias = np.zeros((n, 1, t, 7), np.float16)
    (result,) = session.run(None, {**given, "v": values, "bias": bias})
    np.testing.assert_array_equal(result, np.broadcast_to(values[:, :, :1], result.shape))


def test_several_attentions_share_their_constants() -> None:
    again = node("Attention", "y k v bias", "z", scale=1.0)
    model = attention(more=[again], outputs=("y", "z"))
    assert_rewrites(AttentionSums(), model, 2)
    assert len(model.graph.initializers) == 5  # axes and queries, from 0 to 4


def test_weights_that_are_an_output() -> None:
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), node("MatMul", "q kt", "s"),
        node("Add", "s bias", "biased"), node("Softmax", "biased", "w", axis=-1),
        node("MatMul", "w v", "y"),
    ]  # fmt: skip
    model = build(nodes, INPUTS, {"y": [None] * 4, "w": [None] * 4}, opset=23)
    left = assert_rewrites(AttentionSums(), model, 2)
    assert "MatMul" not in left


def test_a_dynamic_number_of_queries_is_no_match() -> None:
    bias: Axes = ["N", 1, "T", "S"]
    model = attention({**INPUTS, "q": ["N", 4, "T", 8], "bias": bias})
    assert_left_alone(AttentionSums(), model)


def test_three_axes_are_refused() -> None:
    inputs: dict[str, Axes] = {
        "q": ["N", 3, 8], "k": ["N", "S", 8], "v": ["N", "S", 8], "bias": [3, "S"],
    }  # fmt: skip
    one = node("Attention", "q k v bias", "y", scale=1.0, q_num_heads=2, kv_num_heads=2)
    model = build([one], inputs, {"y": [None] * 3}, opset=23)
    reason = "queries, keys and values are not known to be [N, H, T, D]"
    assert_left_alone(AttentionSums(), model, reason)


def test_other_attentions_are_left_alone() -> None:
    assert_left_alone(AttentionSums(), attention(scale=0.5))
    assert_left_alone(AttentionSums(), attention(operands="q k v"))
    weights = {"w": np.ones((8, 8), np.float32)}
    model = build([node("MatMul", "q w", "y")], {"q": QUERIES}, {"y": QUERIES}, weights, opset=23)
    assert_left_alone(AttentionSums(), model)
    assert operators(model) == {"MatMul": 1}
