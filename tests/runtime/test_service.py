"""Sentences one at a time, from any thread: what is found, who waits for whom, and what fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any, cast

import pytest
from support.bundles import NAN_WORD
from support.scripted import END, START, FailingBackend, scripted_search
from support.translations import assert_same

from translate_trt.runtime import TranslationService, Translator
from translate_trt.runtime.backends import Sources
from translate_trt.runtime.backends.host import HostBatch
from translate_trt.runtime.errors import BackendError, InputError, OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import Room, Search, Sentence
from translate_trt.runtime.service_queue import Group, ServiceQueue

OPTIONS = SearchOptions(beam_size=3, num_hypotheses=3, max_length=12)
OTHERS = [SearchOptions(beam_size=2, max_length=12), SearchOptions(beam_size=4, max_length=9)]
SOURCES = [[4 + index, *[9] * (index % 7)] for index in range(24)]


class Held(FailingBackend):
    """Its batches stop before each step while they are held; it knows who was taken into which.

    Attributes:
        taken: the first token of each sentence that a batch has started, batch by batch.
        begun: released at each step, before it waits.
    """

    def __init__(self, before: Callable[[int, int], None] = lambda step, batch: None) -> None:
        def held(step: int, batch: int) -> None:
            self.begun.release()
            assert self._free.wait(60)
            before(step, batch)

        super().__init__(held)
        self.begun, self._free = threading.Semaphore(0), threading.Event()
        self.taken: list[list[int]] = []
        self.refuse: dict[int, Exception] = {}  # by first token, what a batch with it raises

    def let_go(self) -> None:
        self._free.set()

    def batch(self, options: SearchOptions, start_token: int) -> HostBatch:
        batch, taken = super().batch(options, start_token), list[int]()
        self.taken.append(taken)
        update = batch.update

        def watched(keep: Sequence[int], new: Sources | None) -> tuple[list[int], list[int]]:
            for tokens in new.tokens if new is not None else ():
                taken.append(tokens[0])
                if tokens[0] in self.refuse:
                    raise self.refuse[tokens[0]]
            return update(keep, new)

        batch.update = watched  # type: ignore[method-assign]
        return batch


class ScriptedTranslator:
    """What a service asks of a `Translator`; 0 parts the pieces of a line."""

    default_options = OPTIONS

    def __init__(self, backend: FailingBackend, workers: int) -> None:
        self.backend, self.workers = backend, workers

    def prepare(
        self, source: Sequence[int], options: SearchOptions, prefix: object
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        pieces: list[list[int]] = [[]] if source else []
        for token in source:
            if token == 0:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return [(piece, ()) for piece in pieces]

    def new_search(self, options: SearchOptions) -> Search:
        if options.min_length == 7:
            raise OptionError("no batch of those")
        return Search(self.backend, options, 64, START, END)

    def join(self, pieces: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        return pieces


def expected(source: Sequence[int], options: SearchOptions = OPTIONS) -> list[list[Hypothesis]]:
    return scripted_search(FailingBackend().graphs, options, [source])


def result(future: Future[Any]) -> list[list[Hypothesis]]:
    return cast(list[list[Hypothesis]], future.result(60))


@pytest.fixture
def start() -> Iterator[Callable[..., TranslationService]]:
    """Starts services that end with the test, and leave no thread."""
    services = []
    before = set(threading.enumerate())  # a server of other tests may have a service

    def start(backend: FailingBackend, workers: int = 1, **more: Any) -> TranslationService:
        translator = cast(Translator, ScriptedTranslator(backend, workers))
        services.append((TranslationService(translator, **more), backend))
        return services[-1][0]

    yield start
    for service, backend in services:
        if isinstance(backend, Held):
            backend.let_go()
        service.close()
    left = [one.name for one in threading.enumerate() if one not in before]
    assert [name for name in left if name.startswith("translation-service")] == []


@pytest.mark.parametrize("workers", [1, 3])
def test_8_threads_with_mixed_options_find_what_one_call_finds(
    start: Callable[..., TranslationService], workers: int
) -> None:
    service = start(FailingBackend(), workers)
    found: dict[tuple[int, int], list[list[Hypothesis]]] = {}

    def client(number: int) -> None:
        for index in range(number, 24, 4):
            options = [OPTIONS, *OTHERS][(index + number) % 3]
            found[number, index] = result(service.submit(SOURCES[index], options))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 6 * 4 + 5 * 4
    for (number, index), hypotheses in found.items():
        options = [OPTIONS, *OTHERS][(index + number) % 3]
        assert_same(hypotheses, expected(SOURCES[index], options))


def test_who_comes_joins_the_batch_that_is_under_way(
    start: Callable[..., TranslationService],
) -> None:
    backend = Held()
    service = start(backend)
    first = service.submit(SOURCES[8])
    backend.begun.acquire()
    rest = [service.submit(SOURCES[index]) for index in (9, 10)]
    backend.let_go()
    for future, index in zip([first, *rest], (8, 9, 10), strict=True):
        assert_same(result(future), expected(SOURCES[index]))
    assert len(backend.taken) == 1
    assert backend.taken[0][0] == 4 + 8


def test_other_options_do_not_starve(start: Callable[..., TranslationService]) -> None:
    backend, order = Held(), list[str]()
    service = start(backend)
    lock = threading.Lock()
    left = 40

    def again(_: object) -> None:
        nonlocal left
        with lock:
            order.append("usual")
            left -= 1
        if left > 0:
            service.submit(SOURCES[left % 24]).add_done_callback(again)

    for index in range(3):
        service.submit(SOURCES[index]).add_done_callback(again)
    backend.begun.acquire()
    other = service.submit(SOURCES[5], OTHERS[0])
    other.add_done_callback(lambda _: order.append("other"))
    backend.let_go()
    assert_same(result(other), expected(SOURCES[5], OTHERS[0]))
    # Those that ran when it came, and at most a batch of those that had come before.
    assert order.index("other") <= 3
    service.close()
    assert order.count("other") == 1


def test_a_cancelled_future_is_not_translated(start: Callable[..., TranslationService]) -> None:
    backend = Held()
    service = start(backend)
    runs = service.submit(SOURCES[0])
    backend.begun.acquire()
    waits, pieces, last = (service.submit(one) for one in (SOURCES[1], [5, 0, 6], SOURCES[2]))
    assert not runs.cancel()
    assert waits.cancel()
    assert pieces.cancel()
    backend.let_go()
    assert_same(result(runs), expected(SOURCES[0]))
    assert_same(result(last), expected(SOURCES[2]))
    assert backend.taken == [[4, 6]]
    assert wait([waits, pieces], 60).not_done == set()  # whoever waits for them is told
    with pytest.raises(CancelledError):
        waits.result()


def test_a_line_is_done_when_all_its_pieces_are(start: Callable[..., TranslationService]) -> None:
    service = start(FailingBackend(), 2)
    line = [*SOURCES[3], 0, *SOURCES[4], 0, *SOURCES[5]]
    found = result(service.submit(line))
    assert_same(found, [one for index in (3, 4, 5) for one in expected(SOURCES[index])])
    assert result(service.submit([])) == []


@pytest.mark.parametrize("error", [MemoryError("no room"), BackendError("no room for that")])
def test_what_fails_twice_fails_alone(
    start: Callable[..., TranslationService], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Held()
    backend.refuse = {4 + 5: error}
    service = start(backend)
    first = service.submit(SOURCES[0])
    backend.begun.acquire()
    # It takes those with it that run, and those that are taken along with it.
    futures = [first, *(service.submit(SOURCES[index]) for index in (4, 5, 6))]
    line = service.submit([*SOURCES[7], 0, *SOURCES[5]])
    backend.let_go()
    for index, future in zip((0, 4, 6), (first, futures[1], futures[3]), strict=True):
        assert_same(result(future), expected(SOURCES[index]))
    for failed in (futures[2], line):
        assert isinstance(failed.exception(60), BackendError)
    assert ("twice: no room. If memory" in str(line.exception())) == (type(error) is MemoryError)
    assert "are retried" in caplog.text
    assert_same(result(service.submit(SOURCES[1])), expected(SOURCES[1]))  # and so it goes on


def test_bytes_are_refused(compiled_bundle: Path) -> None:
    with TranslationService(Translator(compiled_bundle, threads=1)) as service:
        for source, prefix in ((b"the cat", ""), (bytearray(b"a"), ""), ("a", b"b"), (None, "")):
            with pytest.raises(InputError, match="it must be a list of token ids"):
                service.submit(source, target_prefix=prefix)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="write SearchOptions"):
            service.submit("a", {"beam_size": 2})  # type: ignore[arg-type]


def test_a_line_that_the_model_turns_into_nan_fails_alone(
    nan_bundle: Path, compiled_bundle: Path
) -> None:
    lines = ["the cat", f"the {NAN_WORD}", "a dog runs.", NAN_WORD, "the tree"]
    right = Translator(compiled_bundle, threads=1).translate(lines)
    with TranslationService(Translator(nan_bundle, threads=1)) as service:
        futures = [service.submit(line) for line in lines]
        for line, future, expected in zip(lines, futures, right, strict=True):
            if NAN_WORD not in line:
                assert future.result().text == expected.text
                continue
            with pytest.raises(BackendError, match="no finite probabilities"):
                future.result()


def test_a_batch_that_dies_once_costs_nobody_anything(
    start: Callable[..., TranslationService], caplog: pytest.LogCaptureFixture
) -> None:
    def before(step: int, batch: int) -> None:
        if step == 3:
            raise RuntimeError("now and then")

    service = start(FailingBackend(before))
    with caplog.at_level(logging.ERROR, "translate_trt"):
        futures = [service.submit(one) for one in SOURCES]
        for future, source in zip(futures, SOURCES, strict=True):
            assert_same(result(future), expected(source))
    (record,) = caplog.records
    assert "a batch failed (now and then)" in record.message


def test_options_for_which_there_is_no_batch(start: Callable[..., TranslationService]) -> None:
    service = start(FailingBackend())
    bad = SearchOptions(max_length=12, min_length=7)
    futures = [service.submit(SOURCES[index], bad) for index in range(3)]
    for future in futures:
        with pytest.raises(OptionError, match="no batch of those"):
            future.result(60)
    assert_same(result(service.submit(SOURCES[0])), expected(SOURCES[0]))


@pytest.mark.parametrize("cancel", [False, True])
def test_closed_while_busy(start: Callable[..., TranslationService], cancel: bool) -> None:
    backend = Held()
    service = start(backend)
    runs = service.submit(SOURCES[0])
    backend.begun.acquire()
    waits, line = service.submit(SOURCES[1]), service.submit([*SOURCES[2], 0, *SOURCES[3]])
    closing = threading.Thread(target=service.close, args=(cancel,))
    closing.start()
    if cancel:
        assert wait([waits, line], 60).done == {waits, line}
    backend.let_go()
    closing.join(60)
    assert runs.done()
    assert waits.cancelled() == line.cancelled() == cancel
    assert_same(result(runs), expected(SOURCES[0]))
    with pytest.raises(TranslateTrtError, match="is closed; make another one"):
        service.submit(SOURCES[2])


def test_an_error_in_a_with_block_waits_for_nobody_but_those_that_run() -> None:
    backend, futures = Held(), []

    def use() -> None:
        with TranslationService(cast(Translator, ScriptedTranslator(backend, 1))) as service:
            futures.append(service.submit(SOURCES[0]))
            backend.begun.acquire()
            futures.append(service.submit(SOURCES[1]))
            futures[1].add_done_callback(lambda _: backend.let_go())
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert_same(result(futures[0]), expected(SOURCES[0]))
    assert futures[1].cancelled()


def test_submit_waits_while_the_service_is_full(start: Callable[..., TranslationService]) -> None:
    backend = Held()
    service = start(backend, capacity=2)
    futures = [service.submit(SOURCES[index]) for index in range(2)]
    submitted = threading.Event()

    def third() -> None:
        futures.append(service.submit(SOURCES[2]))
        submitted.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not submitted.wait(0.1)
    backend.let_go()
    thread.join(60)
    for index, future in enumerate(futures):
        assert_same(result(future), expected(SOURCES[index]))
    with pytest.raises(OptionError, match="capacity is 0"):
        start(backend, capacity=0)


# ---- who comes next ----


def queue_of(
    workers: int, *groups: tuple[SearchOptions, Sequence[int]]
) -> tuple[ServiceQueue, list[Group | None]]:
    """With sentences of those lengths, and the group that each worker takes up."""
    queue, number = ServiceQueue(workers, None, lambda _: True), 0
    for options, lengths in groups:
        for length in lengths:
            queue.put(options, [Sentence(number, [9] * (length - 1))])
            number += 1
    return queue, [queue.next_group(worker) for worker in range(workers)]


def lengths(sentences: Sequence[Sentence]) -> list[int]:
    return [len(one.tokens) + 1 for one in sentences]


def test_the_longest_first_but_not_before_those_that_came_earlier() -> None:
    queue, _ = queue_of(1, (OPTIONS, [10, 30, 20]))
    assert lengths(queue.take(0, Room(64))) == [30, 20]
    queue.put(OPTIONS, [Sentence(7, [9] * 49), Sentence(8, [9] * 7)])
    # The short one first, though the others of that turn are gone; then as many as fit.
    assert lengths(queue.take(0, Room(200, beside=2, longest=30))) == [10, 50]
    assert queue.ready(0, Room(200, beside=4, longest=50)) == 0
    assert lengths(queue.take(0, Room(300, beside=4, longest=50))) == [8]


def test_workers_of_a_group_get_like_numbers() -> None:
    queue, _ = queue_of(2, (OPTIONS, [10] * 9))
    assert len(queue.take(0, Room(1000))) == 5
    assert len(queue.take(1, Room(1000))) == 4
    queue.put(OPTIONS, [Sentence(20, [9] * 9)])
    assert queue.ready(0, Room(1000, beside=5, longest=10)) == 0
    assert queue.ready(1, Room(1000, beside=4, longest=10)) == 1


def test_a_group_that_nobody_serves_gets_the_worker_that_asks_first() -> None:
    queue, served = queue_of(2, (OPTIONS, [10] * 20), (OTHERS[0], [10]), (OTHERS[1], [10]))
    assert served == [Group(OPTIONS), Group(OTHERS[0])]
    assert len(queue.take(0, Room(20))) == 2
    running = Room(100, beside=2, longest=10)
    assert queue.ready(0, running) == 0  # its batch runs out, for the third group
    assert queue.take(0, running) == []
    assert lengths(queue.take(1, Room(100))) == [10]
    assert queue.ready(1, running) == 0  # has no more of its own group
    assert queue.next_group(0) == Group(OTHERS[1])
    # Nobody serves the first group now, so the other worker takes it up.
    assert queue.next_group(1) == Group(OPTIONS)
    assert len(queue.take(1, Room(100))) == 10


# ---- with a real model ----


def test_it_finds_what_the_translator_finds(compiled_bundle: Path) -> None:
    translator = Translator(compiled_bundle, "onnx-int8", threads=1, workers=2)
    lines = ["the cat runs.", "", "a big dog sleeps under the tree. " * 9, "Haus", "日本"] * 3
    two = SearchOptions(beam_size=2, num_hypotheses=2)
    with TranslationService(translator) as service:
        futures = [service.submit(line) for line in lines]
        with_options = [service.submit(line, two) for line in lines]
        forced = [service.submit(line, None, "der") for line in lines]
        tokens = translator.tokenizer.encode_source(lines[0])
        of_tokens = service.submit(tokens, two)
        for found, wanted in (
            (futures, translator.translate(lines)),
            (with_options, translator.translate(lines, two)),
            (forced, translator.translate(lines, None, ["der"] * len(lines))),
            ([of_tokens], translator.translate(lines[:1], two)),
        ):
            for future, translation in zip(found, wanted, strict=True):
                assert [one.text for one in future.result(60).hypotheses] == [
                    one.text for one in translation.hypotheses
                ]
                assert_same(
                    [list(one.pieces) for one in future.result().hypotheses],
                    [list(one.pieces) for one in translation.hypotheses],
                )
        with pytest.raises(InputError, match="the line has token 99999, outside"):
            service.submit([5, 99999])
        with pytest.raises(OptionError, match="max_length 9999"):
            service.submit("a", SearchOptions(max_length=9999))
