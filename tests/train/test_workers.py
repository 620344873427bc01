"""Processes that work in order. (Started anew, they import this file: it needs no torch.)"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.train.workers import WorkerPool, available_cores


def double(number: int) -> int:
    return 2 * number


def end_at_three(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


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


def test_one_worker_is_this_process() -> None:
    with WorkerPool(1) as pool:
        results = pool.map(lambda number: os.getpid() + number, [0, 1])
        assert list(results) == [os.getpid(), os.getpid() + 1]


def test_cores_that_may_be_used() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
