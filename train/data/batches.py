"""Parallel text as token arrays, and the batches of an epoch."""

from __future__ import annotations

import itertools
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from translate_trt.runtime.errors import InputError
from translate_trt.train.config import END, PAD, START
from translate_trt.train.model import Transformer, source_padding_bias

log = logging.getLogger("translate_trt")

# int32 in memory; in the files of `translate-trt data prepare`, the smallest that holds them all.
Tokens = NDArray[np.int32] | NDArray[np.uint16] | NDArray[np.uint32]
Rows = NDArray[np.int32] | NDArray[np.int64]

_BLOCK = 1 << 20  # elements read at a time for a checksum


@dataclass(frozen=True)
class TokenArray:
    """Sentences of tokens, end to end: sentence i is tokens[offsets[i] : offsets[i + 1]].

    Two flat arrays, so that they can as well be memory-mapped files (train/data/token_files.py).
    """

    tokens: Tokens
    offsets: NDArray[np.int64]

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> TokenArray:
        """Each sentence's tokens, followed by the end symbol."""
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
        """Those sentences as ids [N, S] and lengths [N]."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(int(lengths.max()))
        inside = columns < lengths[:, None]
        ids = np.full(inside.shape, PAD, dtype=np.int64)
        ids[inside] = self.tokens[(self.offsets[rows][:, None] + columns)[inside]]
        return torch.from_numpy(ids), torch.from_numpy(lengths)


@dataclass(frozen=True)
class Batch:
    """Source [N, S], its lengths [N], previous target tokens [N, T] and the tokens to predict.

    `source_bias` [N, 1, 1, S] hides the source's padding; None where there is none. `targets` holds
    the M tokens that count, in row order, and `target_index` [M] their places in the flattened
    [N * T], so that nothing after the decoder is computed for padding.
    """

    source: Tensor
    source_lengths: Tensor
    source_bias: Tensor | None
    previous: Tensor
    targets: Tensor
    target_index: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on that device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same in page-locked memory."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        bias = None if self.source_bias is None else change(self.source_bias)
        rest = {name: change(x) for name, x in vars(self).items() if name != "source_bias"}
        return Batch(source_bias=bias, **rest)

    @property
    def padded_tokens(self) -> int:
        """Places of the source and target matrices, padding included."""
        return self.source.numel() + self.previous.numel()

    @property
    def real_tokens(self) -> int:
        """Places that hold a token."""
        return int(self.source_lengths.sum()) + len(self.targets)


@dataclass(frozen=True)
class ParallelData:
    """Source and target sentences of the same count.

    Attributes:
        source: of every sentence the tokens of its text and the end symbol.
        target: the same.
        known_fingerprint: what `fingerprint` would find, where it was written down beside the data:
            tens of gigabytes need not be read for it.
        source_end: batches have the source's end symbol (`ModelConfig.source_end`).
        banned_tokens: tokens that the model never says: batches have them as previous tokens alone.
        vocabulary_sizes: of source and target, where known: batches refuse other ids.
        name: what messages call the data.
    """

    source: TokenArray
    target: TokenArray
    known_fingerprint: int | None = None
    source_end: bool = True
    banned_tokens: NDArray[np.int64] | None = None
    vocabulary_sizes: tuple[int, int] | None = None
    name: str = "the training text"

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    def for_model(self, model: Transformer) -> ParallelData:
        """The same data, with batches as that model reads them."""
        banned_tokens = None if model.banned_tokens is None else model.banned_tokens.cpu().numpy()
        return replace(
            self,
            source_end=model.config.source_end,
            banned_tokens=banned_tokens,
            vocabulary_sizes=(model.config.source_pieces, model.config.vocabulary_size),
        )

    def count_targets(self, rows: NDArray[np.int64]) -> int:
        """Tokens to predict in those pairs."""
        offsets = self.target.offsets
        count = int((offsets[rows + 1] - offsets[rows]).sum())
        if self.banned_tokens is not None:
            sentences = (self.target.tokens[offsets[row] : offsets[row + 1]] for row in rows)
            count -= sum(int(np.isin(tokens, self.banned_tokens).sum()) for tokens in sentences)
        return count

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Collate pairs into one batch, with the prompts and end symbols that the model reads.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        source, source_lengths = self.source.padded(rows)
        if not self.source_end:  # of shorter rows it stays, as padding
            source, source_lengths = source[:, :-1], source_lengths - 1
        target, target_lengths = self.target.padded(rows)
        self._check_ids(source, target)
        previous = torch.cat((target.new_full((len(rows), 1), START), target[:, :-1]), dim=1)
        inside = torch.arange(target.shape[1]) < target_lengths[:, None]
        if self.banned_tokens is not None:
            inside &= ~torch.isin(target, torch.from_numpy(self.banned_tokens))
        index = inside.flatten().nonzero()[:, 0]
        bias = source_padding_bias(source, source_lengths)
        return Batch(source, source_lengths, bias, previous, target.flatten()[index], index)

    def _check_ids(self, source: Tensor, target: Tensor) -> None:
        """Else the embedding raises an IndexError, or on a GPU ends the process."""
        if self.vocabulary_sizes is None:
            return
        for side, ids, size in zip(
            ("source", "target"), (source, target), self.vocabulary_sizes, strict=True
        ):
            largest = int(ids.max()) if ids.numel() else 0
            if largest >= size:
                raise InputError(
                    f"{self.name}: a {side} token has id {largest}, and the vocabulary ends at "
                    f"{size - 1}; the data is damaged, or of another vocabulary. Prepare it again."
                )

    def fingerprint(self) -> int:
        """A checksum of all tokens, by which a resumed run knows its data again."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        return self._checksum(lambda: False)

    def check_fingerprint(self, stopped: Callable[[], bool]) -> None:
        """Read all the data and compare it with the fingerprint that was written down beside it.

        Args:
            stopped: looked at every few milliseconds; True ends the comparison unfinished.

        Raises:
            InputError: they differ.
        """
        if self.known_fingerprint is None:
            return
        found = self._checksum(stopped)
        if found != self.known_fingerprint and not stopped():
            raise InputError(
                f"{self.name}: the token files have fingerprint {found} and should have "
                f"{self.known_fingerprint}; they are damaged or were changed. Prepare them again "
                "and start over: checkpoints of this run may have learned from the damage."
            )

    def _checksum(self, stopped: Callable[[], bool]) -> int:
        checksum = 0
        for side in (self.source, self.target):
            for array in (side.offsets, side.tokens):
                for begin in range(0, len(array), _BLOCK):
                    if stopped():
                        return 0
                    checksum = zlib.crc32(array[begin : begin + _BLOCK].data, checksum)
        return checksum


