"""Lexical shortlists of Marian: lex.s2t, text of extract_lex, and lex.bin, which marian-conv makes.

Both may be compressed. A text has a line `TARGET SOURCE PROBABILITY` for each translation. A binary
file is little-endian (src/data/shortlist.cpp in Marian):

- u64 magic number, u64 checksum of all that follows
- u64 number F of frequent tokens, u64 number of translations of a token (at most)
- u64 number of offsets (one more than the source vocabulary), u64 number of translations
- the offsets, u64: translations of token i are those from offset i to i + 1
- the translations, u32

The first F tokens of the target vocabulary, which is sorted by frequency, are in every list. With
one vocabulary for both languages, so are the tokens of the source. Marian also extends a list to a
multiple of eight tokens, which its matrix multiplication needs; an imported shortlist does not.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from translate_trt.export.importers.input_files import damaged
from translate_trt.export.importers.shortlist_checks import MOST, Fit, check_sizes
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.compression import decompressed, reading_compressed
from translate_trt.train.config import UNKNOWN
from translate_trt.train.shortlist.table import (
    Shortlist,
    no_copies,
    shared_copies,
    shortlist_of_entries,
)

log = logging.getLogger("translate_trt")

_MAGIC = 0xF11A48D5013417F5
_HEADER = struct.Struct("<6Q")
_U64, _U32 = np.dtype("<u8"), np.dtype("<u4")
# Of hash_combine in src/common/hash.h.
_GOLDEN, _WORD = 0x9E3779B9, (1 << 64) - 1
# Not a token, in text.
_NULL = b"NULL"
_MAKE_AGAIN = "Make it again with marian-conv --shortlist lex.s2t 100 100."


@dataclass(frozen=True)
class ShortlistFile:
    """File of a shortlist, and Marian's --shortlist options for text.

    Attributes:
        path: Path of the file.
        frequent: Number of tokens that are in every list.
        best: Number of translations of a token.
        threshold: Probability that a translation must exceed.
    """

    path: Path
    frequent: int = 100
    best: int = 100
    threshold: float = 0.0


@dataclass(frozen=True)
class _Lists:
    """Lists in Marian's token ids.

    Attributes:
        frequent: Number of tokens in every list.
        sources: [E] source token of each translation.
        targets: [E] the translations.
        probabilities: [E] float32.
    """

    frequent: int
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def import_shortlist(
    file: ShortlistFile, token_maps: tuple[TokenMap, TokenMap], tokenizer_sha256: str
) -> Shortlist:
    """Read a shortlist, and convert it to our token ids.

    Args:
        file: The file and its options.
        token_maps: Maps of source and target; the same object for a shared vocabulary.
        tokenizer_sha256: Hash of the tokenizers, for the table.

    Raises:
        InputError: The file is missing, damaged, or of another vocabulary.
    """
    try:
        with file.path.open("rb") as opened, reading_compressed(str(file.path)):
            head, stream = decompressed(opened, str(file.path))
            head += stream.read(_U64.itemsize - len(head))
            read = _read_binary if head == struct.pack("<Q", _MAGIC) else _read_text
            lists = read(file, token_maps, head, stream)
    except OSError as error:
        raise InputError(
            f"cannot read the shortlist {file.path}: {error.strerror}; copy the file there."
        ) from error
    _check_sizes(file.path, lists, token_maps)
    sources, targets = (_our_ids(token_map) for token_map in token_maps)
    shared = token_maps[0] is token_maps[1]
    size = token_maps[0].size
    return shortlist_of_entries(
        sources[lists.sources],
        targets[lists.targets],
        lists.probabilities,
        frequent=targets[: lists.frequent],
        copies=shared_copies(size) if shared else no_copies(size),
        vocabulary_size=token_maps[1].size,
        tokenizer_sha256=tokenizer_sha256,
    )


def _our_ids(token_map: TokenMap) -> NDArray[np.int64]:
    """Return our id of each of Marian's; none is PAD or START, which Marian lacks."""
    ids = {row: index for index, row in reversed(list(enumerate(token_map.rows)))}
    return np.array([ids[row] for row in range(token_map.count)], dtype=np.int64)


def _check_sizes(path: Path, lists: _Lists, token_maps: tuple[TokenMap, TokenMap]) -> None:
    for side, found, token_map in (
        ("source", lists.sources, token_maps[0]), ("target", lists.targets, token_maps[1]),
    ):  # fmt: skip
        if found.size and found.max() >= token_map.count:
            raise InputError(
                f"{path} has the {side} token {found.max():,}, but the {side} vocabulary has "
                f"{token_map.count:,}; the shortlist belongs to another model."
            )
    longest = np.bincount(lists.sources).max() if lists.sources.size else 0
    check_sizes(path, lists.frequent, int(longest), _MAKE_AGAIN)
    if lists.frequent < 1:
        raise InputError(
            f"{path} has no frequent tokens, with which translations end. {_MAKE_AGAIN}"
        )


