"""Compiled attention over the source and over caches, against the bodies of its functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.operators import Session, assert_as_body

from translate_trt.runtime.bundle.contract import MASKED

# Names of functions end so, by what keys and values are kept in.
CACHES = {"": np.float32, "16": np.float16}

ATTENTION = [(1, 4, 8, 24, 64), (3, 6, 2, 33, 80)]


@pytest.mark.parametrize("end", CACHES)
@pytest.mark.parametrize(("n", "k", "h", "p", "d"), ATTENTION)
def test_attention_over_the_source(
    make_session: Callable[..., Session], n: int, k: int, h: int, p: int, d: int, end: str
) -> None:
    rng = np.random.default_rng(p)
    query = rng.standard_normal((n, k, h * d), dtype=np.float32)
    key, value = rng.standard_normal((2, n, h, p, d), dtype=np.float32).astype(CACHES[end])
    lengths = rng.integers(1, p + 1, n)
    bias = np.where(np.arange(p) < lengths[:, None], 0, MASKED).astype(np.float32)
    bias = bias[:, None, None]
    values = {"q": query, "k": key, "v": value, "bias": bias}
    (found,) = assert_as_body(make_session, f"BeamAttention{end}", values, heads=h)
    name = f"BeamAttentionMean{end}"
    for averaged in ([*range(h)], [h - 1, 0]):
        context, _ = assert_as_body(make_session, name, values, heads=h, averaged=averaged)
        np.testing.assert_array_equal(context, found)
    with pytest.raises(Exception, match="head to average"):
        make_session(name, values, heads=h, averaged=[h])()


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("n", "s", "h", "d"), [(1, 37, 8, 64), (5, 18, 3, 20), (2, 1, 2, 8)])
def test_attention_of_tokens_over_each_other(
    make_session: Callable[..., Session], n: int, s: int, h: int, d: int, relative: bool
) -> None:
    rng = np.random.default_rng(s)
    qkv = rng.standard_normal((n, s, 3 * h * d), dtype=np.float32)
    lengths = rng.integers(1, s + 1, n)
    bias = np.where(np.arange(s) < lengths[:, None], 0, MASKED).astype(np.float32)
    bias = bias[:, None, None]
    if relative:
        table = rng.standard_normal((9, h), dtype=np.float32)
        sources = {"mask": bias, "table": table}
        (bias,) = assert_as_body(make_session, "RelativeSourceBias", sources)
    values = {"qkv": qkv, "bias": bias}
    assert_as_body(make_session, "SelfAttention", values, heads=h, splits=[h * d] * 3)


def test_projections_and_bias_that_do_not_fit_are_refused(
    make_session: Callable[..., Session],
) -> None:
    values = {"qkv": np.ones((1, 2, 12), np.float32), "bias": np.zeros((1, 1, 1, 3), np.float32)}
    with pytest.raises(Exception, match="do not match"):
        make_session("SelfAttention", values, heads=2)()
    with pytest.raises(Exception, match="of `heads` heads"):
        make_session("SelfAttention", values, heads=3)()


@pytest.mark.parametrize("end", CACHES)
def test_heads_are_split(make_session: Callable[..., Session], end: str) -> None:
    n, s, h, d, begin = 3, 5, 2, 20, 40
    x = np.random.default_rng(0).standard_normal((n, s, 90), dtype=np.float32)
    x[0, 0, begin] = 1e5  # more than there is in 16 bits
    shape = {"begin": [begin], "end": [begin + h * d], "head_shape": [0, 0, h, d]}
    assert_as_body(make_session, f"SplitHeads{end}", {"x": x}, rtol=0, atol=0, **shape)
    with pytest.raises(Exception, match="columns"):
        make_session(f"SplitHeads{end}", {"x": x[..., :79]}, **shape)()


@pytest.mark.parametrize("end", CACHES)
@pytest.mark.parametrize(("n", "k", "h", "p", "d"), ATTENTION)
def test_attention_over_the_caches(
    make_session: Callable[..., Session], n: int, k: int, h: int, p: int, d: int, end: str
) -> None:
    rng = np.random.default_rng(p)
    qkv = rng.standard_normal((n, k, 3 * h * d), dtype=np.float32)
    key, value = rng.standard_normal((2, n, h, p, d), dtype=np.float32).astype(CACHES[end])
    slots = np.stack([rng.permutation(p)[:k] for _ in range(n)])
    seen = rng.random((n, 1, k, p)) < 0.3
    np.put_along_axis(seen[:, 0], slots[..., None], True, 2)  # each beam sees itself
    bias = np.where(seen, rng.standard_normal(seen.shape), MASKED).astype(np.float32)
    values = {"qkv": qkv, "key": key, "value": value, "slots": slots, "bias": bias}
    assert_as_body(
        make_session, f"CachedAttention{end}", values,
        heads=h, splits=[h * d] * 3, head_shape=[0, 0, h, d],
    )  # fmt: skip


def test_what_16_bits_do_not_reach_becomes_the_largest(
    make_session: Callable[..., Session],
) -> None:
    numbers = np.array([[[0, 0, 1e5, -np.inf, 65504, -65520]]], np.float32)  # one query, key, value
    cache = np.zeros((1, 1, 1, 2), np.float16)
    values = {"qkv": numbers, "key": cache, "value": cache, "slots": np.array([[0]]),
              "bias": np.zeros((1, 1, 1, 1), np.float32)}  # fmt: skip
    context, key, value = make_session("CachedAttention16", values, heads=1)()
    np.testing.assert_array_equal(key.ravel(), [65504, -65504])
    np.testing.assert_array_equal(value.ravel(), [65504, -65504])
    np.testing.assert_array_equal(context.ravel(), [65504, -65504])


def test_a_slot_out_of_range_is_refused(make_session: Callable[..., Session]) -> None:
    values = {
        "qkv": np.ones((1, 2, 12), np.float32), "key": np.ones((1, 1, 3, 4), np.float32),
        "value": np.ones((1, 1, 3, 4), np.float32), "slots": np.array([[0, 1]]),
        "bias": np.zeros((1, 1, 2, 3), np.float32),
    }  # fmt: skip
    run = make_session("CachedAttention", values, heads=1)
    run()
    for slot in (3, -1):
        with pytest.raises(Exception, match="range"):
            run({"slots": np.array([[0, slot]])})
