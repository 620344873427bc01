"""Worker processes: an ordered parallel map, and a single process that can be interrupted."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Self, TypeVar

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.process import ctrl_c_blocked

Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerPool:
    """Pool of `count` worker processes; with a count of 1, tasks run in this process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.count > 1:
            # Forking a process with threads (of SentencePiece, of tqdm) can deadlock.
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self.count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_depend_on_the_parent,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Apply a function to tasks; yield the results in order.

        Only a few tasks per process are in flight at once, which bounds memory.

        Args:
            function: Function at the top level of a module, for pickling.
            tasks: Tasks, iterated in this process.

        Raises:
            TranslateTrtError: A process ended unexpectedly.
        """
        if self._executor is None:
            yield from map(function, tasks)
            return
        in_flight: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        try:
            for task in tasks:
                with ctrl_c_blocked():
                    in_flight.append(self._executor.submit(function, task))
                if len(in_flight) > 2 * self.count:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()
        except BrokenProcessPool as error:
            raise TranslateTrtError(
                "a worker process ended unexpectedly, perhaps for lack of memory; try fewer: "
                f"--workers {max(1, self.count // 2)}."
            ) from error


def _depend_on_the_parent() -> None:
    # Workers of a killed parent would wait forever for the next task.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_apart(function: Callable[[], None], lines: Iterable[bytes]) -> tuple[int, bytes]:
    """Run a function in a separate process, which is killed when this call is left in any way.

    Long work in C++ blocks signals; in a separate process, Ctrl-C or an exception of `lines` ends
    it at once. The process also ends if this one is killed.

    Args:
        function: Function at the top level of a module. It must read all of its input from
            `lines_from_parent` before it writes its answer to standard output.
        lines: Input lines, not empty and without newlines, iterated in this process.

    Returns:
        The exit status, as of subprocess (negative for a signal), and the answer.
    """
    name = function.__qualname__
    code = f"from {function.__module__} import {name}; {name}()"
    # No fork, because this process may have threads (of torch, of SentencePiece). No
    # multiprocessing, which re-runs a caller's script unless it guards __main__. A new session
    # keeps Ctrl-C on a terminal from the other process.
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = sys.argv[1:]; {code}", *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # the process has ended; its answer says why
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
    """Iterate over the input lines of `run_apart`, without line ends.

    After the last line, a thread ends this process when the parent ends. SentencePiece 0.2.3 lets
    that thread run during training, 0.2.1 only afterwards.
    """
    for line in sys.stdin.buffer:
        if line == b"\n":
            threading.Thread(target=_end_with_standard_input, daemon=True).start()
            return
        yield line.removesuffix(b"\n")
    os._exit(1)  # the parent was killed, and the input is incomplete


def _end_with_standard_input() -> None:
    # os.read instead of sys.stdin: the interpreter aborts at exit if a thread holds stdin's lock.
    os.read(0, 1)
    os._exit(1)
