"""`TranslationService` on libtranslate_trt: its workers translate, a thread resolves futures."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.futures import check_process, closed_error, full_error, resolve
from translate_trt.runtime.line_search import LineSearch, Searches, advance
from translate_trt.runtime.native.core import Completions, Job
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")


class _Future(Future[Translation]):
    """Future that also cancels its job.

    Attributes:
        job: The search in progress; None before the first, and between two.
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
    searches: Searches
    request: int


class CoreService:
    """Implementation of `TranslationService` for translators that run on libtranslate_trt.

    A line can be cancelled at any time before it is finished, even in a running batch.

    Args:
        translator: A translator with a `core`.
        capacity: Maximum number of unfinished lines before `submit` blocks; None means no limit.
    """

    def __init__(self, translator: Translator, capacity: int | None) -> None:
        assert translator.core is not None
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

    def submit(self, searches: Searches, request: int) -> Future[Translation]:
        """Start the translation of one line.

        Args:
            searches: Translation of the line.
            request: Number of its request.

        Raises:
            TranslateTrtError: See `TranslationService.submit`.
        """
        check_process(self._process)
        step = advance(searches, None)
        future = _Future()
        with self._changed:
            while self._is_full() and not (self._closed or self._ended):
                if self._in_callback():
                    raise full_error(self._capacity)
                self._changed.wait()
            if self._closed:
                raise closed_error()
            if self._ended:
                raise _ended_error()
            if not isinstance(step, LineSearch):
                future.set_result(step[0])
                return future
            key = next(self._keys)
            line = self._lines[key] = _Line(future, searches, request)
        try:
            self._start(key, line, step)
        except BaseException:
            self._forget(key)
            raise
        return future

    def new_request(self) -> int:
        """See `TranslationService`."""
        return next(self._requests)

    def cancel(self, request: int) -> None:
        """See `TranslationService`."""
        check_process(self._process)
        with self._changed:
            futures = [one.future for one in self._lines.values() if one.request == request]
        for future in futures:
            future.cancel()

    @property
    def failed(self) -> bool:
        """True after the thread that resolves futures has died."""
        return self._ended and not self._closed

    def statistics(self) -> Statistics:
        """See `TranslationService`; the totals count from the loading of the bundle."""
        found = self._core.statistics()
        return Statistics(
            found.pending, found.running, found.sentences, found.source_tokens,
            found.target_tokens, found.steps, found.rows,
        )  # fmt: skip

    def close(self, cancel_futures: bool) -> None:
        """See `TranslationService`."""
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

    def _start(self, key: int, line: _Line, search: LineSearch) -> None:
        """Submit a search of a line."""
        job = self._core.search(search, caller=line.request, completions=self._completions, key=key)
        with self._changed:
            line.future.job = job
            early = key in self._early
            self._early.discard(key)
        if line.future.cancelled():  # before it had this job
            job.cancel()
        if early:
            self._finish(key, line)

    def _in_callback(self) -> bool:
        return threading.current_thread() is self._thread

    def _is_full(self) -> bool:
        if self._capacity is None:
            return False
        # A callback may submit one line in place of its own, which is counted until it returns.
        return len(self._lines) >= self._capacity + self._in_callback()

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
                resolve(line.future, partial(_fail, _ended_error()))

    def _finish(self, key: int, line: _Line) -> None:
        """Continue a line after a search: start the next one, or resolve its future."""
        job, line.future.job = line.future.job, None
        assert job is not None
        found: list[Translation] = []  # stays empty if the future was cancelled
        work = partial(_first, found)
        try:
            if not line.future.cancelled():
                step = advance(line.searches, job.result())
                if isinstance(step, LineSearch):
                    self._start(key, line, step)
                    return
                found += step
        except BaseException as error:
            work = partial(_fail, error)
        try:
            resolve(line.future, work)
        finally:
            self._forget(key)


def _ended_error() -> BackendError:
    return BackendError(
        "the thread that resolves translations has ended, and the service with it; make another "
        "one."
    )


def _first(found: Sequence[Translation]) -> Translation:
    return found[0]


def _fail(error: BaseException) -> Translation:
    raise error


# Completion key that belongs to no line and only wakes the thread up.
_WAKE_UP = 2**62
