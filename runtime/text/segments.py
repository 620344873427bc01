"""Lines longer than the model takes, cut where it hurts least."""

from __future__ import annotations

import re
from collections.abc import Callable

_SENTENCE_END = re.compile(r"(?<=[.!?\u2026\u3002\uff01\uff1f])[\"'\u201c\u201d\u00bb)\]]*\s+")
_SPACE = re.compile(r"\s+")


def split_text(text: str, encode: Callable[[str], list[int]], limit: int) -> list[list[int]]:
    """Tokens of a text, in as many segments as it needs.

    A text of more than `limit` tokens is halved near its middle: after a sentence if one ends in
    its middle half, else between words, else (a single word of that length) between characters;
    and so on with the halves.

    Args:
        text: one line.
        encode: text to tokens.
        limit: most tokens of one segment.

    Returns:
        The tokens of each segment; no segment is empty, so a blank text has none.
    """
    tokens = encode(text)
    if len(tokens) <= limit or len(text) < 2:
        # One character is at most a few bytes; cut its tokens in the end rather than refuse it.
        return [tokens[start : start + limit] for start in range(0, len(tokens), limit)]
    middle = _middle(text)
    return split_text(text[:middle], encode, limit) + split_text(text[middle:], encode, limit)


def _middle(text: str) -> int:
    # At least one character on each side: a half as long as the whole would be halved forever.
    quarter, half = max(1, len(text) // 4), len(text) // 2
    for boundary in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in boundary.finditer(text, quarter, len(text) - quarter)]
        if ends:
            return min(ends, key=lambda end: abs(end - half))
    return half
