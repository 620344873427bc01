"""Marked tokens: tokens whose log-probabilities a step changes (rule 13 of docs/beam-search.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.bundle.contract import MARKED_FACTORS, MARKED_TOKENS, UNMARKED
from translate_trt.runtime.options import SearchOptions, read_sequences

#: Factor of a token that is no candidate.
BANNED = math.inf


def suppressed_of(options: SearchOptions, unknown_token: int) -> list[list[int]]:
    """Token sequences that no translation has.

    Args:
        options: Search options.
        unknown_token: The unknown symbol; -1 if the vocabulary has none.
    """
    text = options.suppress_sequences
    suppressed = [] if text is None else read_sequences(text)
    if options.disable_unk and unknown_token >= 0:
        suppressed.append([unknown_token])
    return suppressed


def marks_of(
    options: SearchOptions, suppressed: Sequence[Sequence[int]], tokens: Sequence[int]
) -> dict[int, float]:
    """Compute the factor of each marked token for the next step of a hypothesis.

    Args:
        options: Search options.
        suppressed: Sequences from `suppressed_of`.
        tokens: Tokens of the hypothesis so far, forced ones included.
    """
    marks = {}
    if options.repetition_penalty != 1:
        marks = dict.fromkeys(tokens, options.repetition_penalty)
    if size := options.no_repeat_ngram_size:
        before = _end(tokens, size - 1)
        for start in range(len(tokens) - size + 1):
            if before == list(tokens[start : start + size - 1]):
                marks[tokens[start + size - 1]] = BANNED
    for *first, last in suppressed:
        if _end(tokens, len(first)) == first:
            marks[last] = BANNED
    return marks


def _end(tokens: Sequence[int], count: int) -> list[int]:
    """Return the last `count` tokens, or all if they are fewer."""
    return list(tokens[max(len(tokens) - count, 0) :])


def request_marks(
    marks: Mapping[tuple[int, int], Mapping[int, float]], sentences: int, beams: int
) -> dict[str, NDArray[np.generic]]:
    """Create the inputs `marked_tokens` and `marked_factors` of a step.

    Args:
        marks: Factors of tokens by (sentence, beam); other beams have no marked tokens.
        sentences: Number of sentences N.
        beams: Beam size K.

    Returns:
        Arrays [N, K, B] of the smallest B.
    """
    size = max(map(len, marks.values()), default=0)
    tokens = np.full((sentences, beams, size), UNMARKED, dtype=np.int64)
    factors = np.ones((sentences, beams, size), dtype=np.float32)
    for (sentence, beam), own in marks.items():
        tokens[sentence, beam, : len(own)] = list(own)
        factors[sentence, beam, : len(own)] = list(own.values())
    return {MARKED_TOKENS: tokens, MARKED_FACTORS: factors}