def _read_text(
    file: ShortlistFile, token_maps: tuple[TokenMap, TokenMap], head: bytes, stream: IO[bytes]
) -> _Lists:
    """Read a text, of which `head` has been read, and select the best translations like Marian."""
    # Marian's id of each token.
    ids = [
        {side.names[index]: row for row, index in enumerate(_our_ids(side).tolist())}
        for side in token_maps
    ]
    unknown = [x[y.names[UNKNOWN]] for x, y in zip(ids, token_maps, strict=True)]
    best: dict[int, dict[int, float]] = {}
    fit = Fit(file.path, ids[0], ids[1])
    lines: Iterable[bytes] = chain((head + stream.readline()).splitlines(), stream)
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            target, source, text = words
            probability = float(text)
            names = target.decode("utf-8"), source.decode("utf-8")
        except ValueError as error:
            raise _not_a_shortlist(file.path, number, line) from error
        if not 0 <= probability < math.inf:
            raise _not_a_shortlist(file.path, number, line)
        if _NULL in (target, source):
            continue
        fit.add(names[1], names[0])
        row = ids[0].get(names[1], unknown[0])
        best.setdefault(row, {})[ids[1].get(names[0], unknown[1])] = probability
    if not best:
        raise InputError(f"the shortlist {file.path} is empty; copy it again.")
    fit.check()
    entries = [
        (row, target, probability)
        for row, found in best.items()
        for target, probability in _best(found, file)
    ]
    table = np.array(entries, dtype=np.float64).reshape(-1, 3)
    return _Lists(
        file.frequent,
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        table[:, 2].astype(np.float32),
    )


def _best(found: dict[int, float], file: ShortlistFile) -> list[tuple[int, float]]:
    ranked = sorted(found.items(), key=lambda item: (-item[1], -item[0]))
    return [item for item in ranked[: file.best] if item[1] > file.threshold]


def _not_a_shortlist(path: Path, number: int, line: bytes) -> InputError:
    shown = line.decode("utf-8", "replace").strip()[:60]
    return InputError(
        f"{path}, line {number}: {shown!r} is not a target token, a source token and a "
        "probability; give the lex.s2t or lex.bin of the model."
    )


def _read_binary(
    file: ShortlistFile, token_maps: tuple[TokenMap, TokenMap], head: bytes, stream: IO[bytes]
) -> _Lists:
    path, tokens = file.path, token_maps[0].count
    largest = _HEADER.size + (tokens + 1) * _U64.itemsize + tokens * MOST * _U32.itemsize
    content = head + stream.read(largest)
    if len(content) < _HEADER.size:
        raise damaged(path, f"it has {len(content)} bytes")
    _, checksum, frequent, best, offset_count, count = _HEADER.unpack_from(content)
    needed = _HEADER.size + offset_count * _U64.itemsize + count * _U32.itemsize
    if needed != len(content):
        raise damaged(
            path, f"{offset_count:,} offsets and {count:,} translations need {needed:,} bytes, but "
            f"it has {len(content):,}",
        )  # fmt: skip
    if offset_count > tokens + 1:
        raise InputError(
            f"{path} has lists of {offset_count - 1:,} source tokens, but the source vocabulary "
            f"has {tokens:,}; the shortlist belongs to another model."
        )
    offsets = np.frombuffer(content, _U64, offset_count, _HEADER.size)
    targets = np.frombuffer(content, _U32, count, needed - count * _U32.itemsize)
    if offset_count < 1 or offsets[0] or offsets[-1] != count or (offsets[1:] < offsets[:-1]).any():
        raise damaged(path, f"its offsets do not ascend from 0 to {count:,}")
    ends = offsets.astype(np.int64)
    lengths = ends[1:] - ends[:-1]
    if lengths.size and lengths.max() > best:
        raise damaged(path, f"a token has {lengths.max():,} translations, more than {best:,}")
    if _checksum(content) != checksum:
        log.warning(
            "%s: its checksum is wrong; the file may be damaged. Copy it again if you can.", path
        )
    sources = np.repeat(np.arange(len(lengths)), lengths)
    # The file has no probabilities: all translations of a token are equal.
    probabilities = (1 / lengths[sources]).astype(np.float32)
    return _Lists(frequent, sources, targets.astype(np.int64), probabilities)


def _checksum(content: bytes) -> int:
    """Compute Marian's hash of all 8-byte words after the checksum."""
    seed = 0
    for (word,) in struct.iter_unpack("<Q", content[16 : len(content) // 8 * 8]):
        seed ^= (word + _GOLDEN + (seed << 6) + (seed >> 2)) & _WORD
        seed &= _WORD
    return seed
