"""Fusion of attention into one operator, if the opset has it, and of transpositions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import Axes, assert_left_alone, assert_rewrites, build, node, operators

from translate_trt.export.passes.attention import FuseAttention, FuseTransposes

INPUTS: dict[str, Axes] = {
    "q": ["N", 4, "T", 8], "k": ["N", 4, "S", 8], "v": ["N", 4, "S", 8], "bias": ["N", 1, 1, "S"],
}  # fmt: skip
OUT: Axes = [None] * 4


def attention(
    *more: NodeProto, opset: int = 23, outputs: tuple[str, ...] = ("y",), operands: str = "s bias",
    inputs: dict[str, Axes] = INPUTS, perm: Sequence[int] = (0, 1, 3, 2), axis: int = -1,
) -> ir.Model:  # fmt: skip
    nodes = [
        node("Transpose", "k", "kt", perm=perm),
        node("MatMul", "q kt", "s"),
        node("Add", operands, "biased"),
        node("Softmax", "biased", "w", axis=axis),
        node("MatMul", "w v", "y"),
        *more,
    ]
    return build(nodes, inputs, dict.fromkeys(outputs, [None] * len(perm)), opset=opset)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("operands", ["s bias", "bias s"])
@pytest.mark.parametrize("bias", [["N", 1, 1, "S"], ["N", 1, "T", "S"], ["T", "S"]])
def test_attention_becomes_one_operator(opset: int, operands: str, bias: Axes) -> None:
    model = attention(opset=opset, operands=operands, inputs={**INPUTS, "bias": bias})
    left = assert_rewrites(FuseAttention(), model, 1, by_onnx=True)
    assert left == {"Attention": 1, "Transpose": 2}
    assert FuseTransposes().run(model).matches == 1
    assert operators(model) == {"Attention": 1, "Identity": 1}


def test_keys_that_others_read_transposed() -> None:
    model = attention(node("Abs", "kt", "z"), outputs=("y", "z"))
    left = assert_rewrites(FuseAttention(), model, 1, by_onnx=True)
    assert left == {"Attention": 1, "Transpose": 2, "Abs": 1}


def test_an_old_opset_is_refused() -> None:
    assert_left_alone(
        FuseAttention(), attention(opset=20), "the operator needs opset 23, the graph has 20"
    )


@pytest.mark.parametrize(
    ("more", "outputs"),
    [([node("ReduceMean", "w", "z", keepdims=0)], ("y", "z")), ([], ("y", "w"))],
)
def test_weights_that_are_read_elsewhere(more: list[NodeProto], outputs: tuple[str, ...]) -> None:
    model = attention(*more, outputs=outputs)
    if more:
        model.graph.outputs[1].shape = ir.Shape([])
    assert_left_alone(FuseAttention(), model, "the attention weights are read elsewhere")


def test_three_axes_are_refused() -> None:
    inputs: dict[str, Axes] = {
        "q": ["N", "T", 8], "k": ["N", "S", 8], "v": ["N", "S", 8], "bias": ["N", 1, "S"],
    }  # fmt: skip
    reason = "queries, keys and values are not known to be [N, H, T, D]"
    assert_left_alone(FuseAttention(), attention(inputs=inputs, perm=[0, 2, 1]), reason)


def test_softmax_over_another_axis_is_no_attention() -> None:
    assert_left_alone(FuseAttention(), attention(axis=1))


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [([0, 2, 1, 3], [0, 2, 1, 3], {"Identity": 1}), ([0, 2, 1, 3], [0, 1, 3, 2], {"Transpose": 1}),
     ([1, 2, 3, 0], [1, 2, 3, 0], {"Transpose": 1}), ([3, 0, 1, 2], [1, 2, 3, 0], {"Identity": 1})],
)  # fmt: skip
def test_two_transpositions_become_one_or_none(
    first: list[int], second: list[int], left: dict[str, int]
) -> None:
    nodes = [
        node("Transpose", "q", "once", perm=first),
        node("Transpose", "once", "y", perm=second),
    ]
    model = build(nodes, {"q": INPUTS["q"]}, {"y": OUT})
    assert dict(assert_rewrites(FuseTransposes(), model, 1)) == left


def test_three_transpositions_in_a_row() -> None:
    nodes = [
        node("Transpose", "q", "a", perm=[0, 2, 1, 3]),
        node("Transpose", "a", "b", perm=[0, 1, 3, 2]),
        node("Transpose", "b", "y", perm=[3, 2, 1, 0]),
    ]
    model = build(nodes, {"q": INPUTS["q"]}, {"y": OUT})
    assert assert_rewrites(FuseTransposes(), model, 2) == {"Transpose": 1}


def test_a_transposition_that_is_read_in_between_stays_for_its_reader() -> None:
    nodes = [
        node("Transpose", "q", "once", perm=[0, 2, 1, 3]),
        node("Transpose", "once", "y", perm=[0, 2, 1, 3]),
    ]
    model = build(nodes, {"q": INPUTS["q"]}, {"y": OUT, "once": OUT})
    assert assert_rewrites(FuseTransposes(), model, 1) == {"Transpose": 1, "Identity": 1}
