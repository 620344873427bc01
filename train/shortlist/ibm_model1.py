"""IBM Model 1 (Brown et al. 1993, section 4.1): lexical translation probabilities, learned by EM.

p(t | s) is the probability that source token s is translated by target token t. A target token is
aligned with any token of its source sentence, all positions being equally likely, or with NULL. The
source's end symbol, which has no translation, stands for NULL.

The table is sparse: it holds the pairs (s, t) that share a sentence, sorted by their key s * V + t.
Text is processed in chunks. Besides the text, memory holds the table (`MOST_ENTRIES`) and the
chunks in flight (`_CHUNK_LINKS`).
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from translate_trt.runtime.errors import OptionError
from translate_trt.train.worker_processes import WorkerPool

Integers = NDArray[Any]
Floats = NDArray[np.float64]

# Pairs (s, t) of the table: 32 bytes each, 90 while new pairs are merged into a full table.
MOST_ENTRIES = 1 << 25
# Links (source position, target position) of a chunk's sentences, at about 70 bytes each.
_CHUNK_LINKS = 1 << 22

_KEYS, _PROBABILITIES = "keys.npy", "probabilities.npy"


@dataclass(frozen=True)
class TokenPairs:
    """Sentence pairs, each side concatenated; every sentence ends with the end symbol.

    Attributes:
        source: Tokens of all source sentences.
        source_offsets: [pairs + 1] start of each source sentence, and the end of the last.
        target: Tokens of all target sentences.
        target_offsets: [pairs + 1] start of each target sentence, and the end of the last.
    """

    source: Integers
    source_offsets: NDArray[np.int64]
    target: Integers
    target_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def spread(self, count: int) -> TokenPairs:
        """Select `count` pairs, evenly spaced, since text is often a concatenation of corpora.

        Selected pairs of memory-mapped files are copied into memory.
        """
        if count >= len(self):
            return self
        rows = np.arange(count) * len(self) // count
        return TokenPairs(
            *_select(self.source, self.source_offsets, rows),
            *_select(self.target, self.target_offsets, rows),
        )


def _select(
    tokens: Integers, offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Integers, NDArray[np.int64]]:
    lengths = offsets[rows + 1] - offsets[rows]
    ends = np.cumsum(lengths)
    positions = np.arange(ends[-1]) + np.repeat(offsets[rows] - (ends - lengths), lengths)
    return tokens[positions], np.concatenate(([0], ends))


@dataclass(frozen=True)
class TranslationTable:
    """p(target | source), sorted by source and target.

    Attributes:
        source: [E] source tokens; the end symbol stands for NULL.
        target: [E] target tokens.
        probability: [E] float64; the probabilities of each source token sum to 1.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    probability: Floats


def learn_table(
    pairs: TokenPairs,
    vocabulary_size: int,
    iterations: int,
    pool: WorkerPool,
    most_entries: int = MOST_ENTRIES,
) -> TranslationTable:
    """Estimate the table by expectation maximization, from uniform probabilities.

    The result is the same for any number of processes: the chunks depend on the text alone, and
    are summed in order.

    Args:
        pairs: Training text.
        vocabulary_size: V, larger than every token.
        iterations: Iterations of expectation maximization, at least 1.
        pool: Worker processes, which read the table from temporary files (16 bytes per entry).
        most_entries: Maximum size of the table. Of a larger text, the pairs with the smallest share
            of their source token's counts are dropped while counting.

    Raises:
        OptionError: `iterations` is less than 1.
        TranslateTrtError: A process ended unexpectedly.
    """
    if iterations < 1:
        raise OptionError(f"iterations is {iterations}; it must be at least 1.")
    with (
        tempfile.TemporaryDirectory(prefix="translate-trt-") as name,
        tqdm(
            total=len(pairs) * (1 + iterations), desc="IBM Model 1", unit=" pairs",
            unit_scale=True, disable=None,
        ) as bar,
    ):  # fmt: skip
        directory = Path(name)
        counts = _Counts(vocabulary_size, most_entries)
        count = functools.partial(_count, vocabulary_size)
        for keys, numbers in pool.map(count, _chunks(pairs, bar)):
            counts.add(keys, numbers)
        keys = counts.merged()[0]
        np.save(directory / _KEYS, keys)
        source = keys // vocabulary_size
        starts = np.flatnonzero(np.diff(source, prepend=-1))
        rows = np.diff(starts, append=len(keys))
        probability = np.ones(len(keys))  # uniform: only ratios matter
        expect = functools.partial(_expect, vocabulary_size, directory)
        for _ in range(iterations):
            np.save(directory / _PROBABILITIES, probability)
            expected = np.zeros(len(keys))
            for entries, shares in pool.map(expect, _chunks(pairs, bar)):
                expected[entries] += shares
            probability = expected / np.repeat(np.add.reduceat(expected, starts), rows)
    return TranslationTable(source, keys % vocabulary_size, probability)


# ---- chunks of text ----


