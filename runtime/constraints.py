"""Constraints: phrases that a translation must have (rule 15 of docs/beam-search.md).

The library does the same in runtime/cpp/src/core/constraints.h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.bundle.contract import (
    CONSTRAINT_PROGRESS,
    CONSTRAINT_TOKENS,
    OTHER_PROGRESS,
    UNMARKED,
)

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """The constraints that a hypothesis has met, and those that are open.

    Attributes:
        open: The constraints that are not met yet; a phrase may occur several times.
        met: Number of tokens of the constraints that are met.
        rest: The last tokens of the hypothesis, which begin an open constraint.
    """

    open: tuple[Phrase, ...]
    met: int = 0
    rest: Phrase = ()

    @property
    def progress(self) -> int:
        """Number of tokens of constraints that the hypothesis has."""
        return self.met + len(self.rest)

    def after(self, tokens: Iterable[int]) -> Reading:
        """Read more tokens of the hypothesis."""
        unread, still_open, met = (*self.rest, *tokens), list(self.open), self.met
        while unread and not any(_begins(phrase, unread) for phrase in still_open):
            found = [phrase for phrase in still_open if unread[: len(phrase)] == phrase]
            longest = max(found, key=len, default=())
            if longest:
                still_open.remove(longest)
                met += len(longest)
            unread = unread[len(longest) or 1 :]
        return Reading(tuple(still_open), met, unread)


def _begins(phrase: Phrase, tokens: Phrase) -> bool:
    """Whether all tokens are the beginning of a longer phrase."""
    return len(phrase) > len(tokens) and phrase[: len(tokens)] == tokens


def different_tokens(phrases: Iterable[Sequence[int]]) -> list[int]:
    """Return the different tokens of phrases in ascending order."""
    return sorted({token for phrase in phrases for token in phrase})


def request_constraints(
    readings: Mapping[int, Sequence[Reading]],
    tokens: Mapping[int, Sequence[int]],
    sentences: int,
    beams: int,
) -> dict[str, NDArray[np.generic]]:
    """Create the inputs of a step that divide the beams by the progress of their hypotheses.

    Args:
        readings: Readings of the beams of a sentence, by row; other sentences have no constraints.
        tokens: Different tokens of the constraints of each of these sentences.
        sentences: Number of sentences N.
        beams: Beam size K.

    Returns:
        Arrays [N, U], [N, K, U] and [N, K] of the smallest U.
    """
    size = max((len(tokens[row]) for row in readings), default=0)
    wanted = np.full((sentences, size), UNMARKED, dtype=np.int64)
    progress = np.zeros((sentences, beams, size), dtype=np.int64)
    other = np.zeros((sentences, beams), dtype=np.int64)
    for row, own in readings.items():
        wanted[row, : len(tokens[row])] = tokens[row]
        for beam, reading in enumerate(own):
            other[row, beam] = reading.after([UNMARKED]).progress
            with_each = [reading.after([token]).progress for token in tokens[row]]
            progress[row, beam, : len(with_each)] = with_each
    return {CONSTRAINT_TOKENS: wanted, CONSTRAINT_PROGRESS: progress, OTHER_PROGRESS: other}