class FingerprintCheck:
    """Comparison of data with its fingerprint in a thread, while training goes on."""

    def __init__(self, data: ParallelData) -> None:
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, "fingerprint")
        self._result = self._executor.submit(data.check_fingerprint, self._stopped.is_set)

    def poll(self, wait: bool = False) -> None:
        """Raise what the comparison has found so far.

        Args:
            wait: until it is done.

        Raises:
            InputError: the data is not what it was.
        """
        if wait or self._result.done():
            self._result.result()

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._executor.shutdown()


def encode_parallel(
    source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], max_length: int | None
) -> ParallelData:
    """Token lists as data; pairs with an empty or too long side are left out and counted.

    Args:
        source: tokens per sentence, without end symbol.
        target: as many.
        max_length: in tokens, the end symbol included; None keeps all lengths.

    Raises:
        InputError: nothing is left.
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
) -> list[NDArray[np.int64]]:
    """Rows of each batch: every sentence once, similar lengths together, little padding.

    Sentences are sorted by their longer side and, within one length, by the difference of the two,
    up and down in turn so that neighbours stay alike where the length changes; ties come in random
    order. (On Multi30k at 4,096 tokens: 3.4 % padding; by target then source length 7.1 %.) The row
    is cut so that neither side of a batch has more than `batch_tokens` places, padding included (a
    single sentence longer than that is a batch of its own). The batches then come in random order.

    Args:
        source_lengths: [sentences], at least 1: the end symbol counts.
        target_lengths: [sentences].
        batch_tokens: places per side.
        shuffle: source of the random order; None for the order of length.
    """
    rows: Rows = np.arange(len(source_lengths))
    if len(rows) <= np.iinfo(np.int32).max:
        # Shuffling and sorting many millions of rows is bound by memory: half the bytes.
        rows = rows.astype(np.int32)
    if shuffle is not None:
        rows = shuffle.permutation(rows)
    longer = np.maximum(source_lengths, target_lengths)
    difference = np.where(longer % 2, 1, -1) * (source_lengths - target_lengths)
    order: NDArray[np.int64] = _sort_by(rows, longer, difference).astype(np.int64)
    ends = _cut(longer[order], batch_tokens)
    batches = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if shuffle is not None:
        batches = [batches[index] for index in shuffle.permutation(len(batches))]
    return batches


def _sort_by(order: Rows, longer: NDArray[np.int64], difference: NDArray[np.int64]) -> Rows:
    """The rows by their longer side, then by the difference; ties stay as they are in `order`.

    Both go into one key: pairs with a longer side of L tokens have differences from 1 - L to
    L - 1, so that (L - 1)^2 keys come before theirs. Up to 256 tokens the keys fill exactly 16
    bits, which numpy sorts by counting; longer ones take one such sort for each 16 bits. (5 million
    pairs on one core: 0.2 s; by np.lexsort 0.7 s.)

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
    """Where batches end: each as long as its last and widest row times its rows fits.

    Args:
        widths: [rows], ascending.
        batch_tokens: the most; a row that is wider is a batch of its own.
    """
    # Rows of one width are a run, and there are few; each tells how far the batch under way goes.
    changes = (np.flatnonzero(widths[1:] != widths[:-1]) + 1).tolist()
    ends: list[int] = []
    start = 0
    for run_begin, run_end in itertools.pairwise(sorted({0, *changes, len(widths)})):
        room = max(1, batch_tokens // int(widths[run_begin]))
        end = max(run_begin, start + room)
        while end < run_end:
            ends.append(end)
            start, end = end, end + room
    return [*ends, len(widths)]


def epoch_batches(
    data: ParallelData, batch_tokens: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The batches of that epoch: a function of the seed and the epoch's number alone."""
    shuffle = np.random.Generator(np.random.PCG64([seed, epoch]))
    return plan_batches(data.source.lengths, data.target.lengths, batch_tokens, shuffle)
