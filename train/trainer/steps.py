"""Which sentences an optimizer step takes, and which of them each process takes.

Both are functions of the seed, the epoch and the step alone. The sentences of a step do not depend
on how many processes there are; so a run may be continued by more or fewer of them.
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

# Steps made ahead of the one that is computed: enough to bridge a hiccup of the file system.
STEPS_AHEAD = 4


@dataclass(frozen=True)
class Step:
    """What one process does in one optimizer step.

    Attributes:
        batches: its micro-batches; empty if the step has too few sentences for all processes.
        target_tokens: of the whole step, all processes together.
        next_position: epoch and step in it that come after this one.
    """

    batches: list[Batch]
    target_tokens: int
    next_position: tuple[int, int]


def plan_epoch(data: ParallelData, config: TrainConfig, epoch: int) -> list[list[Rows]]:
    """The micro-batches of each step of that epoch; every sentence is in exactly one.

    A micro-batch holds sentences of like length, the micro-batches of a step come from anywhere in
    the data. The last step of an epoch may be smaller.
    """
    size = min(config.micro_batch_tokens, config.batch_tokens)
    batches = epoch_batches(data, size, config.seed, epoch)
    together = max(1, config.batch_tokens // size)
    return [batches[first : first + together] for first in range(0, len(batches), together)]


def share(batches: list[Rows], rank: int, size: int) -> list[Rows]:
    """Those of a step's micro-batches, or parts of them, that process `rank` of `size` takes.

    Whole micro-batches go round; where there are fewer than processes, each is cut into as many
    parts as it takes, every k-th sentence in a part, so that the lengths stay alike.
    """
    parts = max(1, -(-size // len(batches)))
    pieces = [rows[first::parts] for rows in batches for first in range(parts)]
    return [rows for rows in pieces[rank::size] if len(rows)]


class StepLoader:
    """An endless run of steps, made ahead in a thread.

    Args of the constructor:
        data: the training text.
        config: its batch sizes and seed.
        rank: of this process.
        size: processes in the group.
        start: epoch, and step in it, to begin with.
        pin: put batches into page-locked memory, from which they are copied to a GPU at once.
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
        """End the thread: one that still ran in torch when Python exits would abort the program."""
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
        except BaseException as error:  # raised again where the steps are taken from
            self._queue.put(error)

    def _steps(self, epoch: int, first: int) -> Iterator[Step]:
        # Sorting tens of millions of sentences takes seconds: the next epoch is planned during
        # this one.
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
