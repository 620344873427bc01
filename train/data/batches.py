"""Token arrays of parallel text, and length-sorted batching."""

from __future__ import annotations

import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from translate_trt.runtime.errors import InputError
from translate_trt.train.config import END, PAD, START
from translate_trt.train.cuda_graphs import WIDTH_STEP, padded_shape
from translate_trt.train.data.alignments import TokenLinks
from translate_trt.train.model import Transformer, padding_bias, source_padding_bias
from translate_trt.train.packing import Packings, packing

log = logging.getLogger("translate_trt")

# int32 in memory; uint16 or uint32 in the files of `translate-trt data prepare`.
Tokens = NDArray[np.int32] | NDArray[np.uint16] | NDArray[np.uint32]
Rows = NDArray[np.int32] | NDArray[np.int64]

_BLOCK = 1 << 20  # elements read at a time for a checksum


@dataclass(frozen=True)
class TokenArray:
    """Concatenated sentences: sentence i is tokens[offsets[i] : offsets[i + 1]].

    Both arrays are flat, and may be memory-mapped files (train/data/token_files.py).
    """

    tokens: Tokens
    offsets: NDArray[np.int64]

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> TokenArray:
        """Concatenate sentences, with the end symbol after each."""
        lengths = np.array([len(sentence) + 1 for sentence in sentences], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        tokens = np.full(int(offsets[-1]), END, dtype=np.int32)
        for start, sentence in zip(offsets, sentences, strict=False):
            tokens[start : start + len(sentence)] = sentence
        return cls(tokens, offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens per sentence, the end symbol included."""
        return np.diff(self.offsets)

    def padded(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the sentences `rows` [N] as padded ids [N, S] and lengths [N]."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(lengths.max()))
        inside = columns < lengths[:, None]
        ids = np.full(inside.shape, PAD, dtype=np.int64)
        ids[inside] = self.tokens[(self.offsets[rows][:, None] + columns)[inside]]
        return torch.from_numpy(ids), torch.from_numpy(lengths)


@dataclass(frozen=True)
class Batch:
    """Padded batch of N sentence pairs.

    Attributes:
        source: [N, S] source tokens.
        source_lengths: [N].
        source_bias: [N, 1, 1, S] attention bias that hides padding; None without padding.
        previous: [N, T] previous target tokens, the decoder's input.
        targets: [M] tokens to predict, without padding, in row order.
        target_index: [M] positions of the targets in the flattened [N * T]. The output projection
            and the loss are computed for these positions only.
        links: [links] aligned positions in the flattened attention weights [N, T, S]; None without
            alignments.
        link_shares: [links] probabilities of the links; those of a target position sum to 1.
        packings: Layouts in which the model computes both sides without padding; None with padding.
    """

    source: Tensor
    source_lengths: Tensor
    source_bias: Tensor | None
    previous: Tensor
    targets: Tensor
    target_index: Tensor
    links: Tensor | None = None
    link_shares: Tensor | None = None
    packings: Packings | None = None

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Copy the batch into page-locked memory."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def changed(value: Any) -> Any:
            if isinstance(value, tuple):  # packings
                return type(value)(*map(changed, value))
            return change(value) if isinstance(value, Tensor) else value

        return Batch(**{name: changed(value) for name, value in vars(self).items()})

    @property
    def padded_tokens(self) -> int:
        """Elements of the source and target matrices, padding included."""
        return self.source.numel() + self.previous.numel()


@dataclass(frozen=True)
class ParallelData:
    """Sentence pairs.

    Attributes:
        source: Source sentences, each with the end symbol.
        target: Target sentences, each with the end symbol.
        known_fingerprint: Recorded value of `fingerprint`, which saves reading all of the data.
        source_end: Whether batches have the source's end symbol (`ModelConfig.source_end`).
        banned_tokens: Tokens that the model cannot predict. Batches have them as previous tokens,
            but not as targets.
        vocabulary_sizes: Sizes of source and target vocabulary, where known, to check token ids.
        corpora: Number of pairs of each corpus, in order; empty if it is one.
        links: Aligned tokens, which batches then have; None for none.
        packs: Whether batches have `packings` instead of a bias.
        graph_tokens: Elements per side of batches in the few shapes of CUDA graphs
            (`padded_shape`), always with a bias; 0: no row or column more than sentences need.
        name: Name of the data in messages.
    """

    source: TokenArray
    target: TokenArray
    known_fingerprint: int | None = None
    source_end: bool = True
    banned_tokens: NDArray[np.int64] | None = None
    vocabulary_sizes: tuple[int, int] | None = None
    corpora: tuple[int, ...] = ()
    links: TokenLinks | None = None
    packs: bool = False
    graph_tokens: int = 0
    name: str = "the training text"

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    def for_model(self, model: Transformer) -> ParallelData:
        """Return the same data with batches in the format of a model."""
        banned_tokens = None if model.banned_tokens is None else model.banned_tokens.cpu().numpy()
        return replace(
            self,
            source_end=model.config.source_end,
            banned_tokens=banned_tokens,
            vocabulary_sizes=(model.config.input_vocabulary_size, model.config.vocabulary_size),
        )

    def count_targets(self, rows: NDArray[np.int64]) -> int:
        """Count the tokens to predict in the pairs `rows`."""
        offsets = self.target.offsets
        count = int((offsets[rows + 1] - offsets[rows]).sum())
        if self.banned_tokens is not None:
            sentences = (self.target.tokens[offsets[row] : offsets[row + 1]] for row in rows)
            count -= sum(int(np.isin(tokens, self.banned_tokens).sum()) for tokens in sentences)
        return count

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Collate the pairs `rows` into a batch.

        Raises:
            InputError: A token is not in the vocabulary.
        """
        source, source_lengths = self.source.padded(rows)
        if not self.source_end:  # shorter rows keep the symbol, hidden as padding
            source, source_lengths = source[:, :-1], source_lengths - 1
        target, target_lengths = self.target.padded(rows)
        self._check_ids(source, target)
        if self.graph_tokens:
            longest = max(source.shape[1], target.shape[1])
            count, width = padded_shape(len(rows), longest, self.graph_tokens)
            more = count - len(rows)  # empty pairs, without targets
            source, target = (
                F.pad(ids, (0, width - ids.shape[1], 0, more), value=PAD)
                for ids in (source, target)
            )
            source_lengths, target_lengths = (
                F.pad(lengths, (0, more)) for lengths in (source_lengths, target_lengths)
            )
        previous = torch.cat((target.new_full((len(target), 1), START), target[:, :-1]), dim=1)
        inside = torch.arange(target.shape[1]) < target_lengths[:, None]
        if self.banned_tokens is not None:
            inside &= ~torch.isin(target, torch.from_numpy(self.banned_tokens))
        index = inside.flatten().nonzero()[:, 0]
        bias = None if self.packs else source_padding_bias(source, source_lengths)
        if self.graph_tokens and bias is None:
            bias = padding_bias(source_lengths, source.shape[1])
        links: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.links is not None:
            links = self.links.of_batch(rows, target.shape[1], source.shape[1])
        targets = target.flatten()[index]
        packings = None
        if self.packs:
            packings = Packings(
                packing(source_lengths, source.shape[1]), packing(target_lengths, target.shape[1])
            )
        return Batch(source, source_lengths, bias, previous, targets, index, *links, packings)

    def _check_ids(self, source: Tensor, target: Tensor) -> None:
        """Raise an InputError for unknown ids, on which a GPU's embedding aborts the process."""
        if self.vocabulary_sizes is None:
            return
        for side, ids, size in zip(
            ("source", "target"), (source, target), self.vocabulary_sizes, strict=True
        ):
            largest = int(ids.max()) if ids.numel() else 0
            if largest >= size:
                raise InputError(
                    f"{self.name}: a {side} token has id {largest}, but the vocabulary ends at "
                    f"{size - 1}; the data is damaged, or of another vocabulary. Prepare it again."
                )

    def fingerprint(self) -> int:
        """Return a checksum of all tokens, used to verify the data on resume."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        return self._checksum(lambda: False)

    def check_fingerprint(self, stopped: Callable[[], bool]) -> None:
        """Read all the data and compare it with the recorded fingerprint, if any.

        Args:
            stopped: Polled every few milliseconds; True abandons the comparison.

        Raises:
            InputError: The fingerprints differ.
        """
        if self.known_fingerprint is None:
            return
        found = self._checksum(stopped)
        if found != self.known_fingerprint and not stopped():
            raise InputError(
                f"{self.name}: the token files have fingerprint {found}, but should have "
                f"{self.known_fingerprint}; they are damaged or were changed. Prepare them again "
                "and start over: this run may have been trained on damaged data."
            )

    def _checksum(self, stopped: Callable[[], bool]) -> int:
        checksum = 0
        arrays: list[NDArray[Any]] = []
        for side in (self.source, self.target):
            arrays += [side.offsets, side.tokens]
        if self.links is not None:
            arrays += [self.links.offsets, self.links.positions]
        for array in arrays:
            for begin in range(0, len(array), _BLOCK):
                if stopped():
                    return 0
                checksum = zlib.crc32(array[begin : begin + _BLOCK].data, checksum)
        return checksum


class FingerprintCheck:
    """Background check of the data's fingerprint during training."""

    def __init__(self, data: ParallelData) -> None:
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, "fingerprint")
        self._result = self._executor.submit(data.check_fingerprint, self._stopped.is_set)

    def poll(self, wait: bool = False) -> None:
        """Raise the error of the check, if it has ended with one.

        Args:
            wait: Wait for the end of the check.

        Raises:
            InputError: The data was changed.
        """
        if wait or self._result.done():
            self._result.result()

    def close(self) -> None:
        """Abandon the check and end the thread."""
        self._stopped.set()
        self._executor.shutdown()


def encode_parallel(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], max_length: int | None
) -> ParallelData:
    """Make data of token lists; drop pairs with an empty or too long side, with a warning.

    Args:
        source: Tokens per sentence, without end symbol.
        target: Tokens per sentence, one sentence per source sentence.
        max_length: Maximum length in tokens, the end symbol included; None for no limit.

    Raises:
        InputError: No pair is left.
    """
    empty = sum(not a or not b for a, b in zip(source, target, strict=True))
    pairs = [(a, b) for a, b in zip(source, target, strict=True) if a and b]
    short = [pair for pair in pairs if max_length is None or max(map(len, pair)) < max_length]
    if empty:
        log.warning("%d of %d pairs have an empty side and are left out", empty, len(source))
    if len(short) < len(pairs):
        log.warning(
            "%d of %d pairs are longer than %s tokens and are left out",
            len(pairs) - len(short), len(source), max_length,
        )  # fmt: skip
    if not short:
        raise InputError("no sentence pair is left: all are empty or longer than max_length.")
    return ParallelData(
        TokenArray.from_lists([pair[0] for pair in short]),
        TokenArray.from_lists([pair[1] for pair in short]),
    )


