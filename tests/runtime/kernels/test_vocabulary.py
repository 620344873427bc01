"""The compiled operator that finds the best of a vocabulary in fp32, against its body.

runtime/cpp/tests/test_kernel_candidates.cc has more sizes, and lists.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.operators import NEVER, Session, assert_as_body, logit_bias, whole

# Logits that are not among the best have their share in the log-sum-exp in 16 bits.
SUM = 3e-4


@pytest.mark.parametrize("ties", [False, True])
def test_best_of_a_vocabulary(make_session: Callable[..., Session], ties: bool) -> None:
    rows, inputs, columns = 34, 128, 5000
    rng = np.random.default_rng(columns)
    vocabulary, x = whole(rng, columns, inputs), whole(rng, rows, 4, inputs) / 64
    if not ties:
        vocabulary = rng.standard_normal(vocabulary.shape, dtype=np.float32)
    column = rng.integers(0, columns, (rows, 4, 1))
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    assert_as_body(make_session, "VocabularyCandidates", values, ("w",), atol=SUM)


def test_columns_that_never_come_spoil_no_sum(make_session: Callable[..., Session]) -> None:
    """Most columns: where their errors are what is common to all, they must not be corrected."""
    rng = np.random.default_rng(4)
    columns, inputs = 4000, 64
    vocabulary = rng.standard_normal((columns, inputs)).astype(np.float32)
    # The products of these are off by the same, in one direction.
    vocabulary[1000:] = vocabulary[1000] * 30
    bias = np.zeros(columns, np.float32)
    bias[1000:] = NEVER
    x = rng.standard_normal((3, 4, inputs), dtype=np.float32) / 8
    column = rng.integers(0, 1000, (3, 4, 1))
    values = {"x": x, "w": vocabulary, "bias": bias, "column": column, "count": np.array([9])}
    assert_as_body(make_session, "BiasedVocabularyCandidates", values, ("w", "bias"), atol=SUM)


def test_too_few_columns_that_may_come(make_session: Callable[..., Session]) -> None:
    """All candidates are those of fp32 even among the columns that never come."""
    rng = np.random.default_rng(6)
    columns = 2100
    vocabulary, x = whole(rng, columns, 8), whole(rng, 2, 4, 8)
    bias = np.full(columns, NEVER, np.float32)
    bias[[5, 900, 2099]] = 1
    column = np.zeros((2, 4, 1), np.int64)
    values = {"x": x, "w": vocabulary, "bias": bias, "column": column, "count": np.array([9])}
    assert_as_body(make_session, "BiasedVocabularyCandidates", values, ("w", "bias"), atol=2e-3)


# Logits alike but for so little that 16 bits show no difference, up to such whose best are nearly
# everything.
@pytest.mark.parametrize("spread", [0, 1e-6, 1e-4, 1e-2, 1, 30])
@pytest.mark.parametrize("biased", [False, True])
def test_best_of_logits_that_are_nearly_alike(
    make_session: Callable[..., Session], spread: float, biased: bool
) -> None:
    rng = np.random.default_rng(5)
    columns, inputs = 3001, 96
    common = rng.standard_normal(inputs)
    vocabulary = (common + spread * rng.standard_normal((columns, inputs))).astype(np.float32)
    x = rng.standard_normal((5, 4, inputs), dtype=np.float32)
    x[0, :2] = 0
    column = rng.integers(0, columns, (5, 4, 1))
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    name, logits = "VocabularyCandidates", x.astype(float) @ vocabulary.T.astype(float)
    if biased:
        bias = logit_bias(rng, columns)
        bias[bias > NEVER] *= np.float32(spread / 3)
        values = {"x": x, "w": vocabulary, "bias": bias, "column": column, "count": np.array([9])}
        name, logits = "BiasedVocabularyCandidates", logits + bias
    values_found, found, at_column = make_session(name, values, ("w", "bias")[: 1 + biased])()
    log_probs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    # In fp32 neighbours may change places, but no better one may be missing.
    chosen = np.take_along_axis(logits, found, -1)
    ninth = np.sort(logits, axis=-1)[..., -9]
    assert (chosen >= ninth[..., None] - 2e-5).all()
    assert all(len(set(row)) == 9 for row in found.reshape(-1, 9))
    for one, places in ((values_found, found), (at_column, column)):
        expected = np.take_along_axis(log_probs, places, -1)
        np.testing.assert_allclose(one, expected, rtol=1e-6, atol=SUM + 2e-7 * np.abs(logits).max())


@pytest.mark.parametrize("inputs", [7, 512, 2048])
def test_sums_of_a_vocabulary_never_leave_their_range(
    make_session: Callable[..., Session], inputs: int
) -> None:
    """All of a row and a column at their largest, of one sign: the largest sums there are."""
    columns = 2100
    vocabulary = np.ones((columns, inputs), np.float32) * np.linspace(-3, 3, columns)[:, None]
    vocabulary[::3, 1:] = 0  # of one large number, and nothing else
    x = np.full((2, 4, inputs), 1 / 64, np.float32)
    x[1] = -(2.0**-9)
    x[0, 1, 1:] = 0
    column = np.zeros((2, 4, 1), np.int64)
    vocabulary = vocabulary.astype(np.float32)
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    assert_as_body(make_session, "VocabularyCandidates", values, ("w",), atol=SUM)


def test_a_vocabulary_must_be_constant_and_fit(make_session: Callable[..., Session]) -> None:
    values = {"x": np.ones((1, 4, 6), np.float32), "w": np.zeros((50, 6), np.float32),
              "column": np.zeros((1, 4, 1), np.int64), "count": np.array([9])}  # fmt: skip
    with pytest.raises(Exception, match="must be constant"):
        make_session("VocabularyCandidates", values)
    with pytest.raises(Exception, match=r"inputs\]"):
        make_session("VocabularyCandidates", values | {"w": np.zeros((5, 6, 7), np.float32)},
                     ("w",))  # fmt: skip
    run = make_session("VocabularyCandidates", values, ("w",))
    with pytest.raises(Exception, match="same number"):
        run({"x": np.ones((1, 4, 8), np.float32)})
    biased = {name: values[name] for name in ("x", "w")} | {"bias": np.zeros(49, np.float32)}
    with pytest.raises(Exception, match="value per"):
        make_session("BiasedVocabularyCandidates", biased | values, ("w", "bias"))
    with pytest.raises(Exception, match="candidates"):
        run({"count": np.array([51])})


def test_callers_share_a_session(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(1)
    values = {"x": whole(rng, 8, 4, 128), "w": whole(rng, 1000, 128) / 64,
              "column": np.zeros((8, 4, 1), np.int64), "count": np.array([9])}  # fmt: skip
    run = make_session("VocabularyCandidates", values, ("w",))
    inputs = [{"x": np.repeat(whole(rng, 8, n, 128), 4 // n, axis=1)} for n in (1, 2, 4) * 3]
    alone = [run(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, inputs * 20))
    for index, found in enumerate(together):
        for one, other in zip(found, alone[index % len(inputs)], strict=True):
            np.testing.assert_array_equal(one, other)
