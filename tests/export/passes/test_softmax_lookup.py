"""Lookups in a softmax: matches, near misses, a second run, and extreme logits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import Axes, assert_left_alone, assert_rewrites, build, node, run

from translate_trt.export.passes.softmax_lookup import SoftmaxLookup

INPUTS: dict[str, Axes] = {"x": ["N", "K", "V"], "ids": ["N", "K", 2]}
SOFTMAX = node("Softmax", "x", "table", axis=-1)
LOOK_UP = node("GatherElements", "table ids", "found", axis=-1)
IDS = np.random.default_rng(0).integers(0, 2, (2, 3, 2))


def model(*nodes: NodeProto, outputs: tuple[str, ...] = ("found",)) -> ir.Model:
    return build(nodes, INPUTS, {name: [None] * 3 for name in outputs}, types={"ids": "int"})


@pytest.mark.parametrize("axis", [-1, 2])
def test_the_table_is_not_computed(axis: int) -> None:
    given = model(
        node("Softmax", "x", "table", axis=axis),
        node("GatherElements", "table ids", "found", axis=axis),
    )
    left = assert_rewrites(SoftmaxLookup(), given, 1, given={"ids": IDS})
    assert left["Softmax"] == 0
    assert left["ReduceSum"] == 1


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        ([SOFTMAX, LOOK_UP], ("found", "table"), None),  # the table is needed
        ([SOFTMAX, LOOK_UP, node("Neg", "table", "other")], ("found", "other"), None),
        ([node("Softmax", "x", "table", axis=1), LOOK_UP], ("found",), "its axis is not known"),
        (
            [SOFTMAX, node("GatherElements", "table ids", "found", axis=0)],
            ("found",),
            "its axis is not known",
        ),
    ],
    ids=["output", "other reader", "softmax of another axis", "lookup in another axis"],
)
def test_near_misses_are_left_alone(
    nodes: list[NodeProto], outputs: tuple[str, ...], reason: str | None
) -> None:
    given = model(*nodes, outputs=outputs)
    reasons = () if reason is None else (reason,)
    assert_left_alone(SoftmaxLookup(), given, *reasons, given={"ids": IDS})


@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("hidden", [0, 7, 10])
def test_extreme_logits(magnitude: float, hidden: int) -> None:
    random = np.random.default_rng(hidden)
    x = (random.standard_normal((2, 3, 11)) * magnitude).astype(np.float32)
    x[..., :hidden] = -np.inf
    ids = random.integers(0, 11, (2, 3, 2))
    given = model(SOFTMAX, LOOK_UP)
    SoftmaxLookup().run(given)
    shifted = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    right = np.take_along_axis(shifted / shifted.sum(-1, keepdims=True), ids, -1)
    found = run(given, {"x": x, "ids": ids})["found"]
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-7)
