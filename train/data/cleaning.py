"""Cleaning of a parallel corpus, with counts of dropped pairs by reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError
from translate_trt.train.data.alignments import read_links
from translate_trt.train.data.corpora import PrepareOptions

#: Reasons to drop a pair, in the order in which they are checked.
REASONS = ("not_utf8", "empty", "too_long", "length_ratio", "duplicate")

# A SentencePiece piece has at most 16 characters by default. A side of more than 16 * max_length
# characters is therefore too long; tokenizing a line of a megabyte to find out takes seconds.
_CHARACTERS_PER_TOKEN = 16
_ALWAYS_ALLOWED = 10  # characters of difference that are allowed at any ratio


@dataclass(frozen=True)
class CleanChunk:
    """Clean pairs of a chunk.

    Attributes:
        source: Source lines in UTF-8, each with a newline.
        target: Target lines in UTF-8, each with a newline.
        hashes: [pairs], equal for equal pairs.
        dropped: Number of dropped pairs by reason.
        alignment: Alignments, each with a newline; empty without alignments.
    """

    source: bytes
    target: bytes
    hashes: NDArray[np.uint64]
    dropped: dict[str, int] = field(default_factory=dict)
    alignment: bytes = b""


@dataclass(frozen=True)
class AlignedLines:
    """Alignments of a chunk, in Pharaoh format.

    Attributes:
        lines: Lines with line ends.
        name: Name of the file in messages.
        first: Number of the first line in the file, from 1.
    """

    lines: list[bytes]
    name: str
    first: int

    def read(self, row: int, source: str, target: str) -> str:
        """Return the alignment of a pair.

        Raises:
            InputError: It is damaged, or names words that the pair lacks.
        """
        line = self.lines[row].decode("ascii", "replace").strip()
        try:
            read_links(line, len(source.split()), len(target.split()))
        except ValueError as error:
            raise InputError(
                f"{self.name}, line {self.first + row}: {error}; an alignment has links of words "
                "as numbers from 0, the source word first, such as 0-0 1-2."
            ) from error
        return line


def clean_chunk(
    source: list[bytes],
    target: list[bytes],
    options: PrepareOptions,
    alignment: AlignedLines | None = None,
) -> CleanChunk:
    r"""Strip every line and drop unsuitable pairs; duplicates are kept.

    Args:
        source: Lines with line ends. Only \n ends a line; U+0085 or U+2028 may be inside.
        target: Target lines, one per source line.
        options: Limits of lengths and of their ratio.
        alignment: Alignments of the pairs; None for none.

    Raises:
        InputError: An alignment is damaged.
    """
    dropped = Counter[str]()
    kept_source: list[str] = []
    kept_target: list[str] = []
    kept_alignment: list[str] = []
    for row, (raw_source, raw_target) in enumerate(zip(source, target, strict=True)):
        try:
            text, translation = raw_source.decode().strip(), raw_target.decode().strip()
        except UnicodeDecodeError:
            dropped["not_utf8"] += 1
            continue
        reason = _reason_to_drop(len(text), len(translation), options)
        if reason is not None:
            dropped[reason] += 1
            continue
        kept_source.append(text + "\n")
        kept_target.append(translation + "\n")
        if alignment is not None:
            kept_alignment.append(alignment.read(row, text, translation) + "\n")
    return CleanChunk(
        "".join(kept_source).encode(),
        "".join(kept_target).encode(),
        _hash_pairs(kept_source, kept_target),
        dropped,
        "".join(kept_alignment).encode(),
    )


def _reason_to_drop(source: int, target: int, options: PrepareOptions) -> str | None:
    """Return the reason to drop a pair of `source` and `target` characters, if any."""
    shorter, longer = (source, target) if source < target else (target, source)
    if not shorter:
        return "empty"
    if longer > _CHARACTERS_PER_TOKEN * options.max_length:
        return "too_long"
    if longer > options.max_length_ratio * shorter + _ALWAYS_ALLOWED:
        return "length_ratio"
    return None


def _hash_pairs(source: list[str], target: list[str]) -> NDArray[np.uint64]:
    # 64 bits of a cryptographic hash: the probability of any collision among 40 million pairs is
    # 4e-5. Python's built-in hash differs between processes.
    digests = [
        hashlib.blake2b((text + translation).encode(), digest_size=8).digest()
        for text, translation in zip(source, target, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def first_occurrences(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mark the first occurrence of every value.

    Args:
        hashes: [pairs]. The peak memory for 40 million pairs is 1 GB.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    first = np.ones(len(hashes), dtype=np.bool_)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first
