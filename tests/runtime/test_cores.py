"""Available CPU cores, and their division among workers and threads."""

from __future__ import annotations

import os

import pytest

from translate_trt.runtime import cores
from translate_trt.runtime.cores import available_cores, share_cores, within_cores


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


@pytest.mark.parametrize(
    ("threads", "workers", "expected"),
    [
        (None, 1, (12, 1)), (None, 5, (2, 5)), (None, 40, (1, 40)), (None, 99, (1, 48)),
        (7, 2, (7, 2)), (13, 48, (12, 48)),
    ],
)  # fmt: skip
def test_cores_are_shared_out_among_workers(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, workers: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 12)
    assert share_cores(threads, workers) == expected


def test_more_than_the_cores_allow_is_lowered_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 3)
    assert within_cores("threads", 3) == 3
    assert within_cores("workers", 12, 4) == 12
    assert caplog.messages == []
    assert within_cores("workers", 13, 4) == 12
    monkeypatch.setattr(cores, "available_cores", lambda: 1)
    assert within_cores("threads", 2) == 1
    assert caplog.messages == [
        "workers is 13; 12 are used, since this process may use 3 processor cores",
        "threads is 2; 1 are used, since this process may use 1 processor core",
    ]
