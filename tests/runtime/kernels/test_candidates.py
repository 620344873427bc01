"""Compiled operators that find the best of a vocabulary, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.operators import (
    HIDDEN,
    NEVER,
    Array,
    Session,
    assert_candidates,
    best,
    blocked,
    logit_bias,
    matmul,
    matrix,
    quantize,
)


@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (2, 64), (5, 1000), (33, 2049)])
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_logits(
    make_session: Callable[..., Session], rows: int, columns: int, ties: bool
) -> None:
    rng = np.random.default_rng(columns)
    logits = rng.standard_normal((rows, 4, columns), dtype=np.float32) * 8
    logits = np.round(logits) if ties else logits
    column = rng.integers(0, columns, (rows, 4, 1))
    values = {"x": logits, "column": column, "count": np.array([9])}
    found = make_session("TopLogits", values, 3)()
    assert_candidates(found, best(logits, column, 9))


@pytest.mark.parametrize(
    ("rows", "inputs", "columns"), [(1, 4, 9), (2, 64, 64), (3, 32, 777), (34, 128, 5000)]
)
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_products(
    make_session: Callable[..., Session], rows: int, inputs: int, columns: int, ties: bool
) -> None:
    rng = np.random.default_rng(columns)
    weights, scales, blocks = matrix(rng, inputs, columns)
    if ties:
        scales[:] = 1 / 128
        blocks = blocked(weights := np.sign(weights))
    x = rng.standard_normal((rows, 4, inputs), dtype=np.float32)
    column = rng.integers(0, columns, (rows, 4, 1))
    fill = -columns % 16
    values = {
        "x": x, "w": blocks, "s": np.pad(scales, (0, fill)),
        "hidden": np.pad(np.zeros(columns, np.float32), (0, fill), constant_values=HIDDEN),
        "column": column, "count": np.array([9]),
    }  # fmt: skip
    run = make_session("Candidates8", values, 3, ("w", "s", "hidden"))
    q, scale = quantize(x, False)
    logits = (q @ weights.astype(int)).astype(np.float32) * scales * scale
    assert_candidates(run(), best(logits, column, 9))


@pytest.mark.parametrize("beams", [1, 2, 5, 8])
@pytest.mark.parametrize(("rows", "columns"), [(1, 100), (9, 2049)])
def test_best_of_products_with_a_bias(
    make_session: Callable[..., Session], rows: int, columns: int, beams: int
) -> None:
    rng = np.random.default_rng(columns + beams)
    weights, scales, blocks = matrix(rng, 64, columns)
    bias = logit_bias(rng, columns)
    x = rng.standard_normal((rows, beams, 64), dtype=np.float32)
    x[0, 0] = 0  # its logits are the bias
    column = rng.integers(0, columns, (rows, beams, 1))
    column[0] = 0
    fill = -columns % 16
    values = {
        "x": x, "w": blocks, "s": np.pad(scales, (0, fill)),
        "bias": np.pad(bias, (0, fill), constant_values=HIDDEN),
        "column": column, "count": np.array([2 * beams + 1]),
    }  # fmt: skip
    found = make_session("BiasedCandidates8", values, 3, ("w", "s", "bias"))()
    logits = matmul(x, weights, scales, False) + bias
    assert_candidates(found, best(logits, column, 2 * beams + 1))


def test_columns_that_never_come_are_the_last(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(2)
    weights, scales, blocks = matrix(rng, 16, 32)
    bias = np.where(np.arange(32) < 29, NEVER, 0).astype(np.float32)
    x = rng.standard_normal((2, 4, 16), dtype=np.float32)
    column = rng.integers(0, 32, (2, 4, 1))
    values = {"x": x, "w": blocks, "s": scales, "bias": bias, "column": column,
              "count": np.array([9])}  # fmt: skip
    found = make_session("BiasedCandidates8", values, 3, ("w", "s", "bias"))()
    assert_candidates(found, best(matmul(x, weights, scales, False) + bias, column, 9), 2e-3)
    assert (np.sort(found[1][..., :3]) == [29, 30, 31]).all()


def test_a_bias_must_be_constant_and_fit(make_session: Callable[..., Session]) -> None:
    _, scales, blocks = matrix(np.random.default_rng(0), 16, 32)
    values = {"x": np.ones((1, 4, 16), np.float32), "w": blocks, "s": scales,
              "bias": np.zeros(32, np.float32), "column": np.zeros((1, 4, 1), np.int64),
              "count": np.array([9])}  # fmt: skip
    with pytest.raises(Exception, match="must be constant"):
        make_session("BiasedCandidates8", values, 3, ("w", "s"))
    with pytest.raises(Exception, match="per column"):
        make_session("BiasedCandidates8", values | {"bias": np.zeros(31, np.float32)}, 3,
                     ("w", "s", "bias"))  # fmt: skip


def test_beams_that_are_alike_have_the_same_candidates_and_columns_of_their_own(
    make_session: Callable[..., Session],
) -> None:
    rng = np.random.default_rng(3)
    weights, scales, blocks = matrix(rng, 16, 48)
    x = np.repeat(rng.standard_normal((3, 1, 16), dtype=np.float32), 4, axis=1)
    x[1, 2:] += 1
    column = rng.integers(0, 48, (3, 4, 1))
    values = {"x": x, "w": blocks, "s": scales, "hidden": np.zeros(48, np.float32),
              "column": column, "count": np.array([9])}  # fmt: skip
    run = make_session("Candidates8", values, 3, ("w", "s", "hidden"))
    assert_candidates(run(), best(matmul(x, weights, scales, False), column, 9))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"column": np.full((1, 4, 1), 20)}, "out of range"),
        ({"count": np.array([21])}, "candidates"),
    ],
)
def test_candidates_refuse_what_is_not_there(
    make_session: Callable[..., Session], changed: Mapping[str, Array], message: str
) -> None:
    values = {"x": np.zeros((1, 4, 20), np.float32), "column": np.zeros((1, 4, 1), np.int64),
              "count": np.array([9])}  # fmt: skip
    run = make_session("TopLogits", values, 3)
    with pytest.raises(Exception, match=message):
        run(changed)


def test_callers_share_a_session(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(1)
    _, scales, blocks = matrix(rng, 128, 1000)
    column = np.zeros((8, 4, 1), np.int64)
    values = {"x": rng.standard_normal((8, 4, 128), dtype=np.float32), "w": blocks,
              "s": np.pad(scales, (0, 8)),
              "hidden": np.pad(np.zeros(1000, np.float32), (0, 8), constant_values=HIDDEN),
              "column": column, "count": np.array([9])}  # fmt: skip
    run = make_session("Candidates8", values, 3, ("w", "s", "hidden"))
    inputs = [{"x": rng.standard_normal((8, 4, 128), dtype=np.float32)} for _ in range(8)]
    alone = [run(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, inputs * 20))
    for index, found in enumerate(together):
        for one, other in zip(found, alone[index % 8], strict=True):
            np.testing.assert_array_equal(one, other)
