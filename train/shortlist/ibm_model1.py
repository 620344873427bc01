"""IBM Model 1 (Brown et al. 1993, section 4.1): lexical translation probabilities, learned by EM.

p(t | s) is the probability that source token s is translated by target token t. A target token may
come from any token of its source sentence, all places alike, or from none of them, the NULL word.
Here the source's end symbol, which translates nothing itself, stands for NULL.

The table is sparse: the pairs (s, t) that share a sentence, sorted by their key s * V + t. Text
goes through in chunks; beside it, memory is that of the table (`MOST_ENTRIES`) and of the chunks
under way (`_CHUNK_PLACES`).
"""

from __future__ import annotations

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

# Pairs (s, t) of the table: 32 bytes each, and 90 where new ones are merged into a full one.
MOST_ENTRIES = 1 << 25
# Source places times target places of a chunk's sentences, at about 70 bytes each.
_CHUNK_PLACES = 1 << 22

_KEYS, _PROBABILITIES = "keys.npy", "probabilities.npy"


@dataclass(frozen=True)
class TokenPairs:
    """Sentence pairs, each side end to end; every sentence ends with the end symbol.

    Attributes:
        source: tokens of all source sentences.
        source_offsets: [pairs + 1], where each sentence begins, and the end of the last.
        target: the same of the target.
        target_offsets: likewise.
    """

    source: Integers
    source_offsets: NDArray[np.int64]
    target: Integers
    target_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def spread(self, count: int) -> TokenPairs:
        """That many of the pairs, evenly spaced: text is often several corpora, one after another.

        Those of memory-mapped files are copied into memory.
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
    places = np.arange(ends[-1]) + np.repeat(offsets[rows] - (ends - lengths), lengths)
    return tokens[places], np.concatenate(([0], ends))


@dataclass(frozen=True)
class TranslationTable:
    """p(target | source), sorted by source and target.

    Attributes:
        source: [E]; the end symbol stands for NULL.
        target: [E].
        probability: float64 [E]; those of each source token sum to 1.
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
    """Estimate the table by expectation maximization, from equal probabilities.

    Which chunks there are depends on the text alone, and they are added up in their order: the
    result is the same for any number of processes.

    Args:
        pairs: the text.
        vocabulary_size: V, larger than every token.
        iterations: of expectation and maximization, at least 1.
        pool: its processes read the table from files in a temporary directory (16 bytes an entry).
        most_entries: of the table. Where the text has more, pairs that are rare beside their source
            token are left out, and as counting goes on, so are some that would become frequent.

    Raises:
        OptionError: no iteration.
        TranslateTrtError: a process ended unexpectedly.
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
        tasks = _tasks(pairs, vocabulary_size, None, bar)
        for keys, numbers in pool.map(_count, tasks):
            counts.add(keys, numbers)
        keys = counts.merged()[0]
        np.save(directory / _KEYS, keys)
        source = keys // vocabulary_size
        starts = np.flatnonzero(np.diff(source, prepend=-1))
        rows = np.diff(starts, append=len(keys))
        probability = np.ones(len(keys))  # only their ratio matters, so that this is uniform
        for _ in range(iterations):
            np.save(directory / _PROBABILITIES, probability)
            expected = np.zeros(len(keys))
            tasks = _tasks(pairs, vocabulary_size, directory, bar)
            for places, shares in pool.map(_expect, tasks):
                expected[places] += shares
            probability = expected / np.repeat(np.add.reduceat(expected, starts), rows)
    return TranslationTable(source, keys % vocabulary_size, probability)


# ---- chunks of text ----


@dataclass(frozen=True)
class _Task:
    """A chunk of pairs, and where the table lies (None while it is counted)."""

    pairs: TokenPairs
    vocabulary_size: int
    table: Path | None


def _tasks(
    pairs: TokenPairs, vocabulary_size: int, table: Path | None, bar: tqdm[Any]
) -> Iterator[_Task]:
    lengths = np.diff(pairs.source_offsets), np.diff(pairs.target_offsets)
    chunk = np.cumsum(lengths[0] * (lengths[1] - 1)) // _CHUNK_PLACES
    begins = np.flatnonzero(np.diff(chunk, prepend=-1)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(pairs)], strict=True):
        part = TokenPairs(
            *_slice(pairs.source, pairs.source_offsets, begin, end),
            *_slice(pairs.target, pairs.target_offsets, begin, end),
        )
        yield _Task(part, vocabulary_size, table)
        bar.update(end - begin)


def _slice(
    tokens: Integers, offsets: NDArray[np.int64], begin: int, end: int
) -> tuple[Integers, NDArray[np.int64]]:
    first = offsets[begin]
    return tokens[first : offsets[end]], offsets[begin : end + 1] - first


@dataclass(frozen=True)
class _Places:
    """Each target token beside each token of its source sentence: M places.

    Attributes:
        keys: [U], the different pairs (s, t), sorted.
        key: [M], index of each place's pair in `keys`; places of one target token are consecutive.
        starts: [T], the first place of each target token.
        sizes: [T], source tokens beside it.
    """

    keys: NDArray[np.int64]
    key: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


def _places(task: _Task) -> _Places:
    pairs = task.pairs
    inside = np.ones(len(pairs.target), np.bool_)
    inside[pairs.target_offsets[1:] - 1] = False  # the end symbol translates nothing
    lengths = np.diff(pairs.source_offsets)
    sentence = np.repeat(np.arange(len(pairs)), np.diff(pairs.target_offsets) - 1)
    sizes = lengths[sentence]
    starts = np.cumsum(sizes) - sizes
    source = np.arange(int(sizes.sum())) + np.repeat(
        pairs.source_offsets[:-1][sentence] - starts, sizes
    )
    keys = pairs.source.astype(np.int64)[source] * task.vocabulary_size
    keys += np.repeat(pairs.target[inside].astype(np.int64), sizes)
    return _Places(*_unique(keys), starts, sizes)


def _unique(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`np.unique(keys, return_inverse=True)`, which takes twice as long: it sorts indirectly."""
    # One number holds key and place: 2 * 17 bits for 131,072 pieces, 22 for the places of a chunk.
    bits = len(keys).bit_length()
    packed = (keys << bits) | np.arange(len(keys))
    packed.sort()
    ordered = packed >> bits
    first = np.diff(ordered, prepend=-1) != 0
    inverse = np.empty_like(keys)
    inverse[packed & ((1 << bits) - 1)] = np.cumsum(first) - 1
    return ordered[first], inverse


