"""Which pairs of a corpus are fit to train on, and how many are not, by reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from translate_trt.train.data.corpora import PrepareOptions

#: Why a pair is left out, in the order in which the reasons are tried.
REASONS = ("not_utf8", "empty", "too_long", "length_ratio", "duplicate")

# A piece has at most 16 characters (SentencePiece's default), so that a longer side cannot come to
# max_length tokens or fewer; tokenizing a line of a megabyte to find that out would take seconds.
_CHARACTERS_PER_TOKEN = 16
_ALWAYS_ALLOWED = 10  # characters of difference that no ratio forbids


@dataclass(frozen=True)
class CleanChunk:
    """Pairs that were kept.

    Attributes:
        source: their source lines, each with a newline, in UTF-8.
        target: likewise.
        hashes: [pairs], equal for equal pairs.
        dropped: pairs left out, by reason.
    """

    source: bytes
    target: bytes
    hashes: NDArray[np.uint64]
    dropped: dict[str, int] = field(default_factory=dict)


def clean_chunk(source: list[bytes], target: list[bytes], options: PrepareOptions) -> CleanChunk:
    r"""Strip every line and keep the pairs that are fit to train on, duplicates included.

    Args:
        source: lines with their ends; only \n ends one, so U+0085 or U+2028 may be inside.
        target: as many.
        options: what is fit.
    """
    dropped: dict[str, int] = {}
    kept_source: list[str] = []
    kept_target: list[str] = []
    for raw_source, raw_target in zip(source, target, strict=True):
        try:
            one, other = raw_source.decode().strip(), raw_target.decode().strip()
        except UnicodeDecodeError:
            dropped["not_utf8"] = dropped.get("not_utf8", 0) + 1
            continue
        reason = _reason_against(len(one), len(other), options)
        if reason is not None:
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        kept_source.append(one + "\n")
        kept_target.append(other + "\n")
    return CleanChunk(
        "".join(kept_source).encode(),
        "".join(kept_target).encode(),
        _hash_pairs(kept_source, kept_target),
        dropped,
    )


def _reason_against(source: int, target: int, options: PrepareOptions) -> str | None:
    """What speaks against a pair of so many characters each."""
    shorter, longer = (source, target) if source < target else (target, source)
    if not shorter:
        return "empty"
    if longer > _CHARACTERS_PER_TOKEN * options.max_length:
        return "too_long"
    if longer > options.max_length_ratio * shorter + _ALWAYS_ALLOWED:
        return "length_ratio"
    return None


def _hash_pairs(source: list[str], target: list[str]) -> NDArray[np.uint64]:
    # 64 bits of a cryptographic hash: among 40 million pairs, the chance that any two different
    # ones share theirs (and one is lost) is 4e-5. Python's own hash differs between processes.
    digests = [
        hashlib.blake2b((one + other).encode(), digest_size=8).digest()
        for one, other in zip(source, target, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def first_occurrences(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True for the first of every set of equal values.

    Args:
        hashes: [pairs]. 40 million of them take 1 GB of memory meanwhile.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    first = np.ones(len(hashes), dtype=np.bool_)
    first[order[1:]] = ordered[1:] != ordered[:-1]
    return first
