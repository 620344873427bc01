"""Translation service: results, cancellation and failures."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any

import pytest
from support.translations import assert_same, random_sources

from translate_trt.runtime import (
    SearchOptions,
    Translation,
    TranslationService,
    Translator,
)
from translate_trt.runtime import service as service_module
from translate_trt.runtime.errors import (
    CapacityError,
    InputError,
    OptionError,
    TranslateTrtError,
)
from translate_trt.runtime.native import core
from translate_trt.runtime.text.glossary import Entry, Glossary

OPTIONS = [
    SearchOptions(beam_size=3, num_hypotheses=3, max_length=12),
    SearchOptions(beam_size=2, length_penalty=1.5, length_penalty_form="length"),
    SearchOptions(beam_size=4, min_length=6, max_length=9, early_stopping=True),
]
LINES = [
    "the cat runs.", "", "a big dog sleeps under the tree.", "Haus", "日本", "the river walks",
    "The cat sleeps under the big tree. A dog walks over the river! " * 8,
]  # fmt: skip

Start = Callable[..., TranslationService]


@pytest.fixture(scope="module")
def expected(translator: Translator) -> dict[str, Translation]:
    """Translations of the lines with the bundle's options."""
    return {line: translator.translate(line) for line in LINES}


RESOLVE = service_module._resolve


class Held:
    """Block the services' threads before they resolve futures, until `release`.

    Attributes:
        worked: those that were about to get one; they cannot be cancelled any more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worked: list[Future[Translation]] = []
        self._begun, self._submitted, self._free = (threading.Event() for _ in range(3))
        monkeypatch.setattr("translate_trt.runtime.service._resolve", self._resolve)
        finished = core.Completions.wait

        def wait(completions: core.Completions) -> list[int]:
            # What has finished before it is submitted is resolved by who submits it.
            keys = finished(completions)
            assert self._submitted.wait(60)
            return keys

        monkeypatch.setattr(core.Completions, "wait", wait)

    def submit(
        self, service: TranslationService, line: str, request: int | None = None
    ) -> Future[Translation]:
        """Submit the first line; where there is one worker, all later ones wait behind it."""
        future = service.submit(line, request=request)
        self._submitted.set()
        assert self._begun.wait(60)
        return future

    def release(self) -> None:
        self._submitted.set()
        self._free.set()

    def _resolve(self, future: Future[Translation], work: Callable[[], Translation]) -> None:
        def held() -> Translation:
            self.worked.append(future)
            self._begun.set()
            assert self._free.wait(60)
            return work()

        RESOLVE(future, held)


@pytest.fixture
def start(translator: Translator) -> Iterator[Start]:
    """Start services that are closed after the test and leave no threads."""
    services = []
    before = set(threading.enumerate())  # a server of other tests may have a service

    def start(translator: Translator = translator, **more: Any) -> TranslationService:
        services.append(TranslationService(translator, **more))
        return services[-1]

    yield start
    for service in services:
        service.close()
    left = [one.name for one in threading.enumerate() if one not in before]
    assert [name for name in left if name.startswith("translation-service")] == []


@pytest.fixture
def held(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Release the threads before the services of `start` are closed."""
    held = Held(monkeypatch)
    yield held
    held.release()


def assert_found(found: Translation, expected: Translation) -> None:
    assert [one.text for one in found.hypotheses] == [one.text for one in expected.hypotheses]
    ours, theirs = ([list(one.segments) for one in line.hypotheses] for line in (found, expected))
    assert_same(ours, theirs)


