"""Several batches at once: what they find together, and what happens when one of them fails."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.scripted import (
    END,
    START,
    FailingBackend,
    scripted_search,
)
from support.translations import assert_same

from translate_trt.runtime import workers as workers_module
from translate_trt.runtime.backends import Batch, StepResult
from translate_trt.runtime.backends.host import HostBatch
from translate_trt.runtime.errors import BackendError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import Search, Sentence
from translate_trt.runtime.workers import available_cores, search_all, share_cores

OPTIONS = SearchOptions(beam_size=3, num_hypotheses=3, max_length=12)
SENTENCES = [Sentence(index, [4 + index, *[9] * (index % 7)]) for index in range(24)]


def search(
    backend: Any, workers: int, sentences: Sequence[Sentence] = SENTENCES, batch_tokens: int = 64
) -> list[list[Hypothesis]]:
    def make() -> Search:
        return Search(backend, OPTIONS, batch_tokens, START, END)

    found = search_all(make, sentences, workers)
    assert sorted(found) == [one.index for one in sentences]
    return [found[one.index] for one in sentences]


@pytest.fixture(scope="module")
def expected() -> list[list[Hypothesis]]:
    """One sentence at a time."""
    graphs = FailingBackend().graphs
    return [scripted_search(graphs, OPTIONS, [one.tokens])[0] for one in SENTENCES]


@pytest.fixture(autouse=True)
def nobody_left() -> Any:
    """Whatever happens, no worker outlives its call."""
    yield
    assert [x.name for x in threading.enumerate() if x.name.startswith("translate")] == []


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_together_they_find_what_one_finds(workers: int, expected: list[list[Hypothesis]]) -> None:
    backend = FailingBackend()
    assert_same(search(backend, workers), expected)
    # No more of them than there are sentences.
    assert next(backend.batches) == min(workers, len(SENTENCES))


def test_one_worker_leaves_the_caller_s_thread_free() -> None:
    backend = FailingBackend()
    search(backend, 1)
    assert backend.threads == {"translate_0"}
    backend = FailingBackend()
    search(backend, 5, SENTENCES[:1])  # one sentence is no long work
    assert backend.threads == {threading.current_thread().name}


def test_nothing_to_do() -> None:
    assert search(FailingBackend(), 3, []) == []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("when", [0, 3, 11])
def test_what_a_worker_died_with_is_tried_once_more_and_told(
    workers: int, when: int, expected: list[list[Hypothesis]], caplog: pytest.LogCaptureFixture
) -> None:
    def before(step: int, batch: int) -> None:
        if step == when:
            raise MemoryError("no room for 7 tensors")

    backend = FailingBackend(before)
    with caplog.at_level(logging.ERROR, "translate_trt"):
        assert_same(search(backend, workers), expected)
    (record,) = caplog.records
    assert "a worker died (no room for 7 tensors); its " in record.message
    assert next(backend.batches) == workers + 1  # the dead one's batch was not used again


def test_the_last_sentences_of_all_are_tried_again_too(
    expected: list[list[Hypothesis]], caplog: pytest.LogCaptureFixture
) -> None:
    # The other worker has gone home by then.
    slowest, failed = threading.Event(), threading.Event()

    def before(step: int, batch: int) -> None:
        if batch == 0 and not failed.is_set():
            slowest.wait(20)
            failed.set()
            raise RuntimeError("late")

    backend = FailingBackend(before)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(search(backend, 2)), name="call")
    thread.start()
    while sum(x.name.startswith("translate") for x in threading.enumerate()) < 2:
        if not thread.is_alive():
            break
    slowest.set()
    thread.join(60)
    assert_same(found[0], expected)
    assert "late" in caplog.text


@pytest.mark.parametrize("workers", [1, 3])
def test_a_second_death_with_the_same_sentences_ends_it_all(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    def before(step: int, batch: int) -> None:
        raise MemoryError("no room for 7 tensors")

    backend = FailingBackend(before)
    with pytest.raises(
        BackendError, match=r"failed twice: no room for 7 tensors.*batch_tokens"
    ) as e:
        search(backend, workers, batch_tokens=10_000)
    assert isinstance(e.value.__cause__, MemoryError)
    assert 1 <= len(caplog.records) <= workers


def test_two_deaths_with_different_sentences_are_no_reason_to_give_up() -> None:
    dead: list[int] = []

    def before(step: int, batch: int) -> None:
        if step in (0, 30):
            dead.append(step)
            raise RuntimeError("now and then")

    assert len(search(FailingBackend(before), 1, batch_tokens=20)) == len(SENTENCES)
    assert dead == [0, 30]


@pytest.mark.parametrize("dead", [0, 4])  # at the beginning, and beside others
def test_sentences_on_their_way_into_a_batch_are_not_lost(
    expected: list[list[Hypothesis]], caplog: pytest.LogCaptureFixture, dead: int
) -> None:
    backend, calls = FailingBackend(), itertools.count()
    make = backend.batch

    def batch(options: SearchOptions, start_token: int) -> HostBatch:
        made = make(options, start_token)
        update = made.update

        def failing(keep: Sequence[int], new: Any) -> tuple[list[int], list[int]]:
            if next(calls) == dead:
                raise MemoryError("no room")
            return update(keep, new)

        made.update = failing  # type: ignore[method-assign]
        return made

    backend.batch = batch  # type: ignore[method-assign]
    assert_same(search(backend, 1), expected)
    assert len(caplog.records) == 1


def test_an_error_that_says_what_to_do_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def before(step: int, batch: int) -> None:
        raise OptionError("such an option")

    backend = FailingBackend(before)
    with pytest.raises(OptionError, match="such an option"):
        search(backend, 2)
    assert next(backend.batches) == 2
    assert caplog.records == []


def endless(backend: FailingBackend, started: threading.Barrier, fail: Callable[[], None]) -> Any:
    """A backend whose second batch never ends, and whose first fails once that runs."""
    batch = backend.batch

    def make(options: SearchOptions, start_token: int) -> Batch:
        made = batch(options, start_token)
        met = False

        def step(forced: NDArray[np.int64] | None) -> list[StepResult]:
            nonlocal met
            if not met:
                met = True
                started.wait(20)
            if threading.current_thread().name.endswith("_0"):
                fail()
            n, k = made.rows, OPTIONS.beam_size
            return [
                StepResult(
                    np.zeros((n, k), np.int64), np.zeros((n, k), np.int64),
                    np.zeros((n, k), np.float32), np.zeros(n, bool),
                )
            ]  # fmt: skip

        made.step = step  # type: ignore[method-assign]
        return made

    backend.batch = make  # type: ignore[assignment,method-assign]
    return backend


def test_one_that_gives_up_ends_the_others() -> None:
    def fail() -> None:
        raise OptionError("enough")

    backend = endless(FailingBackend(), threading.Barrier(2), fail)
    with pytest.raises(OptionError, match="enough"):
        search(backend, 2)


def test_ctrl_c_ends_all_before_their_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Barrier(3)

    def interrupted(*_: Any) -> None:
        started.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(workers_module, "wait", interrupted)
    backend = endless(FailingBackend(), started, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        search(backend, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_call_of_the_backend_that_takes_long(
    workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started, cancelled = threading.Barrier(workers + 1), threading.Event()

    def interrupted(*_: Any) -> None:
        started.wait(20)
        raise KeyboardInterrupt

    def until_cancelled(step: int, batch: int) -> None:
        started.wait(20)
        assert cancelled.wait(20)
        raise RuntimeError("cancelled")

    monkeypatch.setattr(workers_module, "wait", interrupted)
    monkeypatch.setattr(HostBatch, "cancel", lambda _: cancelled.set())
    backend = FailingBackend(until_cancelled)
    with pytest.raises(KeyboardInterrupt):
        search(backend, workers)
    assert next(backend.batches) == workers  # none is retried,
    assert caplog.text == ""  # nor told of


def test_calls_from_several_threads_do_not_mix(expected: list[list[Hypothesis]]) -> None:
    backend = FailingBackend()
    found: dict[int, Any] = {}

    def call(number: int) -> None:
        part = SENTENCES[number::8]
        found[number] = search(backend, 1 + number % 3, part)

    threads = [threading.Thread(target=call, args=(n,), name=f"call {n}") for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for number in range(8):
        assert_same(found[number], expected[number::8])


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1
    assert share_cores(None, 3) == (1, 3)
    assert share_cores(7, 9) == (1, 4)