def _count(task: _Task) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of a chunk, and how often each comes."""
    places = _places(task)
    return places.keys, np.bincount(places.key, minlength=len(places.keys))


def _expect(task: _Task) -> tuple[NDArray[np.int64], Floats]:
    """The E step: entries of the table that a chunk has, and their expected counts in it."""
    assert task.table is not None
    keys = np.load(task.table / _KEYS, mmap_mode="r")
    probability = np.load(task.table / _PROBABILITIES, mmap_mode="r")
    places = _places(task)
    entries = np.minimum(np.searchsorted(keys, places.keys), len(keys) - 1)
    known = keys[entries] == places.keys
    weights = np.where(known, probability[entries], 0.0)[places.key]
    totals = np.add.reduceat(weights, places.starts) if len(weights) else weights
    totals[totals == 0] = np.inf  # nothing of it is in the table any more
    weights /= np.repeat(totals, places.sizes)
    expected = np.bincount(places.key, weights, minlength=len(places.keys))
    return entries[known], expected[known]


class _Counts:
    """How often each pair (s, t) comes; what is new is merged into the rest by and by."""

    def __init__(self, vocabulary_size: int, most_entries: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._most = most_entries
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._waiting = 0

    def add(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._parts.append((keys, counts))
        self._waiting += len(keys)
        if self._waiting > self._most // 2:
            self.merged()

    def merged(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keys, sorted, and their counts."""
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
        self._parts, self._waiting = [(keys, counts)], 0
        return keys, counts

    def _least_rare(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Entries to keep: those with the largest share of their source token's counts.

        Not those with the largest counts: all translations of a rare token would go.
        """
        source = keys // self._vocabulary_size
        share = counts / np.bincount(source, counts)[source]
        return np.sort(np.argpartition(share, -self._most)[-self._most :])
