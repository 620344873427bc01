"""Compiled attention over the source and over caches, against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from support.operators import Array, Session, softmax

from translate_trt.runtime.bundle.contract import MASKED


def weights(query: Array, key: Array, bias: Array) -> Array:
    """query [N, K, H * D]; key [N, H, P, D]; bias broadcast to [N, H, K, P]."""
    heads = query.reshape(*query.shape[:2], key.shape[1], -1).transpose(0, 2, 1, 3)
    return softmax(heads @ key.transpose(0, 1, 3, 2) + bias)


def attended(query: Array, key: Array, value: Array, bias: Array) -> Array:
    """value [N, H, P, D]; the others as those of `weights`."""
    context = weights(query, key, bias) @ value
    return context.transpose(0, 2, 1, 3).reshape(query.shape)


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
    found = make_session(f"BeamAttention{end}", values, heads=h)()[0]
    expected = attended(query, key.astype(np.float32), value.astype(np.float32), bias)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for averaged in ([*range(h)], [h - 1, 0]):
        name = f"BeamAttentionMean{end}"
        context, mean = make_session(name, values, 2, heads=h, averaged=averaged)()
        np.testing.assert_array_equal(context, found)
        expected = weights(query, key.astype(np.float32), bias)[:, averaged].mean(1)
        np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(Exception, match="head to average"):
        make_session(name, values, 2, heads=h, averaged=[h])()


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
        steps = np.arange(s) - np.arange(s)[:, None]
        expected = bias + table[steps.clip(-4, 4) + 4].transpose(2, 0, 1)
        (bias,) = make_session("RelativeSourceBias", {"mask": bias, "table": table})()
        np.testing.assert_array_equal(bias, expected)
    found = make_session("SelfAttention", {"qkv": qkv, "bias": bias}, heads=h)()[0]
    query, *rest = np.split(qkv, 3, 2)
    key, value = (x.reshape(n, s, h, d).transpose(0, 2, 1, 3) for x in rest)
    np.testing.assert_allclose(found, attended(query, key, value, bias), rtol=1e-4, atol=1e-5)


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
    found = make_session(f"SplitHeads{end}", {"x": x}, **shape)()[0]
    kept = x[..., begin : begin + h * d].reshape(n, s, h, d).transpose(0, 2, 1, 3)
    expected = kept.clip(-65504, 65504) if end else kept
    np.testing.assert_array_equal(found, expected.astype(CACHES[end]))
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
    values = {"qkv": qkv, "key": key.copy(), "value": value.copy(), "slots": slots, "bias": bias}
    context, next_key, next_value = make_session(f"CachedAttention{end}", values, 3, heads=h)()
    query, new_key, new_value = np.split(qkv, 3, 2)
    for row, beam in itertools.product(range(n), range(k)):
        key[row, :, slots[row, beam]] = new_key[row, beam].reshape(h, d)
        value[row, :, slots[row, beam]] = new_value[row, beam].reshape(h, d)
    np.testing.assert_array_equal(next_key, key)
    np.testing.assert_array_equal(next_value, value)
    expected = attended(query, key.astype(np.float32), value.astype(np.float32), bias)
    np.testing.assert_allclose(context, expected, rtol=1e-4, atol=1e-5)


def test_what_16_bits_do_not_reach_becomes_the_largest(
    make_session: Callable[..., Session],
) -> None:
    numbers = np.array([[[0, 0, 1e5, -np.inf, 65504, -65520]]], np.float32)  # one query, key, value
    cache = np.zeros((1, 1, 1, 2), np.float16)
    values = {"qkv": numbers, "key": cache, "value": cache, "slots": np.array([[0]]),
              "bias": np.zeros((1, 1, 1, 1), np.float32)}  # fmt: skip
    context, key, value = make_session("CachedAttention16", values, 3, heads=1)()
    np.testing.assert_array_equal(key.ravel(), [65504, -65504])
    np.testing.assert_array_equal(value.ravel(), [65504, -65504])
    np.testing.assert_array_equal(context.ravel(), [65504, -65504])


def test_a_slot_out_of_range_is_refused(make_session: Callable[..., Session]) -> None:
    values = {
        "qkv": np.ones((1, 2, 12), np.float32), "key": np.ones((1, 1, 3, 4), np.float32),
        "value": np.ones((1, 1, 3, 4), np.float32), "slots": np.array([[0, 1]]),
        "bias": np.zeros((1, 1, 2, 3), np.float32),
    }  # fmt: skip
    run = make_session("CachedAttention", values, 3, heads=1)
    run()
    for slot in (3, -1):
        with pytest.raises(Exception, match="range"):
            run({"slots": np.array([[0, slot]])})


def test_idle_rows_give_zeros(make_session: Callable[..., Session]) -> None:
    values = {
        "q": np.ones((2, 4, 16), np.float32), "k": np.ones((2, 1, 5, 16), np.float32),
        "v": np.ones((2, 1, 5, 16), np.float32),
        "bias": np.array([0, MASKED], np.float32)[:, None, None, None] + np.zeros((2, 1, 1, 5),
                                                                                 np.float32),
    }  # fmt: skip
    for found in make_session("BeamAttentionMean", values, 2, heads=1, averaged=[0])():
        np.testing.assert_allclose(found[0], 1 if found.shape[2] == 16 else 0.2, rtol=1e-6)
        np.testing.assert_array_equal(found[1], 0)
