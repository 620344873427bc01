"""Sentences one at a time, from any thread, in batches that never end: continuous batching."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from translate_trt.runtime.core_service import CoreService
from translate_trt.runtime.errors import BackendError, OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, Statistics, Translation
from translate_trt.runtime.search import JOIN, Room, Search, Sentence
from translate_trt.runtime.service_queue import Group, ServiceQueue
from translate_trt.runtime.translator import Translator
from translate_trt.runtime.workers import failed_twice

log = logging.getLogger("translate_trt")

_in_worker = threading.local()  # `here`: this thread is a service's


class _Future(Future[Translation]):
    """A future whose callbacks cannot end a worker's thread."""

    def add_done_callback(self, fn: Callable[[Future[Translation]], object]) -> None:
        super().add_done_callback(partial(_call, fn))


def _call(callback: Callable[[Future[Translation]], object], future: Future[Translation]) -> None:
    """Call it; in a worker's thread, report whatever it raises."""
    if not getattr(_in_worker, "here", False):
        callback(future)
        return
    try:
        callback(future)
    except BaseException as error:
        _report("a callback of a translation raised %r", error)


def _report(message: str, *given: object) -> None:
    """Log an error, whatever the program's logging handlers do."""
    with contextlib.suppress(BaseException):
        log.error(message, *given)


@dataclass(eq=False)
class _Line:
    """What was submitted at once; all pieces of it are translated before its future is done."""

    future: Future[Translation]
    pieces: list[list[Hypothesis]]
    left: int
    wanted: bool | None = None  # None: no batch has been about to take any piece of it yet
    failed: bool = False


@dataclass
class _Turn:
    """A batch of a worker.

    Attributes:
        spent: seconds that its steps took, each divided by the requests in the batch.
    """

    spent: float
    search: Search | None = None


