"""Source sentences, and comparison of two systems' translations."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from translate_trt.runtime import kernels
from translate_trt.runtime.results import Hypothesis

#: Translate sources with options, prefixes and constraints.
Translate = Callable[..., list[list[Hypothesis]]]


def random_sources(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    lengths = [1, longest, *(rng.randint(1, longest) for _ in range(count - 2))]
    return [[rng.randrange(4, 40) for _ in range(n)] for n in lengths]


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.truncated for h in ours] == [h.truncated for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, atol=1e-4)
            if other.attention is not None:
                assert one.attention is not None
                np.testing.assert_allclose(one.attention, other.attention, atol=1e-5)


def share_of_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> float:
    """Return the share of sentences whose best translations have the same tokens."""
    same = [a[0].tokens == b[0].tokens for a, b in zip(found, expected, strict=True)]
    return sum(same) / len(same)


def rounding() -> float:
    """Return the score tolerance between batches (rule 9); zero with compiled kernels."""
    return 0 if kernels.status().startswith(("avx", "amx")) else 1e-4


def bits(hypotheses: list[Hypothesis]) -> list[tuple[object, ...]]:
    """Convert hypotheses to values that are equal only if all bits are."""
    return [
        (
            tuple(one.tokens), one.truncated, one.score.hex(),
            tuple(value.hex() for value in one.token_log_probs),
            None if one.attention is None else one.attention.tobytes(),
        )
        for one in hypotheses
    ]  # fmt: skip


def assert_independent(
    alone: list[list[Hypothesis]],
    sources: list[list[int]],
    translate: Callable[[list[list[int]]], list[list[Hypothesis]]],
    seed: int,
) -> None:
    """Check that a shuffled batch gives each sentence the same bits as alone."""
    order = random.Random(seed).sample(range(len(sources)), len(sources))
    found = translate([sources[index] for index in order])
    differing = [
        index
        for index, together in zip(order, found, strict=True)
        if bits(together) != bits(alone[index])
    ]
    assert not differing
