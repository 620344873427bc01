"""Alignments of words between a text and its translation, from cross-attention."""

from __future__ import annotations

import re
from ctypes import c_float
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.native import abi, required_library
from translate_trt.runtime.native.values import as_text, handle

#: Begin and end of a part of a text, in characters.
Span = tuple[int, int]

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

    @classmethod
    def of(cls, found: abi.Segment) -> AlignedSegment:
        """Copy a segment of the library."""
        count = found.target_size * found.source_size
        weights = np.array(found.weights[:count], np.float32)
        return cls(
            tuple((one.begin, one.end) for one in found.source[: found.source_size]),
            tuple((one.begin, one.end) for one in found.target[: found.target_size]),
            weights.reshape(found.target_size, found.source_size),
        )

    def in_c(self) -> abi.Segment:
        """Convert the segment for the library."""
        weights = np.ascontiguousarray(self.weights, np.float32)
        return abi.Segment(
            (abi.Span * len(self.source))(*(abi.Span(*one) for one in self.source)),
            (abi.Span * len(self.target))(*(abi.Span(*one) for one in self.target)),
            len(self.source),
            len(self.target),
            (c_float * weights.size)(*weights.ravel().tolist()),
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
        calls = required_library("alignments")
        segments = (abi.Segment * len(self.segments))(*(one.in_c() for one in self.segments))
        target = as_text(self.target)
        translation = abi.TextFound.from_buffer_copy(target)  # of the same layout
        with handle(
            calls.tt_result_free, calls.tt_align_words, as_text(self.source),
            abi.Segments(segments, len(segments), translation),
            -1.0 if threshold is None else threshold,
        ) as result:  # fmt: skip
            found = calls.tt_result_alignment(result, 0, 0)
            return [(pair[0], pair[1]) for pair in found.data[: found.size]]

    def pharaoh(self, threshold: float | None = None) -> str:
        """Return `pairs` in Pharaoh format: "0-0 1-2", the source word before the hyphen."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs(threshold))


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
