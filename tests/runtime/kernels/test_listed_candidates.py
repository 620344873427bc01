"""Compiled operators that find the best of each sentence's list of tokens, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support.operators import Array, Session, assert_candidates, logit_bias, quantize


def random_lists(
    rng: np.random.Generator, sentences: int, places: int, columns: int, filled: int
) -> Array:
    """Lists [N, W] of `filled` tokens each, ascending, with empty places in between."""
    lists = np.zeros((sentences, places), np.int64)
    for row in lists:
        where = np.sort(rng.choice(places, filled, replace=False))
        row[where] = np.sort(rng.choice(np.arange(1, columns), filled, replace=False))
    return lists


def best_listed(logits: Array, lists: Array, column: Array, count: int) -> list[Array]:
    shown = np.take_along_axis(logits, lists[:, None].repeat(logits.shape[1], 1), -1)
    shown = np.where(lists[:, None] == 0, -np.inf, shown.astype(np.float64))
    log_total = np.log(np.exp(shown - shown.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_total = log_total + shown.max(-1, keepdims=True)
    order = np.argsort(-shown, axis=-1, kind="stable")[..., :count]
    tokens = np.take_along_axis(lists[:, None].repeat(logits.shape[1], 1), order, -1)
    values = np.take_along_axis(shown, order, -1) - log_total
    return [values, tokens, np.take_along_axis(logits, column, -1) - log_total]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize(
    ("sentences", "beams", "inputs", "columns", "places", "filled"),
    [
        (1, 1, 4, 20, 9, 9),
        (3, 4, 64, 300, 40, 21),
        (2, 5, 100, 999, 130, 64),
        (33, 2, 132, 80, 70, 70),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_lists(
    make_session: Callable[..., Session], bits: int, sentences: int, beams: int, inputs: int,
    columns: int, places: int, filled: int, ties: bool, biased: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(columns)
    rows = rng.integers(-127, 128, (columns, inputs)).astype(np.int8)
    rows = np.sign(rows) if ties else rows
    scales = np.full((columns, 1), 1 / 128, np.float32)
    if not ties:
        scales += rng.random((columns, 1), dtype=np.float32) / 100
    x = rng.standard_normal((sentences, beams, inputs), dtype=np.float32)
    x = np.round(x) if ties else x  # whole numbers: sums are exact in any order
    x[:, beams // 2 :] = x[:, beams // 2 :][:, :1]  # some beams alike
    column = np.repeat(rng.integers(0, columns, (sentences, 1, 1)), beams, 1)
    lists = random_lists(rng, sentences, places, columns, filled)
    bias = np.round(logit_bias(rng, columns)) if ties else logit_bias(rng, columns)
    more = {"bias": bias} if biased else {}
    others = {"lists": lists, "column": column, "count": np.array([9])}
    prefix = "Biased" if biased else ""
    if bits == 8:
        q, scale = quantize(x, False)
        logits = (q @ rows.T.astype(int)).astype(np.float32) * scale * scales.T
        values = {"x": x, "w": rows, "s": scales, **more, **others}
        run = make_session(f"{prefix}ListedCandidates8", values, 3, ("w", "s"), width=inputs)
    else:
        table = rows * scales
        logits = (x.astype(np.float64) @ table.T).astype(np.float32)
        values = {"x": x, "w": table, **more, **others}
        run = make_session(f"{prefix}ListedCandidates", values, 3, ("w",))
    logits = logits + bias if biased else logits
    assert_candidates(run(), best_listed(logits, lists, column, 9))


def test_a_sentence_that_is_done_has_no_list_and_harms_no_other(
    make_session: Callable[..., Session],
) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((50, 32), dtype=np.float32)
    x = rng.standard_normal((3, 4, 32), dtype=np.float32)
    column = np.ones((3, 4, 1), np.int64)
    lists = random_lists(rng, 3, 30, 50, 12)
    lists[1] = 0
    values = {"x": x, "w": rows, "lists": lists, "column": column, "count": np.array([9])}
    log_probs, tokens, at_column = make_session("ListedCandidates", values, 3, ("w",))()
    assert (tokens[1] == 0).all()
    assert np.isfinite(log_probs[1]).all()
    assert np.isfinite(at_column[1]).all()
    here = [0, 2]
    expected = best_listed(x[here] @ rows.T, lists[here], column[here], 9)
    assert_candidates([log_probs[here], tokens[here], at_column[here]], expected)


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
              "count": np.array([9])}  # fmt: skip
    run = make_session("ListedCandidates", values, 3, ("w",))
    run()
    with pytest.raises(Exception, match=message):
        run(changed)
