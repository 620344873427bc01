"""Residual and LayerNorm in one: after a sub-layer, before one, and sums that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import Axes, assert_left_alone, assert_rewrites, build, node, weights

from translate_trt.export.passes.residual_norm import FuseResidualNorm

SIZE = 8
ROWS: Axes = ["N", "T", SIZE]
FUSED = "SkipLayerNormalization"


def residual(
    *more: NodeProto, first: list[NodeProto] | None = None, total: str = "x z",
    outputs: tuple[str, ...] = ("y",), x: Axes = ROWS, z: Axes = ROWS, infer: bool = True,
    **attributes: Any,
) -> ir.Model:  # fmt: skip
    nodes = [
        *(first or []),
        node("Add", total, "total"),
        node("LayerNormalization", "total scale shift", "y", **{"axis": -1, "epsilon": 1e-5,
                                                               **attributes}),
        *more,
    ]  # fmt: skip
    constants = {"scale": weights(SIZE), "shift": weights(SIZE, seed=1), "b": weights(SIZE, seed=2)}
    rank = max(len(x), len(z))
    outs: dict[str, Axes] = {name: [None] * rank for name in outputs}
    return build(nodes, {"x": x, "z": z}, outs, constants, infer=infer)


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("total", ["x z", "z x"])
def test_after_a_sub_layer(axis: int, total: str) -> None:
    model = residual(total=total, axis=axis, epsilon=1e-3)
    assert assert_rewrites(FuseResidualNorm(), model, 1) == {FUSED: 1}


def test_rows_of_two_axes() -> None:
    model = residual(x=["N", SIZE], z=["N", SIZE])
    assert assert_rewrites(FuseResidualNorm(), model, 1) == {FUSED: 1}


@pytest.mark.parametrize("total", ["x biased", "biased x"])
@pytest.mark.parametrize("operands", ["z b", "b z"])
def test_a_bias_goes_in(total: str, operands: str) -> None:
    model = residual(first=[node("Add", operands, "biased")], total=total)
    assert assert_rewrites(FuseResidualNorm(), model, 1) == {FUSED: 1}


def test_a_bias_that_others_read_stays() -> None:
    model = residual(
        node("Relu", "biased", "r"), first=[node("Add", "z b", "biased")], total="x biased",
        outputs=("y", "r"),
    )  # fmt: skip
    left = assert_rewrites(FuseResidualNorm(), model, 1)
    assert left == {FUSED: 1, "Add": 1, "Relu": 1}


def test_before_a_sub_layer_the_sum_goes_on() -> None:
    model = residual(
        node("Relu", "y", "sub"), node("Add", "total sub", "next"),
        node("LayerNormalization", "next scale shift", "last", axis=-1, epsilon=1e-5),
        outputs=("last",),
    )  # fmt: skip
    left = assert_rewrites(FuseResidualNorm(), model, 2)
    assert left == {FUSED: 2, "Relu": 1}
    first = next(n for n in model.graph if n.op_type == FUSED)
    assert len(first.outputs) == 4
    assert first.outputs[3].dtype == ir.DataType.FLOAT
    assert first.outputs[3].shape == ir.Shape(ROWS)


def test_a_sum_that_is_an_output() -> None:
    model = residual(outputs=("y", "total"))
    assert assert_rewrites(FuseResidualNorm(), model, 1)[FUSED] == 1


@pytest.mark.parametrize("z", [["T", SIZE], [1, "T", SIZE], ["N", 1, SIZE], ["N", "T", 1]])
def test_a_sum_that_broadcasts(z: Axes) -> None:
    reason = "what is added differs in size (positions, say)"
    assert_left_alone(FuseResidualNorm(), residual(z=z), reason)


def test_sizes_that_are_not_known() -> None:
    reason = "y: the sizes of what is added are not known"
    model = residual(first=[node("Relu", "z", "r")], total="x r", infer=False)
    assert FuseResidualNorm().run(model).refused == (reason,)
    unnamed: Axes = ["N", None, SIZE]
    model = residual()
    for value in model.graph.inputs:  # one could be 1 and the other not
        value.shape = ir.Shape(unnamed)
    outcome = FuseResidualNorm().run(model)
    assert (outcome.matches, outcome.refused) == (0, (reason,))


def test_a_norm_over_two_axes() -> None:
    shape: Axes = ["N", 5, SIZE]
    nodes = [
        node("Add", "x z", "total"),
        node("LayerNormalization", "total scale shift", "y", axis=1, epsilon=1e-5),
    ]
    constants = {"scale": weights(5, SIZE), "shift": np.zeros((5, SIZE), np.float32)}
    model = build(nodes, {"x": shape, "z": shape}, {"y": [None] * 3}, constants)
    assert_left_alone(FuseResidualNorm(), model, "the norm is over more than the last axis")


def test_four_axes_are_more_than_the_operator_takes() -> None:
    shape: Axes = ["N", 2, "T", SIZE]
    reason = "ONNX Runtime's operator takes two axes or three"
    assert_left_alone(FuseResidualNorm(), residual(x=shape, z=shape), reason)