def plan_batches(
    source_lengths: NDArray[np.int64],
    target_lengths: NDArray[np.int64],
    batch_tokens: int,
    shuffle: np.random.Generator | None,
    width_step: int = 1,
) -> list[NDArray[np.int64]]:
    """Group sentences of similar length into batches with little padding.

    Sentences are sorted by their longer side, then by the difference of both sides, ascending and
    descending alternately to keep neighbours similar where the length changes. Ties are in random
    order. (Multi30k at 4,096 tokens: 3.4 % padding; sorted by target, then source length: 7.1 %.)
    The sorted list is cut such that each side of a batch has at most `batch_tokens` elements,
    padding included; a longer sentence is a batch of its own. The batches are then shuffled.

    Args:
        source_lengths: [sentences], at least 1: the end symbol counts.
        target_lengths: [sentences].
        batch_tokens: Maximum elements per side of a batch.
        shuffle: Random generator; None for batches by ascending length.
        width_step: Number of which the widths of batches are multiples.

    Returns:
        Row numbers of each batch; every sentence is in exactly one.
    """
    rows: Rows = np.arange(len(source_lengths))
    if len(rows) <= np.iinfo(np.int32).max:
        # Shuffling and sorting millions of rows is memory-bound; int32 halves the traffic.
        rows = rows.astype(np.int32)
    if shuffle is not None:
        rows = shuffle.permutation(rows)
    longer = np.maximum(source_lengths, target_lengths)
    difference = np.where(longer % 2, 1, -1) * (source_lengths - target_lengths)
    order: NDArray[np.int64] = _sort_by(rows, longer, difference).astype(np.int64)
    ends = _cut(-(-longer[order] // width_step) * width_step, batch_tokens)
    batches = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if shuffle is not None:
        batches = [batches[index] for index in shuffle.permutation(len(batches))]
    return batches


def _sort_by(order: Rows, longer: NDArray[np.int64], difference: NDArray[np.int64]) -> Rows:
    """Sort rows by their longer side, then by the difference; ties keep their order.

    Both are packed into one key. Pairs with a longer side of L tokens have differences from 1 - L
    to L - 1, so (L - 1)^2 keys precede theirs. Keys of up to 256 tokens have 16 bits, which numpy
    radix-sorts; longer keys take one pass per 16 bits. (5 million pairs on one core: 0.2 s;
    np.lexsort: 0.7 s.)

    Args:
        order: [rows], a permutation.
        longer: [rows], at least 1.
        difference: [rows].
    """
    keys = longer * (longer - 1) + difference
    for shift in range(0, int(keys.max(initial=0)).bit_length(), 16):
        digits = (keys >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def _cut(widths: NDArray[np.int64], batch_tokens: int) -> list[int]:
    """Cut sorted rows into batches of at most `batch_tokens` elements, padding included.

    Args:
        widths: [rows], ascending.
        batch_tokens: Maximum elements; a wider row is a batch of its own.

    Returns:
        The end of each batch.
    """
    # Iterates over the few runs of equal width, not over rows.
    changes = (np.flatnonzero(widths[1:] != widths[:-1]) + 1).tolist()
    ends: list[int] = []
    start = 0
    for run_begin, run_end in itertools.pairwise(sorted({0, *changes, len(widths)})):
        capacity = max(1, batch_tokens // int(widths[run_begin]))
        end = max(run_begin, start + capacity)
        while end < run_end:
            ends.append(end)
            start, end = end, end + capacity
    return [*ends, len(widths)]


def epoch_batches(
    data: ParallelData, batch_tokens: int, seed: int, epoch: int, weights: Sequence[float] = ()
) -> list[NDArray[np.int64]]:
    """Plan the batches of an epoch, which depend on the seed and the epoch alone.

    Args:
        data: Training pairs.
        batch_tokens: Maximum elements per side of a batch.
        seed: Seed of the order.
        epoch: Number of the epoch.
        weights: How often the epoch has each pair of each corpus; empty for once.
    """
    shuffle = np.random.Generator(np.random.PCG64([seed, epoch]))
    lengths = data.source.lengths, data.target.lengths
    step = WIDTH_STEP if data.graph_tokens else 1
    if not weights:
        return plan_batches(*lengths, batch_tokens, shuffle, step)
    rows = _weighted_rows(data.corpora, weights, shuffle)
    batches = plan_batches(lengths[0][rows], lengths[1][rows], batch_tokens, shuffle, step)
    return [rows[batch] for batch in batches]


def rows_of_weight(size: int, weight: float) -> int:
    """Return the number of pairs that a corpus of a size and a weight has in an epoch."""
    return size * int(weight) + round(size * (weight % 1))


def _weighted_rows(
    sizes: Sequence[int], weights: Sequence[float], shuffle: np.random.Generator
) -> NDArray[np.int64]:
    """Return the rows of an epoch: those of each corpus as often as its weight says.

    Of a weight of 2.25, a quarter of the corpus, drawn at random, is there a third time.
    """
    parts: list[NDArray[np.int64]] = []
    begin = 0
    for size, weight in zip(sizes, weights, strict=True):
        rows = np.arange(begin, begin + size, dtype=np.int64)
        parts += [rows] * int(weight)
        rest = rows_of_weight(size, weight) - size * int(weight)
        parts.append(begin + shuffle.choice(size, rest, replace=False).astype(np.int64))
        begin += size
    return np.concatenate(parts)
