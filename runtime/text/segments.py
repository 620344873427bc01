"""Segmentation of lines that exceed the model's maximum length."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

_SENTENCE_END = re.compile(r"(?<=[.!?\u2026\u3002\uff01\uff1f])[\"'\u201c\u201d\u00bb)\]]*\s+")
_SPACE = re.compile(r"\s+")

T = TypeVar("T")


def split_text(text: str, encode: Callable[[str], list[int]], limit: int) -> list[list[int]]:
    """Tokenize a text and split it into segments of at most `limit` tokens.

    A longer text is split near its middle, recursively: at a sentence end within its middle half,
    otherwise at a space there, otherwise between two characters.

    Args:
        text: One line.
        encode: Tokenizer.
        limit: Maximum tokens of a segment.

    Returns:
        The tokens of each segment. No segment is empty; a blank text has no segments.
    """
    return [tokens for _, tokens in split_at_offsets(text, encode, limit)]


def segment_texts(text: str, encode: Callable[[str], list[int]], limit: int) -> list[str]:
    """Return the text of each segment of `split_text`, which is the whole text if it is short.

    Only its tokens tell: normalization can make many characters of one.
    """
    starts = [offset for offset, _ in split_at_offsets(text, encode, limit)]
    return [text[begin:end] for begin, end in pairwise([*starts, len(text)])] or [text]


def split_at_offsets(
    text: str, encode: Callable[[str], list[T]], limit: int, offset: int = 0
) -> list[tuple[int, list[T]]]:
    """Split a text as `split_text` does, and return where each segment begins.

    Args:
        text: One line.
        encode: Tokenizer, which may return any value for a token.
        limit: Maximum tokens of a segment.
        offset: Offset of the text in the line.

    Returns:
        For each segment the offset of the text whose tokens it has, and the tokens.
    """
    tokens = encode(text)
    if len(tokens) <= limit or len(text) < 2:
        # A single character can be a few byte tokens; cutting them is better than an error.
        starts = range(0, len(tokens), limit)
        return [(offset, tokens[start : start + limit]) for start in starts]
    middle = _middle(text)
    return [
        *split_at_offsets(text[:middle], encode, limit, offset),
        *split_at_offsets(text[middle:], encode, limit, offset + middle),
    ]


def _middle(text: str) -> int:
    # One character on each side at least; otherwise the recursion would not end.
    quarter, half = max(1, len(text) // 4), len(text) // 2
    for boundary in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in boundary.finditer(text, quarter, len(text) - quarter)]
        if ends:
            return min(ends, key=lambda end: abs(end - half))
    return half
