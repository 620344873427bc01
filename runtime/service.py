"""Sentences one at a time, from any thread, in batches that never end: continuous batching."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from types import TracebackType

from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, Translation
from translate_trt.runtime.search import JOIN, Room, Sentence
from translate_trt.runtime.service_queue import Group, ServiceQueue
from translate_trt.runtime.translator import Translator
from translate_trt.runtime.workers import failed_twice, run_search

log = logging.getLogger("translate_trt")


@dataclass(eq=False)
class _Line:
    """What was submitted at once; all pieces of it are translated before its future is done."""

    future: Future[Translation]
    pieces: list[list[Hypothesis]]
    left: int
    wanted: bool | None = None  # None: no batch has been about to take any piece of it yet
    failed: bool = False


class TranslationService:
    """Translates what threads submit, each line as soon as there is a place for it.

    A line that comes joins the batch of a worker that is translating others; a lone one is begun at
    once. What is found is what `Translator.translate` finds. Close it, or use it in a `with`.

    Lines of one beam size share batches, whatever their other options (`SearchOptions.of_batch`).
    If there are more beam sizes than workers, they take turns.
    """

    def __init__(self, translator: Translator, *, capacity: int | None = None) -> None:
        """Start as many workers as the translator has.

        Args:
            translator: of which other threads may make use meanwhile.
            capacity: lines, or pieces of long ones, from which on `submit` waits until one is done;
                None: it never waits, and memory is the bound.

        Raises:
            OptionError: the capacity is out of range.
        """
        if capacity is not None and capacity < 1:
            raise OptionError(f"capacity is {capacity}; it must be at least 1.")
        self._translator = translator
        self._queue = ServiceQueue(translator.workers, capacity, self._begin)
        self._numbers = itertools.count()
        self._lock = Lock()  # of what follows
        self._sentences: dict[int, tuple[_Line, int]] = {}  # by number: the line, which piece of it
        self._threads = [
            Thread(target=self._work, args=(n,), name=f"translation-service-{n}", daemon=True)
            for n in range(translator.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        source: str | Sequence[int],
        options: SearchOptions | None = None,
        target_prefix: str | Sequence[int] = "",
    ) -> Future[Translation]:
        """Hand in a line of text, or the tokens of one.

        Args:
            source: text of any length, or source token ids without the end symbol.
            options: None takes the bundle's defaults.
            target_prefix: what the translation must begin with, as text or target token ids.

        Returns:
            Its translation. Until a batch has taken the line it can be cancelled. Callbacks of the
            future run in a worker's thread: they must be short, and not submit where there is a
            capacity. `exception()` is a `BackendError` if the backend failed with this very line.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
            TranslateTrtError: the service was closed.
        """
        options = options or self._translator.default_options
        pieces = self._translator.prepare(source, options, target_prefix)
        line = _Line(Future(), [[] for _ in pieces], len(pieces))
        if not pieces:
            line.future.set_result(self._translator.join([]))
            return line.future
        sentences = [Sentence(next(self._numbers), *piece, options) for piece in pieces]
        with self._lock:
            self._sentences |= {one.index: (line, n) for n, one in enumerate(sentences)}
        try:
            self._queue.put(options.of_batch(), sentences)
        except TranslateTrtError:
            self._forget(sentences)
            raise
        return line.future

    def close(self, cancel_futures: bool = False) -> None:
        """Take no more lines, and wait until all are translated.

        Args:
            cancel_futures: cancel those that no batch has taken yet.
        """
        self._queue.close()
        if cancel_futures:
            for line, _ in self._forget(self._queue.drop_waiting()):
                self._drop(line)
        for thread in self._threads:
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

    # ---- the workers' side ----

    def _work(self, worker: int) -> None:
        """Serve one group after the other; a batch that dies is replaced."""
        while (group := self._queue.next_group(worker)) is not None:
            died = run_search(
                partial(self._translator.new_search, group.options),
                _OfWorker(self._queue, worker),
                partial(self._found, group),
            )
            if died is not None:
                sentences, error = died
                # Where there is not even a batch, the line that it was for has failed.
                self._died(group, sentences or self._queue.take(worker, Room(1)), error)
                del died, error  # which hold the batch, whose memory the next one may need

    def _begin(self, sentence: Sentence) -> bool:
        """See `ServiceQueue`, which asks for one sentence at a time."""
        with self._lock:
            line, _ = self._sentences[sentence.index]
            if line.wanted is None:
                line.wanted = line.future.set_running_or_notify_cancel()
            if not line.wanted or line.failed:
                del self._sentences[sentence.index]
                return False
        return True

    def _found(self, group: Group, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        with self._lock:
            line, piece = self._sentences.pop(sentence.index)
            line.pieces[piece] = hypotheses
            line.left -= 1
            complete = not line.left  # a piece that failed is left for ever
        self._queue.done(group)
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
            log.error("a batch failed (%s); its %d sentences are retried", error, len(sentences))
            self._queue.retry(group, sentences)
            return
        for line, _ in self._forget(sentences):
            self._fail(line, error if known else failed_twice(error))
        self._queue.done(group, len(sentences))

    def _drop(self, line: _Line) -> None:
        """Cancel a line of which a piece will not be translated."""
        with self._lock:
            wanted, line.wanted = line.wanted, bool(line.wanted)
        if wanted:  # another piece of it runs, and a future cannot be cancelled any more
            self._fail(line, TranslateTrtError("the translation service was closed."))
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
            return [self._sentences.pop(one.index) for one in sentences]


@dataclass(frozen=True)
class _OfWorker:
    """`Queue` of the group that a worker serves."""

    queue: ServiceQueue
    worker: int

    def should_join(self, room: Room, size: int) -> bool:
        """See `Queue`.

        Sentences need not wait for others to leave where the batch has room for more. Of one with
        a few rows, each that comes makes a larger copy: that takes a part of a step, or less.
        """
        return self.queue.ready(self.worker, room) >= max(1, size * JOIN)

    def take(self, room: Room) -> list[Sentence]:
        """See `Queue`."""
        return self.queue.take(self.worker, room)
