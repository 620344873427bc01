"""Work in other processes: in several, its results in order, or in one that can be ended."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
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


def run_apart(function: Callable[[], None], lines: Iterable[bytes]) -> tuple[int, bytes]:
    """Run a function in a process of its own that is ended when this call is left in any way.

    For long work in C++: no signal interrupts that where it runs, but here Ctrl-C or an exception
    of `lines` ends it at once. If this process is killed, it ends too.

    Args:
        function: of a module, so that the other process can find it. It takes its input from
            `lines_from_parent`, all of it before it answers, and answers on standard output.
        lines: its input, taken in this process. None is empty or has a newline in it.

    Returns:
        Its exit status, as of subprocess (negative: the signal that ended it), and its answer.
    """
    name = function.__qualname__
    code = f"from {function.__module__} import {name}; {name}()"
    # Neither forked, from a process that may have threads (of torch, of SentencePiece), nor by
    # multiprocessing, which would run a caller's script again if that does not guard its main part.
    # In a session of its own, Ctrl-C on a terminal reaches this process alone.
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = sys.argv[1:]; {code}", *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its answer says why
            for line in lines:
                process.stdin.write(line + b"\n")
            process.stdin.write(b"\n")
            process.stdin.flush()
        answer = process.stdout.read()
        return process.wait(), answer
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def lines_from_parent() -> Iterator[bytes]:
    """The lines that `run_apart` gives to this process, without their ends.

    From the last of them on, this process ends when the parent does, or as soon as another thread
    may run: while SentencePiece trains, that is at once with 0.2.3 and afterwards with 0.2.1.
    """
    for line in sys.stdin.buffer:
        if line == b"\n":
            threading.Thread(target=_end_with_standard_input, daemon=True).start()
            return
        yield line.removesuffix(b"\n")
    os._exit(1)  # the parent was killed: what has come is not all


def _end_with_standard_input() -> None:
    # Not by sys.stdin: a thread that waits in it holds its lock, for which the interpreter would
    # abort when it ends.
    os.read(0, 1)
    os._exit(1)
