"""Operators that find the best of logits, of 8-bit vocabularies and of lists, against their bodies.

runtime/cpp/tests/test_kernel_candidates.cc has the kernels in more sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from support.operators import (
    HIDDEN,
    NEVER,
    Array,
    Session,
    assert_as_body,
    logit_bias,
    matrix,
)

COUNT = {"count": np.array([9])}


@pytest.mark.parametrize("ties", [False, True])
def test_best_of_logits(make_session: Callable[..., Session], ties: bool) -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((5, 4, 1000), dtype=np.float32) * 8
    logits = np.round(logits) if ties else logits
    column = rng.integers(0, 1000, (5, 4, 1))
    values = {"x": logits, "column": column, **COUNT}
    assert_as_body(make_session, "TopLogits", values)
    run = make_session("TopLogits", values)
    for changed, message in (
        ({"column": np.full((5, 4, 1), 1000)}, "out of range"),
        ({"count": np.array([1001])}, "candidates"),
    ):
        with pytest.raises(Exception, match=message):
            run(changed)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "columns"), [(1, 4, 9), (34, 128, 5000)])
def test_best_of_a_vocabulary_in_8_bits(
    make_session: Callable[..., Session], rows: int, inputs: int, columns: int, biased: bool
) -> None:
    rng = np.random.default_rng(columns)
    blocks, scales = matrix(rng, inputs, columns)
    bias = logit_bias(rng, columns) if biased else np.zeros(columns, np.float32)
    x = rng.standard_normal((rows, 4, inputs), dtype=np.float32)
    x[0, 0] = 0  # its logits are the bias
    x[0, 2] = x[0, 1]
    values = {
        "x": x, "w": blocks, "s": scales,
        "bias": np.pad(bias, (0, -columns % 16), constant_values=HIDDEN),
        "column": rng.integers(0, columns, (rows, 4, 1)), **COUNT,
    }  # fmt: skip
    name = "BiasedCandidates8" if biased else "Candidates8"
    sizes: dict[str, Any] = {"shape": [inputs, -1], "width": inputs}
    assert_as_body(make_session, name, values, ("w", "s", "bias"), **sizes)


def test_columns_that_never_come_are_the_last(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(2)
    blocks, scales = matrix(rng, 16, 32)
    bias = np.where(np.arange(32) < 29, NEVER, 0).astype(np.float32)
    x = rng.standard_normal((2, 4, 16), dtype=np.float32)
    column = rng.integers(0, 32, (2, 4, 1))
    values = {"x": x, "w": blocks, "s": scales, "bias": bias, "column": column, **COUNT}
    found = assert_as_body(
        make_session, "BiasedCandidates8", values, ("w", "s", "bias"), atol=2e-3,
        shape=[16, -1], width=16,
    )  # fmt: skip
    assert (np.sort(found[1][..., :3]) == [29, 30, 31]).all()
    with pytest.raises(Exception, match="must be constant"):
        make_session("BiasedCandidates8", values, ("w", "s"))
    with pytest.raises(Exception, match="per column"):
        make_session("BiasedCandidates8", values | {"bias": bias[1:]}, ("w", "s", "bias"))


# ---- lists ----


def random_lists(
    rng: np.random.Generator, sentences: int, places: int, columns: int, filled: int
) -> Array:
    """Lists [N, W] of `filled` tokens each, ascending, with empty places in between."""
    lists = np.zeros((sentences, places), np.int64)
    for row in lists:
        where = np.sort(rng.choice(places, filled, replace=False))
        row[where] = np.sort(rng.choice(np.arange(1, columns), filled, replace=False))
    return lists


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("bits", [8, 32])
def test_best_of_lists(make_session: Callable[..., Session], bits: int, biased: bool) -> None:
    sentences, beams, inputs, columns = 3, 4, 64, 300
    rng = np.random.default_rng(columns)
    rows = rng.integers(-127, 128, (columns, inputs)).astype(np.int8)
    scales = (1 / 128 + rng.random((columns, 1)) / 100).astype(np.float32)
    x = rng.standard_normal((sentences, beams, inputs), dtype=np.float32)
    column = np.repeat(rng.integers(0, columns, (sentences, 1, 1)), beams, 1)
    lists = random_lists(rng, sentences, 40, columns, 21)
    others = {"lists": lists, "column": column, **COUNT}
    if biased:
        others = {"bias": logit_bias(rng, columns), **others}
    name = ("Biased" if biased else "") + "ListedCandidates"
    if bits == 8:
        values = {"x": x, "w": rows, "s": scales, **others}
        assert_as_body(make_session, f"{name}8", values, ("w", "s"), width=inputs)
    else:
        assert_as_body(make_session, name, {"x": x, "w": rows * scales, **others}, ("w",))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lists": np.full((1, 12), 20)}, "token of the shortlist is out of range"),
        ({"lists": np.full((1, 12), -1)}, "token of the shortlist is out of range"),
        ({"lists": np.zeros((2, 12), np.int64)}, "each sentence"),
        ({"lists": np.zeros((1, 8), np.int64)}, "must not exceed the width of the shortlist"),
        ({"column": np.full((1, 4, 1), 20)}, "column"),
        ({"x": np.zeros((1, 4, 9), np.float32)}, "same number"),
    ],
)
def test_lists_refuse_what_does_not_fit(
    make_session: Callable[..., Session], changed: Mapping[str, Array], message: str
) -> None:
    values = {"x": np.zeros((1, 4, 8), np.float32), "w": np.zeros((20, 8), np.float32),
              "lists": np.arange(12)[None], "column": np.zeros((1, 4, 1), np.int64),
              **COUNT}  # fmt: skip
    run = make_session("ListedCandidates", values, ("w",))
    run()
    with pytest.raises(Exception, match=message):
        run(changed)
