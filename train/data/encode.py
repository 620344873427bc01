"""Tokenization into the token files of a split, which train/data/token_files.py memory-maps."""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END
from translate_trt.train.data.alignments import LINK_TYPE, TokenLinker
from translate_trt.train.data.segmentation import Segmentation

SIDES = ("source", "target")
#: First token of sources by a machine, a control symbol of the vocabulary (Caswell et al. 2019,
#: "Tagged Back-Translation"): no text at inference is tokenized to it.
BACK_TRANSLATED = "<BT>"
#: Control symbol before sources whose translation is in a language (Johnson et al. 2017).
LANGUAGE_TAG = "<2{}>"
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
def _pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.source_pieces(range(tokenizer.source_vocabulary_size))


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
    controls: Sequence[str] = (),
    segmentation: Segmentation | None = None,
) -> Encoded:
    """Tokenize pairs, and drop those with an empty or too long side.

    Args:
        source: Lines without line ends.
        target: Target lines, one per source line.
        tokenizers: SentencePiece models of source and target; may be the same file.
        max_length: Maximum tokens per side, the end symbol included; None for no limit.
        kind: numpy's name of the token type (`token_type`).
        alignments: Alignment of each pair in Pharaoh format; None for none.
        controls: Control symbols that each source begins with, and that count as its tokens.
        segmentation: Random segmentation of both sides; None for the usual one.
    """
    model = _tokenizer(tokenizers, tuple(file.stat().st_mtime_ns for file in tokenizers))
    if segmentation is None:
        sides = model.encode_source_batch(source), model.encode_target_batch(target)
    else:
        sides = (
            segmentation.encode(tokenizers[0], source), segmentation.encode(tokenizers[1], target)
        )  # fmt: skip
    begin = [_pieces(model).index(control) for control in controls]
    kept: tuple[list[list[int]], list[list[int]]] = ([], [])
    rows: list[int] = []
    dropped = {"empty": 0, "too_long": 0}
    for row, pair in enumerate(zip(*sides, strict=True)):
        if not pair[0] or not pair[1]:
            dropped["empty"] += 1
        elif max_length is not None and max(len(begin) + len(pair[0]), len(pair[1])) >= max_length:
            dropped["too_long"] += 1
        else:
            kept[0].append(pair[0])
            kept[1].append(pair[1])
            rows.append(row)
    read = [begin + sentence for sentence in kept[0]]
    tokens = _flatten(read, kind), _flatten(kept[1], kind)
    lengths = _lengths(read), _lengths(kept[1])
    if alignments is None:
        return Encoded(tokens, lengths, dropped)
    linker = _linker(model)
    found = [
        linker.link((source[row], target[row]), pair, alignments[row])
        for row, pair in zip(rows, zip(*kept, strict=True), strict=True)
    ]
    shift = (0, len(begin))  # of target and source positions
    links = [np.zeros((0, 2), np.int64) if one is None else one + shift for one in found]
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


class _Stream:
    """Files of the concatenated elements of all pairs, and of the offset of each pair's.

    Attributes:
        total: Number of elements written so far.
        longest: Largest number of elements of a pair.
    """

    def __init__(self, offsets: BinaryIO, elements: BinaryIO) -> None:
        self._offsets, self._elements = offsets, elements
        self.total = self.longest = 0
        offsets.write(np.zeros(1, np.int64).tobytes())

    def append(self, elements: bytes, counts: NDArray[np.int64]) -> None:
        self._elements.write(elements)
        self._offsets.write((self.total + np.cumsum(counts)).tobytes())
        self.total += int(counts.sum())
        self.longest = max(self.longest, int(counts.max(initial=0)))


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
        self._paths = [directory / file for file in split_files(name, linked)]
        self._stack = contextlib.ExitStack()
        self._files: list[BinaryIO] = []
        self._streams: list[_Stream] = []
        self.pairs = self.unlinked = 0

    def __enter__(self) -> Self:
        self._files = [self._stack.enter_context(path.open("wb")) for path in self._paths]
        self._streams = list(map(_Stream, self._files[::2], self._files[1::2]))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None:
                for file in self._files:
                    file.flush()
                    os.fsync(file.fileno())

    def append(self, encoded: Encoded) -> None:
        """Append pairs to the files."""
        self.pairs += len(encoded.lengths[0])
        source, target, *alignment = self._streams
        source.append(encoded.tokens[0], encoded.lengths[0])
        target.append(encoded.tokens[1], encoded.lengths[1])
        if alignment and encoded.links is not None:
            positions, counts = encoded.links
            alignment[0].append(positions, 2 * counts)
            self.unlinked += encoded.unlinked

    def entry(self) -> dict[str, Any]:
        """Return the split's entry in data.json; the files must be closed."""
        source, target, *alignment = self._streams
        links = {}
        if alignment:
            links = {"link_elements": alignment[0].total, "unlinked": self.unlinked}
        return {
            "pairs": self.pairs,
            "source_tokens": source.total,
            "target_tokens": target.total,
            "longest_source": source.longest,
            "longest_target": target.longest,
            **links,
            "fingerprint": fingerprint_files(self._paths),
        }


def split_files(name: str, linked: bool) -> list[str]:
    """Return the names of the token files of a split, in the order of their fingerprint.

    Args:
        name: Name of the split.
        linked: Whether the pairs have alignments.
    """
    streams = [(side, "tokens") for side in SIDES] + [(ALIGNMENT, "links")] * linked
    return [f"{name}.{side}.{part}" for side, kind in streams for part in ("offsets", kind)]


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
