"""Continuous batching of lines submitted by any thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Self

from translate_trt.runtime.arguments import checked_texts
from translate_trt.runtime.errors import (
    BackendError,
    CapacityError,
    TranslateTrtError,
)
from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.native import missing_library
from translate_trt.runtime.native.core import Completions, Job, LineJobs
from translate_trt.runtime.options import SearchOptions, check_least
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")

# Completion key that belongs to no line and only wakes the thread up.
_WAKE_UP = 2**62


class _Future(Future[Any]):
    """Future that also cancels its job.

    Attributes:
        job: The job in progress; None before the first, and between two.
    """

    job: Job | None = None

    def cancel(self) -> bool:
        """Cancel the future and the rest of its job, unless it has finished."""
        cancelled, job = super().cancel(), self.job
        if cancelled and job is not None:
            job.cancel()
        return cancelled


@dataclass(frozen=True)
class _Line:
    future: _Future
    jobs: LineJobs
    result: Callable[[list[Translation]], Any]
    request: int


class TranslationService:
    """Translate submitted lines with continuous batching.

    A new line joins a running batch as soon as that has capacity, or starts a batch if a worker is
    idle. Results equal those of `Translator.translate`. Close the service, or use it in a `with`
    statement. It needs libtranslate_trt.

    Lines of one beam size and of similar length share batches, whatever their other options. The
    batches of a worker take turns after each step, with equal time for each request, running or
    waiting. A line can be cancelled at any time before it is finished, even in a running batch.
    """

    def __init__(self, translator: Translator, *, capacity: int | None = None) -> None:
        """Start a service on the translator's workers.

        Args:
            translator: A loaded bundle; other threads may use it at the same time.
            capacity: Maximum number of unfinished lines; `submit` blocks while that many are in
                the service, except in callbacks. None means no limit.

        Raises:
            OptionError: The capacity is less than 1.
            BackendError: The translator does not run on libtranslate_trt.
        """
        check_least(1, capacity=capacity)
        if translator.core is None:
            raise BackendError(missing_library("a service"))
        self._translator, self._core = translator, translator.core
        self._capacity, self._process = capacity, os.getpid()
        self._completions = Completions(self._core)
        self._keys, self._requests = itertools.count(1), itertools.count(1)
        self._changed = threading.Condition()  # guards all attributes below
        self._lines: dict[int, _Line] = {}
        self._early: set[int] = set()  # keys of jobs that finished before `submit` knew the job
        self._closed = self._ended = False
        self._thread = threading.Thread(
            target=self._resolve_all, name="translation-service", daemon=True
        )
        self._thread.start()

    def submit(
        self,
        source: str | Sequence[int],
        options: SearchOptions | None = None,
        target_prefix: str | Sequence[int] = "",
        *,
        request: int | None = None,
        score: bool = False,
        split_sentences: bool | str = False,
        constraints: Sequence[str] | Sequence[Sequence[int]] = (),
        terminology: Glossary | None = None,
        alignments: bool = False,
        markup: str | None = None,
        translate_all: bool = False,
        name: str | None = None,
    ) -> Future[Translation]:
        """Submit one line of text, or its tokens.

        Args:
            source: Text of any length, or source token ids without the end symbol.
            options: Search options; None uses the bundle's defaults.
            target_prefix: Text or target token ids that the translation must begin with.
            request: Number from `new_request`. Lines of one request share its scheduling turns;
                None gives the line turns of its own.
            score: The target prefix is a whole translation, which is scored
                (`Translator.score`).
            split_sentences: Translate the sentences of a text one by one (`Translator.translate`).
            constraints: Phrases that the translation must have, as text or target token ids.
            terminology: Glossary (`Translator.translate`).
            alignments: Align the words of a text with those of its translations
                (`Translator.translate`).
            markup: Take tags or placeholders out of a text, and put them back
                (`Translator.translate`).
            translate_all: Let the model translate a text without letters or an address as well
                (`Translator.translate`).
            name: Name of the line in error messages, such as "sentence 3"; None: "line 1 of this
                call".

        Returns:
            A future of the translation. It can be cancelled until the line is finished. Its
            callbacks run in the thread that resolves futures: they must be short and must not wait
            for another line; exceptions they raise are logged. `exception()` is a `BackendError` if
            the backend failed on this line or a worker has ended.

        Raises:
            InputError: A token is outside the vocabulary, or the line exceeds the bundle's limit.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            CapacityError: The service is full, and this is a callback, which cannot wait. A
                callback may submit one line in place of its own.
            TranslateTrtError: The service is closed, has failed, or belongs to the process that
                this process was forked from.
        """
        of_line = self._translator.line_request(
            source, options, target_prefix, name=name, score=score,
            split_sentences=split_sentences, constraints=constraints, terminology=terminology,
            alignments=alignments, markup=markup, translate_all=translate_all,
        )  # fmt: skip
        return self.submit_request(of_line, request=request, result=itemgetter(0))

    def submit_document(
        self,
        text: str,
        options: SearchOptions | None = None,
        *,
        request: int | None = None,
        split_sentences: bool | str = True,
        unwrap: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        alignments: bool = False,
        name: str | None = None,
    ) -> Future[Translation]:
        """Submit a text of many lines, whose structure is kept.

        Its sentences, or the texts between its tags, share batches and scheduling turns. The
        document counts as one line.

        Args:
            text: A whole document (`Translator.translate_document`).
            options: Search options; None uses the bundle's defaults.
            request: See `submit`.
            split_sentences: See `Translator.translate_document`.
            unwrap: See `Translator.translate_document`.
            markup: See `Translator.translate_document`.
            terminology: Glossary (`Translator.translate`).
            alignments: See `Translator.translate_document`.
            name: Name of the text in error messages; None: "text 1 of this call".

        Returns:
            A future of the translation; see `submit`.

        Raises:
            InputError: The text is not a string or not well-formed XML.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            TranslateTrtError: See `submit`.
        """
        of_text = self._translator.request(
            list(checked_texts("texts", "text", [text])), options, document=True,
            names=LineNames(None if name is None else [name], noun="text"),
            split_sentences=split_sentences, unwrap=unwrap, markup=markup,
            terminology=terminology, alignments=alignments,
        )  # fmt: skip
        return self.submit_request(of_text, request=request, result=itemgetter(0))

    def submit_request(
        self,
        lines: LineRequest,
        *,
        request: int | None = None,
        result: Callable[[list[Translation]], Any] = list,
    ) -> Future[Any]:
        """Submit the lines of `Translator.request`, which count as one line.

        They are cancelled together, and an error of one is an error of all.

        Args:
            lines: Lines or documents with all that is asked of their translations.
            request: See `submit`.
            result: Returns the future's result from the translations, in the order of the lines.

        Raises:
            TranslateTrtError: See `submit`.
        """
        self._check_process()
        jobs = LineJobs(self._core, lines)
        request = self.new_request() if request is None else request
        line = _Line(_Future(), jobs, result, request)
        with self._changed:
            while self._capacity is not None and self._is_full(self._capacity):
                if self._in_callback():
                    raise CapacityError(
                        f"the translation service has reached its capacity of {self._capacity} "
                        "lines, and a callback cannot wait for more, because callbacks run in the "
                        "thread that frees it: submit one line per callback, or submit from "
                        "another thread."
                    )
                self._changed.wait()
            if self._closed:
                raise TranslateTrtError("the translation service is closed; make another one.")
            if self._ended:
                raise _ended_error()
            key = next(self._keys)
            self._lines[key] = line
        try:
            if not self._start(key, line):  # a text with markup that has nothing to translate
                self._forget(key)
                line.future.set_result(result(jobs.translations))
        except BaseException:
            self._forget(key)
            raise
        return line.future

    def new_request(self) -> int:
        """Return a new request number, which groups lines for `submit` and `cancel`."""
        return next(self._requests)

    def cancel(self, request: int) -> None:
        """Cancel the unfinished lines of a request."""
        self._check_process()
        with self._changed:
            futures = [one.future for one in self._lines.values() if one.request == request]
        for future in futures:
            future.cancel()

    @property
    def failed(self) -> bool:
        """True after a thread of the service has died; no more lines will be translated."""
        return self._ended and not self._closed

    def statistics(self) -> Statistics:
        """Return the current load, and totals since the bundle was loaded."""
        found = self._core.statistics()
        return Statistics(
            found.pending, found.running, found.sentences, found.source_tokens,
            found.target_tokens, found.steps, found.rows, found.repeated,
        )  # fmt: skip

    def close(self, cancel_futures: bool = False) -> None:
        """Stop accepting lines and wait for those submitted.

        In a forked child of the process that created the service, this does nothing.

        Args:
            cancel_futures: Cancel unfinished lines instead of waiting for them.
        """
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            futures = [one.future for one in self._lines.values()]
        if cancel_futures:
            for future in futures:
                future.cancel()
        if not self._in_callback():  # a callback cannot join its own thread
            self._completions.add(_WAKE_UP)
            self._thread.join()

    def _start(self, key: int, line: _Line) -> bool:
        """Submit the next job of a line; return whether there is one."""
        job = line.jobs.submit(caller=line.request, completions=self._completions, key=key)
        if job is None:
            return False
        with self._changed:
            line.future.job = job
            early = key in self._early
            self._early.discard(key)
        if line.future.cancelled():  # before it had this job
            job.cancel()
        if early:
            self._finish(key, line)
        return True

    def _check_process(self) -> None:
        """Refuse calls in a process that was forked from the one with the threads."""
        if os.getpid() != self._process:
            raise TranslateTrtError(
                f"this translation service was made by process {self._process}, whose threads this "
                f"process ({os.getpid()}), forked from it, does not have. Make translator and "
                "service after the fork."
            )

    def _in_callback(self) -> bool:
        return threading.current_thread() is self._thread

    def _is_full(self, capacity: int) -> bool:
        # A callback may submit one line in place of its own, which is counted until it returns.
        is_open = not (self._closed or self._ended)
        return is_open and len(self._lines) >= capacity + self._in_callback()

    def _forget(self, key: int) -> None:
        with self._changed:
            self._lines.pop(key, None)
            self._early.discard(key)
            self._changed.notify_all()
            closed = self._closed
        if closed:  # the thread may have woken up before, and waits for a completion of this line
            self._completions.add(_WAKE_UP)

    # ---- the thread that resolves futures ----

    def _resolve_all(self) -> None:
        try:
            while not self._closed or self._lines:
                for key in self._completions.wait():
                    with self._changed:
                        line = self._lines.get(key)
                        if line is not None and line.future.job is None:
                            self._early.add(key)
                            line = None
                    if line is not None:
                        self._finish(key, line)
        except BaseException as error:
            log.error("the thread that resolves translations has ended (%r)", error)
            raise
        finally:
            with self._changed:
                self._ended = True
                left = list(self._lines.values())
                self._changed.notify_all()
            for line in left:  # empty unless the thread has failed
                _resolve(line.future, partial(_fail, _ended_error()))

    def _finish(self, key: int, line: _Line) -> None:
        """Continue a line after a job: start the next one, or resolve its future."""
        job, line.future.job = line.future.job, None
        assert job is not None
        found: list[Translation] = []  # stays empty if the future was cancelled
        work = partial(line.result, found)
        try:
            if not line.future.cancelled():
                line.jobs.receive(job)
                if self._start(key, line):
                    return
                found += line.jobs.translations
        except BaseException as error:
            work = partial(_fail, error)
        try:
            _resolve(line.future, work)
        finally:
            self._forget(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel_futures=kind is not None)


def _resolve(future: Future[Any], work: Callable[[], Any]) -> None:
    """Run a function and resolve a future with its result or exception, unless it was cancelled.

    Exceptions of the future's callbacks are logged; neither they nor a failing log handler
    propagate.
    """
    try:
        if not future.set_running_or_notify_cancel():
            return
        try:
            found = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)
    except BaseException as error:  # raised by a callback
        with contextlib.suppress(BaseException):
            log.error("a callback of a translation raised %r", error)


def _ended_error() -> BackendError:
    return BackendError(
        "the thread that resolves translations has ended, and the service with it; make another "
        "one."
    )


def _fail(error: BaseException) -> Translation:
    raise error
