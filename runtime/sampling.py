"""Noise of sampled tokens (rule 14 of docs/beam-search.md; runtime/cpp/src/core/sampling.h)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.bundle.contract import SAMPLING_NOISE
from translate_trt.runtime.options import SearchOptions

_BITS = 2**64 - 1


def mix(number: int) -> int:
    """Return the 64 bits that SplitMix64 (Steele et al. 2014) makes of 64 bits."""
    number = (number + 0x9E3779B97F4A7C15) & _BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _BITS
    return number ^ (number >> 31)


def noise_of(options: SearchOptions, source: Sequence[int], position: int) -> list[float]:
    """Compute the noise of the candidates of a token: Gumbel noise times the temperature.

    It depends on nothing else, so that a sample can be repeated in any batch.

    Args:
        options: Search options with `samples`.
        source: Source tokens without the end symbol.
        position: Number of tokens before this one.

    Returns:
        Noise by rank, for `sampling_top_k` ranks.
    """
    state = mix(options.seed)
    for token in source:
        state = mix(state ^ token)
    state = mix(state ^ position)
    noise = []
    for rank in range(options.sampling_top_k):
        # An odd multiple of 2 ** -53, so neither 0 nor 1.
        uniform = (2 * (mix((state + rank) & _BITS) >> 12) + 1) * 2.0**-53
        noise.append(-options.sampling_temperature * math.log(-math.log(uniform)))
    return noise


def request_noise(
    noise: Mapping[int, Sequence[float]], sentences: int
) -> dict[str, NDArray[np.generic]]:
    """Create the input `sampling_noise` of a step.

    Args:
        noise: Noise by row; other sentences take their best candidate.
        sentences: Number of sentences N.

    Returns:
        An array [N, R] of the smallest R.
    """
    size = max(map(len, noise.values()), default=0)
    values = np.full((sentences, size), -np.inf, dtype=np.float32)
    for row, own in noise.items():
        values[row, : len(own)] = own
    return {SAMPLING_NOISE: values}
