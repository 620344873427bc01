"""Optimizer steps: the micro-batches of each step, and their distribution over processes.

The sentences of a step depend on the seed, the epoch and the step alone, not on the number of
processes. A run can therefore be resumed with more or fewer processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Event, Thread

import numpy as np
from numpy.typing import NDArray

from translate_trt.train.config import TrainConfig
from translate_trt.train.data.batches import Batch, ParallelData, epoch_batches

Rows = NDArray[np.int64]

# Capacity of the prefetch queue, in steps: enough to hide a short stall of the file system.
STEPS_AHEAD = 4


@dataclass(frozen=True)
class Step:
    """Work of one process in one optimizer step.

    Attributes:
        batches: Micro-batches; empty if the step has fewer sentences than there are processes.
        target_tokens: Target tokens of the whole step, over all processes.
        next_position: Epoch, and step in it, that follow this step.
    """

    batches: list[Batch]
    target_tokens: int
    next_position: tuple[int, int]


def plan_epoch(data: ParallelData, config: TrainConfig, epoch: int) -> list[list[Rows]]:
    """Plan the micro-batches of each step of an epoch; every sentence is in exactly one.

    With weights of corpora, a sentence is in as many as they say.

    A micro-batch holds sentences of similar length; the micro-batches of a step are drawn from the
    whole data. The last step of an epoch may be smaller.
    """
    size = min(config.micro_batch_tokens, config.batch_tokens)
    batches = epoch_batches(data, size, config.seed, epoch, config.weights_by_size(data.corpora))
    together = max(1, config.batch_tokens // size)
    return [batches[first : first + together] for first in range(0, len(batches), together)]


def share(batches: list[Rows], rank: int, size: int) -> list[Rows]:
    """Return the micro-batches of a step that process `rank` of `size` takes.

    Micro-batches are assigned round-robin. If there are fewer than processes, each is cut into k
    parts first. A part takes every k-th sentence, which keeps the lengths similar.
    """
    count = max(1, -(-size // len(batches)))
    parts = [rows[first::count] for rows in batches for first in range(count)]
    return [rows for rows in parts[rank::size] if len(rows)]


class StepLoader:
    """Endless iterator over steps, prefetched in a thread.

    Args of the constructor:
        data: Training pairs.
        config: Batch sizes and seed.
        rank: Rank of this process.
        size: Number of processes.
        start: First epoch, and step in it.
        pin: Put batches into page-locked memory, for asynchronous copies to a GPU.
    """

    def __init__(
        self, data: ParallelData, config: TrainConfig, rank: int, size: int,
        start: tuple[int, int], pin: bool = False,
    ) -> None:  # fmt: skip
        self._data, self._config, self._rank, self._size = data, config, rank, size
        self._pin = pin
        self._queue: Queue[Step | BaseException] = Queue(STEPS_AHEAD)
        self._stop = Event()
        self._thread = Thread(target=self._fill, args=start, name="steps", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Step]:
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """End the thread: a thread inside torch would abort the program when Python exits."""
        self._stop.set()
        while self._thread.is_alive():
            with contextlib.suppress(Empty):
                self._queue.get(timeout=0.01)
        self._thread.join()

    def _fill(self, epoch: int, first: int) -> None:
        try:
            for step in self._steps(epoch, first):
                if self._stop.is_set():
                    return
                self._queue.put(step)
        except BaseException as error:  # raised again in __iter__
            self._queue.put(error)

    def _steps(self, epoch: int, first: int) -> Iterator[Step]:
        # Planning an epoch of tens of millions of sentences takes seconds, so the next one is
        # planned during this one.
        with ThreadPoolExecutor(1) as planner:
            plan = plan_epoch(self._data, self._config, epoch)
            while True:
                following: Future[list[list[Rows]]] = planner.submit(
                    plan_epoch, self._data, self._config, epoch + 1
                )
                for index in range(first, len(plan)):
                    last = index + 1 == len(plan)
                    yield self._step(plan[index], (epoch + 1, 0) if last else (epoch, index + 1))
                plan, epoch, first = following.result(), epoch + 1, 0

    def _step(self, batches: list[Rows], following: tuple[int, int]) -> Step:
        tokens = sum(map(self._data.count_targets, batches))
        own = [self._data.batch(rows) for rows in share(batches, self._rank, self._size)]
        return Step([batch.pinned() for batch in own] if self._pin else own, tokens, following)