def when_full(service: TranslationService, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set once a thread waits for capacity."""
    changed, waits = service._changed, threading.Event()
    real = changed.wait

    def waiting(timeout: float | None = None) -> bool:
        waits.set()
        return real(timeout)

    monkeypatch.setattr(changed, "wait", waiting)
    return waits


# ---- what is found ----


#: Options and constraints of one sentence, by the rules of the search that they use.
RULES: list[tuple[dict[str, Any], list[list[int]]]] = [
    ({}, []),
    ({"loop_guard": True}, []),
    ({"repetition_penalty": 1.3, "disable_unk": True}, []),
    ({"no_repeat_ngram_size": 2, "suppress_sequences": "279, 107 107 107"}, []),
    ({"beam_size": 1, "sampling_top_k": 8, "seed": 3}, []),
    ({"alternatives": 3}, []),
    ({}, [[40, 41], [42]]),
]


def test_sentences_of_all_rules_share_batches(start: Start, looping_bundle: Path) -> None:
    translator = Translator(looping_bundle, threads=1, workers=1)
    service = start(translator)
    sources = random_sources(3 * len(RULES), seed=8, longest=9)
    asked = [
        (source, SearchOptions(max_length=20, **options), constraints)
        for source, (options, constraints) in zip(sources, RULES * 3, strict=True)
    ]
    futures = [
        service.submit(source, options, constraints=constraints)
        for source, options, constraints in asked
    ]
    for future, (source, options, constraints) in zip(futures, asked, strict=True):
        found = [one.segments[0] for one in future.result(60).hypotheses]
        alone = translator.translate_ids([source], options, constraints=[constraints])
        assert_same([found], alone)


def test_it_finds_what_the_translator_finds(start: Start, compiled_bundle: Path) -> None:
    translator = Translator(compiled_bundle, "onnx-int8", threads=1, workers=2)
    service = start(translator)
    tokens = translator.tokenizer.encode_source(LINES[0])
    prefix = translator.tokenizer.encode_target("der")
    begun = translator.translate(LINES, None, ["der"] * len(LINES))
    for found, right in (
        ([service.submit(line) for line in LINES], translator.translate(LINES)),
        ([service.submit(line, None, "der") for line in LINES], begun),
        ([service.submit(tokens, OPTIONS[0])], translator.translate(LINES[:1], OPTIONS[0])),
        ([service.submit(tokens, None, one) for one in ("der", prefix)], [begun[0]] * 2),
    ):
        for future, translation in zip(found, right, strict=True):
            assert_found(future.result(60), translation)
    assert service.submit([]).result(60).text == ""


#: Arguments that mean the same to a service and to a translator.
ARGUMENTS: list[dict[str, Any]] = [
    {"alignments": True},
    {"constraints": ["Hund"]},
    {"markup": "html"},
    {"split_sentences": "en", "alignments": True},
    {"terminology": Glossary([Entry("cat", ("Hund",))])},
    {"translate_all": True},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids="-".join)
def test_arguments_of_a_line(start: Start, translator: Translator, arguments: Any) -> None:
    pytest.importorskip("sentencex")
    service = start()
    for line in ("The <b>cat</b> runs, {name}. A dog sleeps.", "12", ""):
        found = service.submit(line, OPTIONS[0], **arguments).result(60)
        expected = translator.translate(line, OPTIONS[0], **arguments)
        assert_found(found, expected)
        for one, other in zip(found.hypotheses, expected.hypotheses, strict=True):
            assert one.terms == other.terms
            assert (one.alignment and one.alignment.pairs()) == (
                other.alignment and other.alignment.pairs()
            )


def test_lines_of_one_request(
    start: Start, translator: Translator, expected: dict[str, Translation]
) -> None:
    service = start()
    request = translator.request(LINES)
    for found, line in zip(service.submit_request(request).result(60), LINES, strict=True):
        assert_found(found, expected[line])
    # A document without text has nothing to wait for.
    empty = translator.request(["<p></p>", "<br>"], document=True, markup="html")
    assert [one.text for one in service.submit_request(empty).result(60)] == ["<p></p>", "<br>"]


# ---- what is refused, and what fails ----


def test_what_is_no_line_is_refused(start: Start) -> None:
    service = start()
    for source, prefix in ((b"the cat", ""), (bytearray(b"a"), ""), ("a", b"b"), (None, "")):
        with pytest.raises(InputError, match="token ids"):
            service.submit(source, target_prefix=prefix)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="SearchOptions"):
        service.submit("a", {"beam_size": 2})  # type: ignore[arg-type]
    for line, more in (
        ("<b>", {"markup": "xml"}),
        ([5, 6], {"markup": "html"}),
        ([5, 6], {"split_sentences": True}),
        ([5, 6], {"alignments": True}),
        ("", {"target_prefix": "a", "score": True}),
    ):
        with pytest.raises((InputError, OptionError)):
            service.submit(line, **more)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"row 7.*XML"):
        service.submit_document("<b>", markup="xml", name="row 7")
    with pytest.raises(InputError):
        service.submit_document(b"a")  # type: ignore[arg-type]


def test_wrong_lines_are_refused_as_they_are_submitted(start: Start) -> None:
    service = start(capacity=1)  # of which they take nothing
    for _ in range(2):
        with pytest.raises(InputError, match="99999"):
            service.submit([5, 99999])
        with pytest.raises(InputError, match="99999"):
            service.submit("a", None, [99999])
        with pytest.raises(InputError, match="--max-source-length"):
            service.submit([5] * 999)
        with pytest.raises(OptionError, match="max_length"):
            service.submit("a", SearchOptions(max_length=9999))
    assert service.submit("the cat").result(60).text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_at_once(start: Start, expected: dict[str, Translation]) -> None:
    service = start()
    service.submit(LINES[0]).result(60)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:  # an error that passed on would make this process a second one of the tests
            for call in (lambda: service.submit(LINES[0]), lambda: service.cancel(1)):
                try:
                    call()
                except TranslateTrtError as error:
                    said.append(str(error))
            service.close()
        finally:
            os.write(write, "\n".join(said).encode())
            os._exit(len(said) != 2)
    os.close(write)
    with os.fdopen(read) as end:
        lines = end.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    told = f"made by process {os.getpid()}, whose threads this process ({child})"
    assert [told in line for line in lines] == [True, True]
    assert_found(service.submit(LINES[0]).result(60), expected[LINES[0]])


# ---- what callbacks do ----


class Rude(BaseException):
    """Exception that `except Exception` does not catch."""


class RudeHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise Rude


@pytest.mark.parametrize("handler", [logging.NullHandler(), RudeHandler()], ids=["log", "no log"])
@pytest.mark.parametrize("error", [Rude, SystemExit, ValueError])
def test_what_a_callback_raises_is_logged(
    start: Start, held: Held, expected: dict[str, Translation], error: type[BaseException],
    handler: logging.Handler, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Not even a log handler that raises ends the thread of the results."""
    # A future of the standard library logs exceptions itself, but for those of other kinds.
    name = "concurrent.futures" if error is ValueError else "translate_trt"
    monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
    service, told = start(), threading.Event()

    def raises(_: object) -> None:
        told.set()
        raise error

    first = held.submit(service, LINES[0])
    first.add_done_callback(raises)
    others = [service.submit(LINES[0])]
    held.release()
    assert told.wait(60)
    others.append(service.submit(LINES[0]))
    for future in (first, *others):
        assert_found(future.result(60), expected[LINES[0]])
    assert not service.failed
    service.close()
    if isinstance(handler, logging.NullHandler):
        (record,) = caplog.records
        assert record.name == name
        assert error is ValueError or repr(error()) in record.message


def test_a_callback_of_a_full_service_may_submit_one_line(
    start: Start, held: Held, expected: dict[str, Translation]
) -> None:
    service, refused = start(capacity=1), Future[BaseException]()
    first, more = held.submit(service, LINES[0]), list[Future[Translation]]()

    def submit(_: object) -> None:
        try:
            while len(more) < 3:
                more.append(service.submit(LINES[2]))
        except BaseException as error:
            refused.set_result(error)

    first.add_done_callback(submit)
    held.release()
    assert isinstance(refused.result(60), CapacityError)
    assert_found(service.submit(LINES[3]).result(60), expected[LINES[3]])
    assert more
    for future in more:
        assert_found(future.result(60), expected[LINES[2]])


def test_a_callback_may_close_the_service(
    start: Start, held: Held, expected: dict[str, Translation]
) -> None:
    service = start()
    first, closed = held.submit(service, LINES[0]), threading.Event()

    def close(_: object) -> None:
        service.close()
        closed.set()

    first.add_done_callback(close)
    second = service.submit(LINES[2])
    held.release()
    assert closed.wait(60)
    assert_found(second.result(60), expected[LINES[2]])
    with pytest.raises(TranslateTrtError, match="is closed"):
        service.submit(LINES[0])


# ---- cancelling and closing ----


def test_a_cancelled_future_is_not_translated(
    start: Start, held: Held, expected: dict[str, Translation]
) -> None:
    service = start()
    runs = held.submit(service, LINES[0])
    waits, segments, last = (service.submit(line) for line in (LINES[2], LINES[-1], LINES[3]))
    assert not runs.cancel()
    assert waits.cancel()
    assert segments.cancel()
    held.release()
    assert_found(runs.result(60), expected[LINES[0]])
    assert_found(last.result(60), expected[LINES[3]])
    assert wait([waits, segments], 60).not_done == set()  # waiting threads are notified
    assert held.worked == [runs, last]
    for one in (waits, segments):
        with pytest.raises(CancelledError):
            one.result()


def test_a_request_is_cancelled_without_those_of_others(
    start: Start, held: Held, expected: dict[str, Translation]
) -> None:
    service = start(capacity=9)
    request, another = service.new_request(), service.new_request()
    runs = held.submit(service, LINES[0], request=request)
    lines = [service.submit(line, request=request) for line in LINES[2:]]
    others = [service.submit(LINES[2], request=another), service.submit(LINES[3])]
    service.cancel(request)
    assert [one.cancelled() for one in lines] == [True] * len(lines)
    assert [one.cancelled() for one in (runs, *others)] == [False] * 3
    held.release()
    for future, line in zip((runs, *others), (LINES[0], LINES[2], LINES[3]), strict=True):
        assert_found(future.result(60), expected[line])
    # Cancelled lines free capacity.
    again = [service.submit(LINES[0], request=request) for _ in range(20)]
    for future in again:
        assert_found(future.result(60), expected[LINES[0]])
    service.close()
    assert service.statistics().waiting == 0


def test_submit_waits_while_the_service_is_full(
    start: Start, held: Held, expected: dict[str, Translation], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start(capacity=2)
    waits = when_full(service, monkeypatch)
    futures = [held.submit(service, LINES[0])]
    futures.append(service.submit(LINES[2]))
    assert not waits.is_set()
    third = Future[Future[Translation]]()
    thread = threading.Thread(target=lambda: third.set_result(service.submit(LINES[3])))
    thread.start()
    assert waits.wait(60)
    assert not third.done()
    held.release()
    thread.join(60)
    for future, line in zip((*futures, third.result(60)), (LINES[0], *LINES[2:4]), strict=True):
        assert_found(future.result(60), expected[line])
    with pytest.raises(OptionError, match="capacity is 0"):
        start(capacity=0)


def test_closing_ends_the_wait_for_capacity(
    start: Start, held: Held, expected: dict[str, Translation], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start(capacity=1)
    waits, errors = when_full(service, monkeypatch), list[str]()
    only = held.submit(service, LINES[0])

    def blocked() -> None:
        with pytest.raises(TranslateTrtError) as caught:
            service.submit(LINES[2])
        errors.append(str(caught.value))

    threads = [threading.Thread(target=blocked)]
    threads[0].start()
    assert waits.wait(60)
    threads.append(threading.Thread(target=service.close))
    threads[1].start()
    threads[0].join(60)
    assert "closed" in errors[0]
    held.release()
    threads[1].join(60)
    assert_found(only.result(60), expected[LINES[0]])


@pytest.mark.parametrize("cancel", [False, True])
def test_closed_while_busy(
    start: Start, held: Held, expected: dict[str, Translation], cancel: bool
) -> None:
    service = start()
    runs = held.submit(service, LINES[0])
    waits = [service.submit(LINES[2]), service.submit(LINES[-1])]
    cancelled = threading.Semaphore(0)
    for future in waits:
        future.add_done_callback(lambda _: cancelled.release())
    closing = threading.Thread(target=service.close, args=(cancel,))
    closing.start()
    if cancel:
        for _ in waits:
            assert cancelled.acquire(timeout=60)
    assert not runs.done()
    held.release()
    closing.join(60)
    assert not closing.is_alive()
    assert all(one.done() for one in (runs, *waits))
    assert [one.cancelled() for one in waits] == [cancel] * 2
    assert_found(runs.result(), expected[LINES[0]])
    if not cancel:
        for future, line in zip(waits, (LINES[2], LINES[-1]), strict=True):
            assert_found(future.result(), expected[line])
    with pytest.raises(TranslateTrtError, match="closed"):
        service.submit(LINES[0])
    service.close()  # again


def test_closed_while_a_line_is_refused(compiled_bundle: Path) -> None:
    """The thread of the results wakes up before the line is known to have no result."""
    translator = Translator(compiled_bundle, threads=1)
    assert translator.core is not None
    service: Any = TranslationService(translator)
    submitted, woken, refuse = threading.Event(), threading.Event(), threading.Event()

    class Refusing:
        calls = translator.core.calls

        def submit(self, *_: Any, **__: Any) -> Any:
            submitted.set()
            assert refuse.wait(60)
            raise InputError("no")

    class Woken:
        def __init__(self, completions: Any) -> None:
            self.completions, self.handle = completions, completions.handle

        def add(self, key: int) -> None:
            self.completions.add(key)

        def wait(self) -> Any:
            woken.set()  # it has returned from the wait that began before this object was there
            return self.completions.wait()

    service._core, service._completions = Refusing(), Woken(service._completions)

    def submit() -> None:
        with pytest.raises(InputError):
            service.submit("a")

    threads = [threading.Thread(target=submit, daemon=True)]
    threads[0].start()
    assert submitted.wait(60)
    threads.append(threading.Thread(target=service.close, daemon=True))
    threads[1].start()
    assert woken.wait(60)
    refuse.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_in_a_with_block_waits_for_nobody_but_those_that_run(
    translator: Translator, held: Held, expected: dict[str, Translation]
) -> None:
    futures = list[Future[Translation]]()

    def use() -> None:
        with TranslationService(translator) as service:
            futures.append(held.submit(service, LINES[0]))
            futures.append(service.submit(LINES[2]))
            futures[1].add_done_callback(lambda _: held.release())
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert_found(futures[0].result(0), expected[LINES[0]])
    assert futures[1].cancelled()