class TranslationService:
    """Translates what threads submit, each line as soon as a batch has capacity for it.

    A line that comes joins the batch of a worker that is translating others; a lone one is begun at
    once. What is found is what `Translator.translate` finds. Close it, or use it in a `with`.

    Lines of one beam size and of like length share batches, whatever their other options
    (`SearchOptions.of_batch`); batches of a worker take turns, step by step, with equal time for
    each request in them.
    """

    def __init__(
        self,
        translator: Translator,
        *,
        capacity: int | None = None,
        batches: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start as many workers as the translator has.

        Args:
            translator: of which other threads may make use meanwhile.
            capacity: lines, or pieces of long ones, from which on `submit` waits until one is done;
                None: it never waits, and memory is the bound.
            batches: that a worker runs at once, of lines that cannot share one; on libtranslate_trt
                it is always 4.
            clock: seconds, by which batches of a worker take turns.

        Raises:
            OptionError: a number is out of range.
        """
        for name, value in (("capacity", capacity), ("batches", batches)):
            if value is not None and value < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1.")
        self._translator, self._clock, self._process = translator, clock, os.getpid()
        self._core = None if translator.core is None else CoreService(translator, capacity)
        if self._core is not None:
            return
        self._queue = ServiceQueue(translator.workers, capacity, self._begin, batches)
        self._numbers, self._requests = itertools.count(), itertools.count()
        self._lock = threading.Lock()  # of what follows
        self._sentences: dict[int, tuple[_Line, int]] = {}  # by number: the line, which piece of it
        self._done = Statistics()
        self._threads = [
            threading.Thread(
                target=self._work, args=(n,), name=f"translation-service-{n}", daemon=True
            )
            for n in range(translator.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        source: str | Sequence[int],
        options: SearchOptions | None = None,
        target_prefix: str | Sequence[int] = "",
        *,
        request: int | None = None,
    ) -> Future[Translation]:
        """Hand in a line of text, or the tokens of one.

        Args:
            source: text of any length, or source token ids without the end symbol.
            options: None takes the bundle's defaults.
            target_prefix: what the translation must begin with, as text or target token ids.
            request: of `new_request`: lines of one request share its turns; None: the line has
                turns of its own.

        Returns:
            Its translation. Until a batch has taken the line it can be cancelled. Callbacks of the
            future run in a worker's thread: they must be short, and not submit where there is a
            capacity; what they raise is logged. `exception()` is a `BackendError` if the backend
            failed with this very line, or a worker has ended.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
            TranslateTrtError: the service was closed, has failed, or was made by the process that
                this one was forked from.
        """
        if self._core is not None:
            options = options or self._translator.default_options
            return self._core.submit(source, options, target_prefix, request)
        self._check_process()
        options = options or self._translator.default_options
        pieces = self._translator.prepare(source, options, target_prefix)
        line = _Line(_Future(), [[] for _ in pieces], len(pieces))
        if not pieces:
            line.future.set_result(self._translator.join([]))
            return line.future
        sentences = [Sentence(next(self._numbers), *piece, options) for piece in pieces]
        with self._lock:
            self._sentences |= {one.index: (line, n) for n, one in enumerate(sentences)}
        try:
            number = next(self._requests) if request is None else request
            self._queue.put(options.of_batch(), sentences, number)
        except TranslateTrtError:
            self._forget(sentences)
            raise
        return line.future

    def new_request(self) -> int:
        """A number for lines that belong together."""
        return next(self._requests) if self._core is None else self._core.new_request()

    def cancel(self, request: int) -> None:
        """Drop what no batch has taken yet of a request, pieces of long lines among it.

        Lines that have not been begun are cancelled, those that have been in part fail. Where
        libtranslate_trt translates, lines in a batch are cancelled as well.
        """
        if self._core is not None:
            self._core.cancel(request)
            return
        self._check_process()
        for line, _ in self._forget(self._queue.drop_waiting(request)):
            self._drop(line, "was cancelled")

    @property
    def failed(self) -> bool:
        """True once a worker has ended before its time; there will be no more translations."""
        return self._queue.failed if self._core is None else self._core.failed

    def statistics(self) -> Statistics:
        """Current load, and totals since the start."""
        if self._core is not None:
            return self._core.statistics()
        load = self._queue.load()
        with self._lock:
            return replace(self._done, waiting=load.waiting, running=load.running)

    def close(self, cancel_futures: bool = False) -> None:
        """Take no more lines, and wait until all are translated.

        In a process that was forked from the one that made the service, this does nothing.

        Args:
            cancel_futures: cancel those that no batch has taken yet.
        """
        if self._core is not None:
            self._core.close(cancel_futures)
            return
        if os.getpid() != self._process:
            return
        self._queue.close()
        if cancel_futures:
            for line, _ in self._forget(self._queue.drop_waiting()):
                self._drop(line, "belonged to a translation service that was closed")
        for thread in self._threads:
            if thread is not threading.current_thread():  # in a callback
                thread.join()

    def __enter__(self) -> TranslationService:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(cancel_futures=kind is not None)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise TranslateTrtError(
                f"this translation service was made by process {self._process}, whose threads this "
                f"process ({os.getpid()}), forked from it, does not have. Make translator and "
                "service after the fork."
            )

    # ---- the workers' side ----

    def _work(self, worker: int) -> None:
        """A worker's thread; should it end before its time, all lines fail."""
        _in_worker.here = True
        try:
            self._serve(worker)
        except BaseException as error:
            self._fail_all(error)

    def _serve(self, worker: int) -> None:
        """Run batches of several groups, step by step; one that dies is replaced."""
        turns: dict[Group, _Turn] = {}
        while not self._queue.failed:
            group = self._queue.next_group(worker, wait=not turns)
            if group is not None:
                turns[group] = _Turn(min((one.spent for one in turns.values()), default=0.0))
            elif not turns:
                return
            # Of equals the newest, whose sentences have waited and may soon be done.
            group, turn = min(reversed(turns.items()), key=lambda one: one[1].spent)
            begun = self._clock()
            share = self._advance(worker, group, turn)
            if share is None:
                del turns[group], turn
                self._queue.end(worker, group)
            else:
                turn.spent += (self._clock() - begun) / share

    def _advance(self, worker: int, group: Group, turn: _Turn) -> float | None:
        """Take a step of a batch; how many requests it is for, or None: it has run out."""
        try:
            if turn.search is None:
                turn.search = self._translator.new_search(group.options)
            waiting = _OfWorker(self._queue, worker, group)
            rows = turn.search.advance(waiting, partial(self._found, group))
        except Exception as error:
            # Where there is not even a batch, the line that it was for has failed.
            sentences = [] if turn.search is None else turn.search.unfinished()
            self._died(group, sentences or self._queue.take(worker, group, Room(1)), error)
            return None
        if not rows:
            return None
        with self._lock:
            self._done = replace(
                self._done, steps=self._done.steps + 1, rows=self._done.rows + rows
            )
        return self._queue.share(worker, turn.search.sentences) or 1.0

    def _begin(self, sentence: Sentence) -> bool:
        """See `ServiceQueue`, which asks for one sentence at a time."""
        with self._lock:
            line, _ = self._sentences.get(sentence.index, (None, 0))
            if line is None:  # the service has failed
                return False
            if line.wanted is None:
                line.wanted = line.future.set_running_or_notify_cancel()
            if not line.wanted or line.failed:
                del self._sentences[sentence.index]
                return False
        return True

    def _found(self, group: Group, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        with self._lock:
            line, piece = self._sentences.pop(sentence.index, (None, 0))
            if line is None:  # the service has failed
                return
            line.pieces[piece] = hypotheses
            line.left -= 1
            complete = not line.left  # a piece that failed is left for ever
            self._done = replace(
                self._done,
                sentences=self._done.sentences + 1,
                source_tokens=self._done.source_tokens + len(sentence.tokens),
                target_tokens=self._done.target_tokens + sum(len(h.tokens) for h in hypotheses[:1]),
            )
        self._queue.done(group, [sentence])
        if not complete:
            return
        try:
            line.future.set_result(self._translator.join(line.pieces))
        except Exception as error:
            self._fail(line, error)

    def _died(self, group: Group, sentences: Sequence[Sentence], error: Exception) -> None:
        """What a batch died with is tried once more, each sentence alone; then it has failed."""
        if not sentences:
            return
        known = isinstance(error, TranslateTrtError)
        if group.alone is None and not (known and len(sentences) == 1):
            _report("a batch failed (%s); its %d sentences are retried", error, len(sentences))
            self._queue.retry(group, sentences)
            return
        for line, _ in self._forget(sentences):
            self._fail(line, error if known else failed_twice(error))
        self._queue.done(group, sentences)

    def _fail_all(self, error: BaseException) -> None:
        """Let all lines fail, and those that will be submitted."""
        self._queue.close(error)
        with self._lock:
            lines = {id(line): line for line, _ in self._sentences.values()}
            self._sentences.clear()
        failure = BackendError(
            f"a worker of the translation service has ended ({error!r}), and the service with it; "
            "make another one."
        )
        failure.__cause__ = error
        for line in lines.values():
            with self._lock:
                wanted, line.wanted = line.wanted, False
            if wanted or (wanted is None and line.future.set_running_or_notify_cancel()):
                self._fail(line, failure)
        _report("%s", failure)

    def _drop(self, line: _Line, why: str) -> None:
        """Cancel a line of which a piece will not be translated."""
        with self._lock:
            wanted, line.wanted = line.wanted, bool(line.wanted)
        if wanted:  # another piece of it runs, and a future cannot be cancelled any more
            self._fail(line, TranslateTrtError(f"the line {why} before all of it was translated."))
        elif wanted is None:
            line.future.cancel()
            line.future.set_running_or_notify_cancel()

    def _fail(self, line: _Line, error: Exception) -> None:
        with self._lock:
            first, line.failed = not line.failed, True
        if first:  # of its pieces
            line.future.set_exception(error)

    def _forget(self, sentences: Sequence[Sentence]) -> list[tuple[_Line, int]]:
        with self._lock:
            known = (one.index for one in sentences if one.index in self._sentences)
            return [self._sentences.pop(index) for index in known]


@dataclass(frozen=True)
class _OfWorker:
    """`Queue` of a batch of a worker."""

    queue: ServiceQueue
    worker: int
    group: Group

    def should_join(self, room: Room, size: int) -> bool:
        """See `Queue`.

        Sentences need not wait for others to leave where the batch has room for more. Of one with
        a few rows, each that comes makes a larger copy: that takes a part of a step, or less.
        """
        return self.queue.ready(self.worker, self.group, room) >= max(1, size * JOIN)

    def take(self, room: Room) -> list[Sentence]:
        """See `Queue`."""
        return self.queue.take(self.worker, self.group, room)