def _chunks(pairs: TokenPairs, bar: tqdm[Any]) -> Iterator[TokenPairs]:
    """Divide text into chunks of about `_CHUNK_LINKS` links each."""
    lengths = np.diff(pairs.source_offsets), np.diff(pairs.target_offsets)
    chunk = np.cumsum(lengths[0] * (lengths[1] - 1)) // _CHUNK_LINKS
    begins = np.flatnonzero(np.diff(chunk, prepend=-1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(pairs)], strict=True):
        yield TokenPairs(
            *_slice(pairs.source, pairs.source_offsets, begin, end),
            *_slice(pairs.target, pairs.target_offsets, begin, end),
        )
        bar.update(end - begin)


def _slice(
    tokens: Integers, offsets: NDArray[np.int64], begin: int, end: int
) -> tuple[Integers, NDArray[np.int64]]:
    first = offsets[begin]
    return tokens[first : offsets[end]], offsets[begin : end + 1] - first


@dataclass(frozen=True)
class _Links:
    """M links of each target token with each token of its source sentence.

    Attributes:
        keys: [U] distinct pairs (s, t), sorted.
        key: [M] index of each link's pair in `keys`; links of a target token are consecutive.
        starts: [T] first link of each target token.
        sizes: [T] number of links of each target token.
    """

    keys: NDArray[np.int64]
    key: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


def _links(pairs: TokenPairs, vocabulary_size: int) -> _Links:
    inside = np.ones(len(pairs.target), np.bool_)
    inside[pairs.target_offsets[1:] - 1] = False  # the target's end symbol is not aligned
    lengths = np.diff(pairs.source_offsets)
    sentence = np.repeat(np.arange(len(pairs)), np.diff(pairs.target_offsets) - 1)
    sizes = lengths[sentence]
    starts = np.cumsum(sizes) - sizes
    source = np.arange(int(sizes.sum())) + np.repeat(
        pairs.source_offsets[:-1][sentence] - starts, sizes
    )
    keys = pairs.source.astype(np.int64)[source] * vocabulary_size
    keys += np.repeat(pairs.target[inside].astype(np.int64), sizes)
    return _Links(*_unique(keys), starts, sizes)


def _unique(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compute `np.unique(keys, return_inverse=True)` in half the time, without an indirect sort."""
    # Key and index are packed: 2 * 17 bits for 131,072 tokens, 22 bits for the links of a chunk.
    bits = len(keys).bit_length()
    packed = (keys << bits) | np.arange(len(keys))
    packed.sort()
    ordered = packed >> bits
    first = np.diff(ordered, prepend=-1) != 0
    inverse = np.empty_like(keys)
    inverse[packed & ((1 << bits) - 1)] = np.cumsum(first) - 1
    return ordered[first], inverse


def _count(vocabulary_size: int, pairs: TokenPairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the pairs (s, t) of a chunk."""
    links = _links(pairs, vocabulary_size)
    return links.keys, np.bincount(links.key, minlength=len(links.keys))


def _expect(
    vocabulary_size: int, table: Path, pairs: TokenPairs
) -> tuple[NDArray[np.int64], Floats]:
    """Compute the E step of a chunk: its entries of the table, and their expected counts."""
    keys = np.load(table / _KEYS, mmap_mode="r")
    probability = np.load(table / _PROBABILITIES, mmap_mode="r")
    links = _links(pairs, vocabulary_size)
    entries = np.minimum(np.searchsorted(keys, links.keys), len(keys) - 1)
    known = keys[entries] == links.keys
    weights = np.where(known, probability[entries], 0.0)[links.key]
    totals = np.add.reduceat(weights, links.starts) if len(weights) else weights
    totals[totals == 0] = np.inf  # all pairs of the target token were dropped from the table
    weights /= np.repeat(totals, links.sizes)
    expected = np.bincount(links.key, weights, minlength=len(links.keys))
    return entries[known], expected[known]


class _Counts:
    """Counts of the pairs (s, t), merged from time to time."""

    def __init__(self, vocabulary_size: int, most_entries: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._most = most_entries
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._unmerged = 0

    def add(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._parts.append((keys, counts))
        self._unmerged += len(keys)
        if self._unmerged > self._most // 2:
            self.merged()

    def merged(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Merge all counts; return the sorted keys and their counts."""
        keys = np.concatenate([part[0] for part in self._parts])
        counts = np.concatenate([part[1] for part in self._parts])
        self._parts.clear()
        order = np.argsort(keys)
        keys = keys[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        keys, counts = keys[starts], np.add.reduceat(counts[order], starts)
        if len(keys) > self._most:
            kept = self._least_rare(keys, counts)
            keys, counts = keys[kept], counts[kept]
        self._parts, self._unmerged = [(keys, counts)], 0
        return keys, counts

    def _least_rare(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Select the entries with the largest share of their source token's counts.

        Absolute counts would drop all translations of rare tokens.
        """
        source = keys // self._vocabulary_size
        share = counts / np.bincount(source, counts)[source]
        return np.sort(np.argpartition(share, -self._most)[-self._most :])
