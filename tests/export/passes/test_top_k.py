"""Top-k before log-softmax: matches, near misses, and extreme logits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import Array, Axes, assert_left_alone, assert_rewrites, build, feeds, node, run

from translate_trt.export.passes.top_k import TopKFirst

INPUTS: dict[str, Axes] = {"x": ["N", "K", "V"], "ids": ["N", "K", 2]}
LOG_SOFTMAX = node("LogSoftmax", "x", "all", axis=-1)
TOP = node("TopK", "all k", "best chosen", axis=-1)
LOOK_UP = node("GatherElements", "all ids", "found", axis=-1)


def model(
    nodes: list[NodeProto], k: int = 4, outputs: tuple[str, ...] = ("best", "chosen")
) -> ir.Model:
    return build(
        nodes, INPUTS, {name: [None] * 3 for name in outputs}, {"k": np.array([k])},
        types={"ids": "int", "chosen": "int"},
    )  # fmt: skip


@pytest.mark.parametrize("k", [1, 4, 11])
def test_only_candidates_get_a_log_probability(k: int) -> None:
    left = assert_rewrites(TopKFirst(), model([LOG_SOFTMAX, TOP], k), 1)
    assert left["LogSoftmax"] == 0
    assert left["TopK"] == 1


def test_every_lookup_is_taken_from_the_logits_wherever_it_stands() -> None:
    nodes = [
        LOG_SOFTMAX,
        LOOK_UP,  # before the top-k that its sum will need
        TOP,
        node("GatherElements", "all chosen", "again", axis=2),
    ]
    given = model(nodes, outputs=("best", "chosen", "found", "again"))
    left = assert_rewrites(TopKFirst(), given, 1)
    assert left["LogSoftmax"] == 0
    assert left["GatherElements"] == 3  # and the largest's probability


def test_two_rows_of_log_probabilities() -> None:
    nodes = [
        LOG_SOFTMAX, TOP, node("Neg", "x", "other"),
        node("LogSoftmax", "other", "all2"), node("TopK", "all2 k", "best2 chosen2"),
    ]  # fmt: skip
    given = model(nodes, outputs=("best", "chosen", "best2"))
    assert assert_rewrites(TopKFirst(), given, 2)["LogSoftmax"] == 0


@pytest.mark.parametrize(
    ("nodes", "outputs", "reason"),
    [
        ([node("LogSoftmax", "x", "all", axis=1), TOP], ("best",), "its axis is not known"),
        ([LOG_SOFTMAX, TOP], ("best", "all"), "the log-probabilities of the whole vocabulary are"),
        ([LOG_SOFTMAX, TOP, node("Exp", "all", "p")], ("best", "p"), "the whole row is also read "
         "by Exp"),
        ([LOG_SOFTMAX, LOOK_UP], ("found",), "the row does not have exactly one top-k"),
        ([LOG_SOFTMAX, TOP, node("TopK", "all k", "b c")], ("best", "b"),
         "the row does not have exactly one top-k"),
        ([LOG_SOFTMAX, TOP, node("GatherElements", "all ids", "found", axis=0)],
         ("best", "found"), "the axis of a reader is not the last one"),
        ([LOG_SOFTMAX, node("TopK", "all two", "best chosen", axis=1)], ("best",),
         "the axis of a reader is not the last one"),
        ([LOG_SOFTMAX, node("TopK", "all k", "best chosen", sorted=0)], ("best",),
         "the top-k is not sorted"),
        ([LOG_SOFTMAX, node("TopK", "all k", "best chosen", largest=0)], ("best",),
         "the top-k is not sorted, or takes the smallest"),
    ],
)  # fmt: skip
def test_what_needs_the_whole_row_keeps_it(
    nodes: list[NodeProto], outputs: tuple[str, ...], reason: str
) -> None:
    given = build(
        nodes, INPUTS, {name: [None] * 3 for name in outputs},
        {"k": np.array([4]), "two": np.array([2])}, types={"ids": "int"},
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 2, (2, 3, 2))
    assert_left_alone(TopKFirst(), given, reason, given={"ids": ids})


def log_softmax(x: Array) -> Array:
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("hidden", [0, 7, 10])
def test_numbers_at_the_edges(magnitude: float, hidden: int) -> None:
    random = np.random.default_rng(hidden)
    x = (random.standard_normal((2, 3, 11)) * magnitude).astype(np.float32)
    x[..., :hidden] = -np.inf  # of 11
    ids = random.integers(0, 11, (2, 3, 2))
    given = model([LOG_SOFTMAX, TOP, LOOK_UP], outputs=("best", "chosen", "found"))
    TopKFirst().run(given)
    found = run(given, {"x": x, "ids": ids})
    right = log_softmax(x)
    best = -np.sort(-right, axis=-1)[..., :4]
    # Both subtract numbers as large as the logits, each rounded to float32 once.
    near = {"rtol": 2e-6, "atol": max(1e-6, 2 * magnitude * 4 * 6e-8)}
    np.testing.assert_allclose(found["best"], best, **near)
    np.testing.assert_allclose(found["found"], np.take_along_axis(right, ids, -1), **near)
    finite = np.isfinite(best)
    picked = np.take_along_axis(right, found["chosen"], -1)
    np.testing.assert_allclose(picked[finite], best[finite], **near)


def test_equal_logits_keep_their_order() -> None:
    given = model([LOG_SOFTMAX, TOP])
    TopKFirst().run(given)
    found = run(given, feeds(given, given={"x": np.zeros((2, 3, 11), np.float32)}))
    assert (found["chosen"] == np.arange(4)).all()
    np.testing.assert_allclose(found["best"], -np.log(11), rtol=1e-6)
