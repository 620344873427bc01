"""Sentences one at a time, from any thread: what is found, who waits for whom, and what fails."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
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
from translate_trt.runtime.service_queue import LARGE, LONG, Group, Load, ServiceQueue

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
    core = None

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
        if options.beam_size == 7:
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


def test_options_of_one_beam_size_share_a_batch(start: Callable[..., TranslationService]) -> None:
    backend = Held()
    service = start(backend)
    first = service.submit(SOURCES[8])
    backend.begun.acquire()
    options = [
        dataclasses.replace(OPTIONS, **changes)
        for changes in (
            *({"length_penalty": index / 4} for index in range(9)),
            {"length_penalty": 1.0, "length_penalty_form": "length"},
            {"early_stopping": True},
            {"min_length": 6},
            {"max_length": 5, "num_hypotheses": 1},
            {"source_language": "en", "target_language": "de"},
        )
    ]
    futures = [service.submit(SOURCES[9], one) for one in options]
    backend.let_go()
    assert_same(result(first), expected(SOURCES[8]))
    for one, future in zip(options, futures, strict=True):
        assert result(future) == expected(SOURCES[9], one)
    assert len(backend.taken) == 1
    # Attention is fetched for a whole batch.
    with_attention = dataclasses.replace(OPTIONS, return_attention=True)
    (found,) = result(service.submit(SOURCES[9], with_attention))
    assert found[0].attention is not None
    assert len(backend.taken) == 2


def test_other_beam_sizes_do_not_starve(start: Callable[..., TranslationService]) -> None:
    backend, order = Held(), list[str]()
    service = start(backend, clock=itertools.count().__next__)  # a step is a second
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
    # A step for each step of the three others, which have up to 12 and 3 to a batch.
    assert order.index("other") <= 3 * 4
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
    bad = SearchOptions(beam_size=7, max_length=12)
    futures = [service.submit(SOURCES[index], bad) for index in range(3)]
    for future in futures:
        with pytest.raises(OptionError, match="no batch of those"):
            future.result(60)
    assert_same(result(service.submit(SOURCES[0])), expected(SOURCES[0]))


def test_an_expensive_request_takes_turns_with_a_cheap_one(
    start: Callable[..., TranslationService],
) -> None:
    steps = list[int]()
    backend = Held(lambda step, batch: steps.append(batch))
    service = start(backend, clock=itertools.count().__next__)
    request = service.new_request()
    wide = SearchOptions(beam_size=8, max_length=40, min_length=40)
    expensive = [service.submit([5, *[9] * 20], wide, request=request) for _ in range(64)]
    backend.begun.acquire()
    cheap = service.submit(SOURCES[5])
    finished = list[int]()
    cheap.add_done_callback(lambda _: finished.append(len(steps)))
    backend.let_go()
    assert_same(result(cheap), expected(SOURCES[5]))
    (number,) = (n for n, taken in enumerate(backend.taken) if SOURCES[5][0] in taken)
    own = [index for index, batch in enumerate(steps[: finished[0]]) if batch == number]
    assert len(own) <= 12
    # About one step of the other request before each of its own, though that has two batches.
    assert own[0] <= 2
    assert finished[0] <= 3 + 2 * len(own)
    service.cancel(request)
    assert sum(one.cancelled() for one in expensive) >= 64 - 64 // 8


def test_equal_options_take_turns_by_request(start: Callable[..., TranslationService]) -> None:
    backend, order = Held(), list[str]()
    service = start(backend, clock=itertools.count().__next__)
    request = service.new_request()
    for _ in range(64):
        future = service.submit(SOURCES[5], request=request)
        future.add_done_callback(lambda _: order.append("expensive"))
    backend.begun.acquire()
    service.submit(SOURCES[5]).add_done_callback(lambda _: order.append("cheap"))
    backend.let_go()
    service.close()
    assert len(order) == 65
    # Beside the first LARGE sentences there is a batch of the others, which share its tokens.
    assert order.index("cheap") <= 2 * LARGE
    assert len(backend.taken) >= 2


def test_a_cancelled_request_begins_nothing_more(start: Callable[..., TranslationService]) -> None:
    backend = Held()
    service = start(backend, capacity=30)
    request = service.new_request()
    line = [5, *[0, 9, 9] * 19]
    futures = [service.submit(line, request=request), service.submit(SOURCES[1], request=request)]
    backend.begun.acquire()
    begun = [one for batch in backend.taken for one in batch]
    other = service.submit(SOURCES[2])
    service.cancel(request)
    assert futures[1].cancelled() or SOURCES[1][0] in begun
    with pytest.raises(TranslateTrtError, match="was cancelled before all of it was translated"):
        futures[0].result(60)
    assert service.statistics().waiting == 1
    backend.let_go()
    assert_same(result(other), expected(SOURCES[2]))
    assert 0 < len(begun) < 20
    assert [one for batch in backend.taken for one in batch] == [*begun, SOURCES[2][0]]
    service.close()
    statistics = service.statistics()
    assert (statistics.waiting, statistics.running) == (0, 0)
    assert statistics.sentences == len(begun) + 1


class Rude(BaseException):
    """What no `except Exception` catches."""


class RudeHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise Rude


@pytest.fixture
def rude_logging() -> Iterator[None]:
    handler = RudeHandler()
    loggers = [logging.getLogger(name) for name in ("translate_trt", "concurrent.futures")]
    for one in loggers:
        one.addHandler(handler)
    yield
    for one in loggers:
        one.removeHandler(handler)


@pytest.mark.parametrize("error", [Rude, SystemExit, ValueError])
def test_what_a_callback_raises_ends_no_worker(
    start: Callable[..., TranslationService], rude_logging: None, error: type[BaseException]
) -> None:
    backend = Held()
    service = start(backend)
    told = list[str]()

    def raises(_: object) -> None:
        told.append("first")
        raise error

    first = service.submit(SOURCES[0])
    first.add_done_callback(raises)
    first.add_done_callback(lambda _: told.append("second"))
    backend.let_go()
    assert_same(result(first), expected(SOURCES[0]))
    assert_same(result(service.submit(SOURCES[1])), expected(SOURCES[1]))
    assert told == ["first", "second"]
    if error is not ValueError:  # which a future of the standard library logs
        with pytest.raises(error):  # the caller's own thread
            service.submit([]).add_done_callback(raises)


def test_a_logging_handler_that_raises_ends_no_worker(
    start: Callable[..., TranslationService], rude_logging: None
) -> None:
    backend = FailingBackend(lambda step, batch: 1 / (step - 2))  # type: ignore[arg-type,return-value]
    service = start(backend)
    futures = [service.submit(one) for one in SOURCES[:4]]
    for future, source in zip(futures, SOURCES, strict=False):
        assert_same(result(future), expected(source))


def test_the_end_of_a_worker_is_the_end_of_all_futures(
    start: Callable[..., TranslationService], rude_logging: None
) -> None:
    def before(step: int, batch: int) -> None:
        raise Rude

    backend = Held(before)
    service = start(backend, 2, capacity=3)
    futures = [service.submit(SOURCES[index]) for index in range(2)]
    futures.append(service.submit([*SOURCES[3], 0, *SOURCES[4]]))
    waits = list[BaseException]()

    def blocked() -> None:
        try:
            service.submit(SOURCES[5])
        except TranslateTrtError as error:
            waits.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    backend.begun.acquire()
    backend.let_go()
    for future in futures:
        assert "a worker of the translation service has ended (Rude())" in str(future.exception(60))
    thread.join(60)
    assert len(waits) == 1
    with pytest.raises(TranslateTrtError, match=r"has failed \(Rude\(\)\); make another one"):
        service.submit(SOURCES[1])
    service.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_at_once(start: Callable[..., TranslationService]) -> None:
    service = start(FailingBackend())
    result(service.submit(SOURCES[0]))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            service.submit(SOURCES[1])
            said = "nothing"
        except TranslateTrtError as error:
            said = str(error)
        service.close()
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as end:
        said = end.read()
    assert os.waitpid(child, 0)[1] == 0
    assert f"made by process {os.getpid()}, whose threads this process ({child})" in said
    assert_same(result(service.submit(SOURCES[1])), expected(SOURCES[1]))


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

FIRST = Group(OPTIONS)


def queue_of(
    workers: int, *groups: tuple[SearchOptions, Sequence[int]]
) -> tuple[ServiceQueue, list[Group | None]]:
    """With sentences of those lengths, and the group that each worker takes up."""
    queue, number = ServiceQueue(workers, None, lambda _: True), 0
    for options, lengths in groups:
        for length in lengths:
            queue.put(options, [Sentence(number, [9] * (length - 1))], number)
            number += 1
    return queue, [queue.next_group(worker) for worker in range(workers)]


def lengths(sentences: Sequence[Sentence]) -> list[int]:
    return [len(one.tokens) + 1 for one in sentences]


def test_the_longest_first_but_not_before_those_that_came_earlier() -> None:
    queue, _ = queue_of(1, (OPTIONS, [10, 30, 20]))
    assert lengths(queue.take(0, FIRST, Room(64))) == [30, 20]
    queue.put(OPTIONS, [Sentence(7, [9] * 49)], 7)
    queue.put(OPTIONS, [Sentence(8, [9] * 7)], 8)
    # The short one first, though the others of that turn are gone; then as many as fit.
    assert lengths(queue.take(0, FIRST, Room(200, beside=2, longest=30))) == [10, 50]
    assert queue.ready(0, FIRST, Room(200, beside=4, longest=50)) == 0
    assert lengths(queue.take(0, FIRST, Room(300, beside=4, longest=50))) == [8]


def test_workers_of_a_group_get_like_numbers() -> None:
    queue, _ = queue_of(2, (OPTIONS, [10] * 9))
    assert len(queue.take(0, FIRST, Room(1000))) == 5
    assert len(queue.take(1, FIRST, Room(1000))) == 4
    queue.put(OPTIONS, [Sentence(20, [9] * 9)], 20)
    assert queue.ready(0, FIRST, Room(1000, beside=5, longest=10)) == 0
    assert queue.ready(1, FIRST, Room(1000, beside=4, longest=10)) == 1


def test_a_group_that_nobody_serves_gets_the_worker_that_asks_first() -> None:
    queue, served = queue_of(2, (OPTIONS, [10] * 20), (OTHERS[0], [10]), (OTHERS[1], [10]))
    assert served == [Group(OPTIONS), Group(OTHERS[0])]
    assert len(queue.take(0, FIRST, Room(20))) == 2
    running = Room(100, beside=2, longest=10)
    assert queue.ready(0, FIRST, running) == 0  # its batch runs out, for the third group
    assert queue.take(0, FIRST, running) == []
    assert queue.next_group(0, wait=False) is None  # until that one has run out
    second = Group(OTHERS[0])
    assert lengths(queue.take(1, second, Room(100))) == [10]
    assert queue.ready(1, second, running) == 0  # has no more of its own group
    queue.end(0, FIRST)
    assert queue.next_group(0) == Group(OTHERS[1])
    queue.end(1, second)
    # Nobody serves the first group now, so the other worker takes it up.
    assert queue.next_group(1) == FIRST
    assert len(queue.take(1, FIRST, Room(100))) == 10


def test_requests_of_a_group_take_turns() -> None:
    queue = ServiceQueue(1, None, lambda _: True)
    queue.put(OPTIONS, [Sentence(n, [9] * (9 + n)) for n in range(6)], 0)
    queue.put(OPTIONS, [Sentence(6, [9] * 4), Sentence(7, [9] * 5)], 1)
    queue.put(OPTIONS, [Sentence(8, [9] * 20)], 2)
    assert queue.next_group(0) == FIRST
    room = Room(3 * 21)
    assert [one.index for one in queue.take(0, FIRST, room)] == [8, 5, 7]
    # The next round is one of each again, without those that had a single one.
    assert [one.index for one in queue.take(0, FIRST, Room(4 * 14))] == [4, 6, 3, 2]
    assert [one.index for one in queue.drop_waiting(0)] == [1, 0]
    assert queue.load() == Load(0, 7)


def test_long_sentences_are_a_group_of_their_own() -> None:
    queue = ServiceQueue(1, None, lambda _: True, batches=2)
    queue.put(OPTIONS, [Sentence(0, [9] * (LONG + 1)), Sentence(1, [9] * LONG)], 0)
    begun = [queue.next_group(0) for _ in range(2)]
    assert begun == [Group(OPTIONS), Group(OPTIONS, long=True)]
    taken = {group: queue.take(0, group, Room(512)) for group in begun if group is not None}
    assert [one.index for some in taken.values() for one in some] == [1, 0]


def test_large_requests_are_a_group_of_their_own() -> None:
    queue = ServiceQueue(1, None, lambda _: True, batches=2)
    for n in range(LARGE + 2):
        queue.put(OPTIONS, [Sentence(n, [9] * 9)], 0)
    queue.put(OPTIONS, [Sentence(20, [9] * 9)], 1)
    begun = [queue.next_group(0) for _ in range(2)]
    assert begun == [FIRST, Group(OPTIONS, large=True)]
    taken = {group: queue.take(0, group, Room(512)) for group in begun if group is not None}
    assert [len(some) for some in taken.values()] == [LARGE + 1, 2]
    for group, some in taken.items():
        queue.done(group, some)
    queue.put(OPTIONS, [Sentence(30, [9] * 9)], 0)  # the request has one again
    assert queue.ready(0, FIRST, Room(512)) == 1


def test_batches_of_a_worker_share_its_tokens() -> None:
    queue = ServiceQueue(1, None, lambda _: True, batches=3)
    for n in range(40):
        queue.put(OPTIONS, [Sentence(n, [9] * 9)], n)
    group = queue.next_group(0)
    assert group is not None
    assert len(queue.take(0, group, Room(200))) == 20
    for number, options in enumerate(OTHERS):
        for n in range(50 + 30 * number, 80 + 30 * number):
            queue.put(options, [Sentence(n, [9] * 9)], n)
    second, third = (queue.next_group(0, wait=False) for _ in range(2))
    assert (second, third) == (Group(OTHERS[0]), Group(OTHERS[1]))
    assert queue.next_group(0, wait=False) is None
    assert len(queue.take(0, Group(OTHERS[0]), Room(200))) == 200 // 3 // 10
    assert queue.ready(0, group, Room(200, beside=10, longest=10)) == 0


def test_a_worker_helps_where_more_requests_wait_than_it_serves() -> None:
    queue = ServiceQueue(2, None, lambda _: True, batches=2)
    queue.put(OPTIONS, [Sentence(n, [9] * 9) for n in range(4)], 0)
    for worker in range(2):
        assert queue.next_group(worker) == FIRST
        assert len(queue.take(worker, FIRST, Room(1000))) == 2
    cheap = Group(OTHERS[0])
    queue.put(OTHERS[0], [Sentence(10, [9] * 9)], 1)
    assert queue.next_group(0, wait=False) == cheap
    assert queue.next_group(1, wait=False) is None  # one request waits, and it serves one
    queue.put(OTHERS[0], [Sentence(11, [9] * 9)], 2)
    assert queue.next_group(1, wait=False) == cheap


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
        with pytest.raises(InputError, match="has token 99999, outside"):
            service.submit([5, 99999])
        with pytest.raises(OptionError, match="max_length 9999"):
            service.submit("a", SearchOptions(max_length=9999))
