"""Worker processes: ordered results, and interruption."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.work import SAID, add, double, end_at_three, refuse_the_second_line, work_on

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.train.worker_processes import WorkerPool, run_apart


def test_workers_give_results_in_order_and_take_tasks_as_they_go() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for number in range(30):
            taken.append(number)
            yield number

    with WorkerPool(2) as pool:
        results = pool.map(double, tasks())
        assert next(results) == 0
        assert len(taken) == 5
        assert list(results) == list(range(2, 60, 2))


def test_a_worker_that_dies_is_an_error_and_not_a_hang() -> None:
    with WorkerPool(2) as pool, pytest.raises(TranslateTrtError, match="--workers 1"):
        list(pool.map(end_at_three, range(6)))


POOL = """
from translate_trt.train.worker_processes import WorkerPool
with WorkerPool(2) as pool:
    for number in pool.map(abs, range(1_000_000_000)):
        print(number, flush=True, file=sys.stderr)
"""
APART = """
from support.work import work_on
from translate_trt.train.worker_processes import run_apart
run_apart(work_on, [b"line"])
"""
APART_WAITING = """
from support.work import work_on
from translate_trt.train.worker_processes import run_apart
def lines():
    yield 100_000 * b"x"  # more than a pipe buffers
    time.sleep(600)
run_apart(work_on, lines())
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("code", [POOL, APART, APART_WAITING])
def test_processes_end_with_their_parent_however_it_ends(code: str, sent: int) -> None:
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys, time\n" + code], stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": path},
    ) as parent:  # fmt: skip
        assert parent.stderr is not None
        first = parent.stderr.readline().split()
        worker = int(first[0]) if len(first) > 1 else parent.pid  # the pool's are of its group
        try:
            parent.send_signal(sent)
            parent.communicate(timeout=300)  # stderr ends when all processes have closed it
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker, signal.SIGKILL)


def test_a_process_apart_takes_lines_and_answers() -> None:
    assert run_apart(add, (b"%d" % number for number in range(100_000))) == (0, b"4999950000\n")
    assert run_apart(add, []) == (0, b"0\n")


def test_a_process_apart_may_end_before_the_last_line() -> None:
    lines = (b"line %d" % number for number in range(100_000))
    assert run_apart(refuse_the_second_line, lines) == (3, b"not line 1\n")
    assert next(lines) < b"line 99999"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Wait for the line that `work_on` says in its process, and return it.

    Not by capfd: pytest reads its file and then truncates it, and loses what comes in between.
    """
    path = tmp_path / "said"
    monkeypatch.setenv(SAID, str(path))

    def first_line() -> str:
        while not path.exists() or "\n" not in path.read_text():
            time.sleep(0.01)
        return path.read_text()

    return first_line


def test_an_error_here_ends_the_process_apart(said: Callable[[], str]) -> None:
    def lines() -> Iterator[bytes]:
        yield 100_000 * b"x"
        raise ValueError(said())

    with pytest.raises(ValueError, match=" 100000") as raised:
        run_apart(work_on, lines())
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(raised.value).split()[0]), 0)


def test_a_killed_separate_process_is_reported(said: Callable[[], str]) -> None:
    def lines() -> Iterator[bytes]:
        yield 100_000 * b"x"
        os.kill(int(said().split()[0]), signal.SIGKILL)

    assert run_apart(work_on, lines()) == (-signal.SIGKILL, b"")


def test_one_worker_is_this_process() -> None:
    with WorkerPool(1) as pool:
        results = pool.map(lambda number: os.getpid() + number, [0, 1])
        assert list(results) == [os.getpid(), os.getpid() + 1]
