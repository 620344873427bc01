"""Processes that work in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.work import double, end_at_three

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.train.workers import WorkerPool, available_cores


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


PARENT = """
from translate_trt.train.workers import WorkerPool
with WorkerPool(2) as pool:
    for number in pool.map(abs, range(1_000_000_000)):
        print(number, flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_however_it_ends(sent: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None
            assert [parent.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
            parent.send_signal(sent)
            parent.communicate(timeout=20)  # its output ends when nobody holds it any more
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def test_one_worker_is_this_process() -> None:
    with WorkerPool(1) as pool:
        results = pool.map(lambda number: os.getpid() + number, [0, 1])
        assert list(results) == [os.getpid(), os.getpid() + 1]


def test_cores_that_may_be_used() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
