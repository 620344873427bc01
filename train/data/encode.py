"""Tokenization into the token files of a split, which train/data/token_files.py memory-maps."""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END
from translate_trt.train.data.alignments import LINK_TYPE, TokenLinker

SIDES = ("source", "target")
#: Files of aligned tokens, beside those of the sides.
ALIGNMENT = "alignment"


def token_type(vocabulary_size: int) -> str:
    """Return numpy's name of the smallest unsigned type that holds every id."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


@dataclass(frozen=True)
class Encoded:
    """Tokenized pairs in the format of token files, for source and target each.

    Attributes:
        tokens: Concatenated tokens of all sentences, each with its end symbol.
        lengths: [pairs] tokens of each sentence, the end symbol included.
        dropped: Number of dropped pairs by reason.
        links: Concatenated links of all pairs, target and source position in turn, and [pairs]
            links of each; None without alignments.
        unlinked: Number of pairs whose alignment is lost, because the tokens divide the text into
            other words.
    """

    tokens: tuple[bytes, bytes]
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]]
    dropped: dict[str, int]
    links: tuple[bytes, NDArray[np.int64]] | None = None
    unlinked: int = 0


@functools.lru_cache(maxsize=1)
def _tokenizer(files: tuple[Path, Path], modified: tuple[int, ...]) -> Tokenizer:
    """Cache the tokenizer of a process; `modified` detects new files of the same names."""
    return Tokenizer(*files)


@functools.lru_cache(maxsize=1)
def _linker(tokenizer: Tokenizer) -> TokenLinker:
    return TokenLinker(tokenizer)


def encode_lines(
    source: list[str],
    target: list[str],
    tokenizers: tuple[Path, Path],
    max_length: int | None,
    kind: str,
    alignments: Sequence[str] | None = None,
) -> Encoded:
    """Tokenize pairs, and drop those with an empty or too long side.

    Args:
        source: Lines without line ends.
        target: Target lines, one per source line.
        tokenizers: SentencePiece models of source and target; may be the same file.
        max_length: Maximum tokens per side, the end symbol included; None for no limit.
        kind: numpy's name of the token type (`token_type`).
        alignments: Alignment of each pair in Pharaoh format; None for none.
    """
    model = _tokenizer(tokenizers, tuple(file.stat().st_mtime_ns for file in tokenizers))
    sides = model.encode_source_batch(source), model.encode_target_batch(target)
    kept: tuple[list[list[int]], list[list[int]]] = ([], [])
    rows: list[int] = []
    dropped = {"empty": 0, "too_long": 0}
    for row, pair in enumerate(zip(*sides, strict=True)):
        if not pair[0] or not pair[1]:
            dropped["empty"] += 1
        elif max_length is not None and max(map(len, pair)) >= max_length:
            dropped["too_long"] += 1
        else:
            kept[0].append(pair[0])
            kept[1].append(pair[1])
            rows.append(row)
    tokens = _flatten(kept[0], kind), _flatten(kept[1], kind)
    lengths = _lengths(kept[0]), _lengths(kept[1])
    if alignments is None:
        return Encoded(tokens, lengths, dropped)
    linker = _linker(model)
    found = [
        linker.link((source[row], target[row]), pair, alignments[row])
        for row, pair in zip(rows, zip(*kept, strict=True), strict=True)
    ]
    links = [np.zeros((0, 2), np.int64) if one is None else one for one in found]
    return Encoded(
        tokens, lengths, dropped,
        (
            b"".join(one.astype(LINK_TYPE).tobytes() for one in links),
            np.array([len(one) for one in links], dtype=np.int64),
        ),
        sum(one is None for one in found),
    )  # fmt: skip


def _flatten(sentences: list[list[int]], kind: str) -> bytes:
    tokens: list[int] = []
    for sentence in sentences:
        tokens.extend(sentence)
        tokens.append(END)
    return np.array(tokens, dtype=kind).tobytes()


def _lengths(sentences: list[list[int]]) -> NDArray[np.int64]:
    return np.array([len(sentence) + 1 for sentence in sentences], dtype=np.int64)


class SplitWriter:
    """Incremental writer of the token files of a split, which are fsynced at the end.

    The files are little-endian, like all supported processors.

    Args of the constructor:
        directory: Directory of the files.
        name: Name of the split, and prefix of the file names.
        linked: Whether the pairs have alignments.

    Attributes:
        pairs: Number of pairs written so far.
        unlinked: Number of them whose alignment is lost.
    """

    def __init__(self, directory: Path, name: str, linked: bool = False) -> None:
        self._names = [f"{name}.{side}" for side in SIDES]
        self._linked = f"{name}.{ALIGNMENT}" if linked else None
        self._links: list[BinaryIO] = []
        self._link_elements = self.unlinked = 0
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._tokens: list[BinaryIO] = []
        self._offsets: list[BinaryIO] = []
        self.pairs = 0
        self._total = [0, 0]
        self._longest = [0, 0]

    def __enter__(self) -> Self:
        for name in self._names:
            self._tokens.append(self._open(f"{name}.tokens"))
            self._offsets.append(self._open(f"{name}.offsets"))
            self._offsets[-1].write(np.zeros(1, np.int64).tobytes())
        if self._linked is not None:
            self._links = [self._open(f"{self._linked}.{part}") for part in ("links", "offsets")]
            self._links[1].write(np.zeros(1, np.int64).tobytes())
        return self

    def _open(self, name: str) -> BinaryIO:
        return self._stack.enter_context((self._directory / name).open("wb"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            if kind is None:
                for file in (*self._tokens, *self._offsets, *self._links):
                    file.flush()
                    os.fsync(file.fileno())

    def append(self, encoded: Encoded) -> None:
        """Append pairs to the files."""
        self.pairs += len(encoded.lengths[0])
        for side, lengths in enumerate(encoded.lengths):
            self._tokens[side].write(encoded.tokens[side])
            self._offsets[side].write((self._total[side] + np.cumsum(lengths)).tobytes())
            self._total[side] += int(lengths.sum())
            self._longest[side] = max(self._longest[side], int(lengths.max(initial=0)))
        if self._links and encoded.links is not None:
            positions, counts = encoded.links
            self._links[0].write(positions)
            self._links[1].write((self._link_elements + 2 * np.cumsum(counts)).tobytes())
            self._link_elements += 2 * int(counts.sum())
            self.unlinked += encoded.unlinked

    def entry(self) -> dict[str, Any]:
        """Return the split's entry in data.json; the files must be closed."""
        paths = [
            self._directory / f"{name}.{part}"
            for name in self._names
            for part in ("offsets", "tokens")
        ]
        links: dict[str, Any] = {}
        if self._linked is not None:
            paths += [self._directory / f"{self._linked}.{part}" for part in ("offsets", "links")]
            links = {"link_elements": self._link_elements, "unlinked": self.unlinked}
        return {
            "pairs": self.pairs,
            "source_tokens": self._total[0],
            "target_tokens": self._total[1],
            "longest_source": self._longest[0],
            "longest_target": self._longest[1],
            **links,
            "fingerprint": fingerprint_files(paths),
        }


def fingerprint_files(paths: Sequence[Path]) -> int:
    """Return the CRC-32 of concatenated files.

    For offsets and tokens of the source, of the target, and offsets and positions of links,
    `ParallelData.fingerprint` is equal.
    """
    checksum = 0
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
    return checksum
