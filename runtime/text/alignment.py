"""Alignments of words between a text and its translation, from cross-attention."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.tokenizer import Span

_WORD = re.compile(r"\S+")


class AlignedSegment(NamedTuple):
    """Tokens of a segment and the attention between them.

    Attributes:
        source: Characters of each source token, in order.
        target: Characters of each target token, in order.
        weights: [target tokens, source tokens] attention. A row sums to less than 1, because the
            end symbol and the model's prompt are left out.
    """

    source: tuple[Span, ...]
    target: tuple[Span, ...]
    weights: NDArray[np.float32]

    def shifted(self, source: int, target: int) -> AlignedSegment:
        """Return the segment as part of longer texts, in which it begins at these offsets."""
        return AlignedSegment(
            tuple((begin + source, end + source) for begin, end in self.source),
            tuple((begin + target, end + target) for begin, end in self.target),
            self.weights,
        )


@dataclass(frozen=True, eq=False)
class Alignment:
    """Alignment of a text and its translation.

    Words are separated by white space. The weight between two words is the sum over the subwords of
    the source word, and the mean over those of the target word.

    Attributes:
        source: The source text.
        target: The translation.
        segments: Segments in the order of both texts; tokens of different segments are not aligned.
    """

    source: str
    target: str
    segments: tuple[AlignedSegment, ...] = ()

    @cached_property
    def source_words(self) -> tuple[Span, ...]:
        """Characters of each word of the source."""
        return tuple(word.span() for word in _WORD.finditer(self.source))

    @cached_property
    def target_words(self) -> tuple[Span, ...]:
        """Characters of each word of the translation."""
        return tuple(word.span() for word in _WORD.finditer(self.target))

    def pairs(self, threshold: float | None = None) -> list[tuple[int, int]]:
        """Return aligned words as (source word, target word), indices from 0, in ascending order.

        Args:
            threshold: Smallest weight of a pair, from 0 to 1. None aligns each target word with the
                source word of the largest weight.

        Raises:
            OptionError: The threshold is not a number from 0 to 1.
        """
        if threshold is not None:
            check_threshold(threshold)
        best: dict[int, tuple[float, int]] = {}
        found = set[tuple[int, int]]()
        for segment in self.segments:
            source = _Words(segment.source, self.source_words)
            target = _Words(segment.target, self.target_words)
            if not source.shares.size or not target.shares.size:
                continue
            sums = target.shares.T @ segment.weights @ source.shares  # [target words, source words]
            weights = sums / np.maximum(target.shares.sum(0), np.finfo(np.float32).tiny)[:, None]
            if threshold is not None:
                found |= {
                    (source.first + int(column), target.first + int(row))
                    for row, column in np.argwhere((weights >= threshold) & (weights > 0))
                }
                continue
            for row, column in enumerate(weights.argmax(1)):
                # Two segments may share a word of the target: the larger weight decides.
                weight, word = float(weights[row, column]), target.first + row
                if weight > best.get(word, (0.0, 0))[0]:
                    best[word] = weight, source.first + int(column)
        return sorted(found or {(source_word, word) for word, (_, source_word) in best.items()})

    def pharaoh(self, threshold: float | None = None) -> str:
        """Return `pairs` in Pharaoh format: "0-0 1-2", the source word before the hyphen."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs(threshold))


def aligned_with_end(line: str, end: str) -> Alignment:
    """Align a line that stays as it is: each word after the language code with itself."""
    before, weights = len(line) - len(end), np.ones((1, 1), np.float32)
    spans = (((word.start(), word.end()),) for word in _WORD.finditer(end))
    segments = tuple(AlignedSegment(span, span, weights).shifted(before, 0) for span in spans)
    return Alignment(line, end, segments)


def check_threshold(threshold: Any) -> None:
    """Check the smallest weight of a pair of aligned words.

    Raises:
        OptionError: The threshold is not a number from 0 to 1.
    """
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if not is_number or not 0 <= threshold <= 1:
        raise OptionError(
            f"the threshold of alignments is {threshold!r}; it must be a number from 0 to 1."
        )


def join_alignments(
    source: str, target: str, parts: Iterable[tuple[Alignment, int, int]]
) -> Alignment:
    """Join the alignments of parts of a text, given with their offsets in source and target."""
    segments = tuple(
        segment.shifted(source_offset, target_offset)
        for part, source_offset, target_offset in parts
        for segment in part.segments
    )
    return Alignment(source, target, segments)


class _Words:
    """Words that the tokens of a segment belong to.

    Attributes:
        first: Index of the first word.
        shares: [tokens, words] share of each token in each word, from the first word to the last; a
            row sums to 1. Empty if the segment has no tokens or the text no words.
    """

    def __init__(self, spans: Sequence[Span], words: Sequence[Span]) -> None:
        of_tokens = []
        for begin, end in spans if words else ():
            # A token without a character of its own belongs to the word that it is in or before.
            first = min(bisect_right(words, begin, key=itemgetter(1)), len(words) - 1)
            of_tokens.append((first, max(bisect_left(words, end, key=itemgetter(0)) - 1, first)))
        self.first = min((first for first, _ in of_tokens), default=0)
        count = max((last for _, last in of_tokens), default=-1) + 1 - self.first
        self.shares = np.zeros((len(of_tokens), count), np.float32)
        for row, (first, last) in enumerate(of_tokens):
            share = 1 / (last + 1 - first)
            self.shares[row, first - self.first : last + 1 - self.first] = share
