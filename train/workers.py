"""Work in several processes, its results in order and never far ahead of whoever takes them."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TypeVar

from translate_trt.runtime.errors import TranslateTrtError

Task = TypeVar("Task")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A number of processes, or with `count` 1 none but this one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> WorkerPool:
        if self.count > 1:
            # Spawned: forking a process that may have threads (of SentencePiece, of tqdm) can hang.
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self.count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_depend_on_the_parent,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """The function's results in the order of the tasks.

        Tasks are taken no faster than results are: a few per process are under way at once, so
        that memory does not depend on their number.

        Args:
            function: of a module, so that another process can find it.
            tasks: taken in this process.

        Raises:
            TranslateTrtError: a process ended without an answer.
        """
        if self._executor is None:
            yield from map(function, tasks)
            return
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for task in tasks:
                waiting.append(self._executor.submit(function, task))
                if len(waiting) > 2 * self.count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise TranslateTrtError(
                "a worker process ended unexpectedly, perhaps for lack of memory; try fewer: "
                f"--workers {max(1, self.count // 2)}."
            ) from error


def _depend_on_the_parent() -> None:
    # Ctrl-C reaches all processes of a terminal; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is killed cannot, and they would wait for its next task for ever.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
