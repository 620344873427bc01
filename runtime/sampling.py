"""Noise of sampled tokens (rule 14 of docs/beam-search.md; runtime/cpp/src/core/sampling.h)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from translate_trt.runtime.interface.search_options import MAX_TOP_K
from translate_trt.runtime.options import SearchOptions

_BITS = 2**64 - 1

#: Of so many tokens of the vocabulary, one is among those of the tail.
TOKENS_PER_TAIL_TOKEN = 32


@dataclass(frozen=True)
class Noise:
    """Gumbel noise of the candidates of a token, times the temperature.

    Attributes:
        by_rank: Noise of the most likely candidates.
        tail_tokens: Tokens that may be drawn, too, if they are not among these: those with the
            greatest noise of the vocabulary, in descending order.
        tail: Their noise.
    """

    by_rank: Sequence[float]
    tail_tokens: Sequence[int] = ()
    tail: Sequence[float] = ()


def mix(number: int) -> int:
    """Return the 64 bits that SplitMix64 (Steele et al. 2014) makes of 64 bits."""
    number = (number + 0x9E3779B97F4A7C15) & _BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _BITS
    return number ^ (number >> 31)


def noise_of(
    options: SearchOptions, source: Sequence[int], position: int, vocabulary_size: int
) -> Noise:
    """Compute the noise of a token.

    It depends on nothing else, so that a sample can be repeated in any batch.

    Args:
        options: Search options with `samples`.
        source: Source tokens without the end symbol.
        position: Number of tokens before this one.
        vocabulary_size: Number of tokens; only for draws from the whole vocabulary.
    """
    state = mix(options.seed)
    for token in source:
        state = mix(state ^ token)
    own = mix(state ^ position)
    numbers = (mix((own + count) & _BITS) for count in itertools.count())
    ranks = options.sampling_top_k or MAX_TOP_K
    # Minus logarithms of uniform numbers are exponentially distributed; minus the logarithm of such
    # a number is Gumbel noise.
    exponential = (-math.log(_uniform(number)) for number in numbers)
    best = list(itertools.islice(exponential, ranks))
    tokens: dict[int, None] = {}
    smallest: list[float] = []
    if options.sampling_top_k == 0 and vocabulary_size > ranks:
        size = -(-vocabulary_size // TOKENS_PER_TAIL_TOKEN)
        # The smallest of so many exponentially distributed numbers in turn (Renyi 1953).
        total = 0.0
        for i, one in enumerate(itertools.islice(exponential, size)):
            total += one / (vocabulary_size - i)
            smallest.append(total)
        while len(tokens) < size:
            tokens[(next(numbers) >> 32) * vocabulary_size >> 32] = None
    by_rank, tail = (
        [-options.sampling_temperature * math.log(one) for one in them] for them in (best, smallest)
    )
    return Noise(by_rank, list(tokens), tail)


def _uniform(number: int) -> float:
    # An odd multiple of 2 ** -53, so neither 0 nor 1.
    return (2 * (number >> 12) + 1) * 2.0**-53
