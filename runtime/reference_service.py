"""`TranslationService` without libtranslate_trt: a thread pool translates line by line."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from translate_trt.runtime.futures import check_process, closed_error, full_error, resolve
from translate_trt.runtime.line_search import LineSearch, Searches, advance
from translate_trt.runtime.reference import Sentence
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.translator import Translator


class PlainService:
    """Implementation of `TranslationService` without batching, one thread per worker.

    Args:
        translator: A translator without a `core`.
        capacity: Maximum number of unfinished lines before `submit` blocks; None means no limit.
    """

    failed = False  # the pool's threads do not die

    def __init__(self, translator: Translator, capacity: int | None) -> None:
        self._translator, self._capacity, self._process = translator, capacity, os.getpid()
        self._pool = ThreadPoolExecutor(translator.workers, "translation-service")
        self._requests = itertools.count(1)
        self._own_thread = threading.local()  # has the attribute `here` in threads of the pool
        self._changed = threading.Condition()  # guards all attributes below
        self._lines: dict[Future[Translation], int] = {}  # request number of each line
        self._running, self._done, self._closed = 0, Statistics(), False

    def submit(self, searches: Searches, request: int) -> Future[Translation]:
        """See `CoreService.submit`."""
        check_process(self._process)
        step = advance(searches, None)
        prepared = self._translator.prepare(step) if isinstance(step, LineSearch) else []
        future = Future[Translation]()
        with self._changed:
            while self._is_full() and not self._closed:
                if self._in_callback():
                    raise full_error(self._capacity)
                self._changed.wait()
            if self._closed:
                raise closed_error()
            self._lines[future] = request
            self._pool.submit(self._run, future, searches, step, prepared)
        return future

    def new_request(self) -> int:
        """See `TranslationService`."""
        return next(self._requests)

    def cancel(self, request: int) -> None:
        """Cancel the lines of a request that no worker has started."""
        check_process(self._process)
        with self._changed:
            futures = [future for future, own in self._lines.items() if own == request]
        for future in futures:
            future.cancel()

    def statistics(self) -> Statistics:
        """See `TranslationService`; load is counted in lines, and steps and rows stay 0."""
        with self._changed:
            waiting = len(self._lines) - self._running
            return replace(self._done, waiting=waiting, running=self._running)

    def close(self, cancel_futures: bool) -> None:
        """See `TranslationService`."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            futures = list(self._lines)
        for future in futures if cancel_futures else ():
            future.cancel()
        self._pool.shutdown(wait=not self._in_callback())

    def _in_callback(self) -> bool:
        return getattr(self._own_thread, "here", False)

    def _is_full(self) -> bool:
        if self._capacity is None:
            return False
        # A callback may submit one line, even if its own line's capacity has been used again.
        return len(self._lines) >= self._capacity + self._in_callback()

    # ---- in a worker thread ----

    def _run(
        self,
        future: Future[Translation],
        searches: Searches,
        step: LineSearch | list[Translation],
        prepared: Sequence[Sequence[Sentence]],
    ) -> None:
        self._own_thread.here = True
        with self._changed:
            self._running += 1

        def work() -> Translation:
            try:
                return self._translate(searches, step, prepared)
            finally:
                # Before the future is resolved: its caller may read the statistics next.
                self._release(future)

        resolve(future, work)
        self._release(future)  # it was cancelled, and `work` did not run

    def _translate(
        self,
        searches: Searches,
        step: LineSearch | list[Translation],
        prepared: Sequence[Sequence[Sentence]],
    ) -> Translation:
        """Run the searches of a line, of which the first is prepared."""
        while isinstance(step, LineSearch):
            found = self._translator.translate_prepared(prepared)
            with self._changed:
                self._count([sentence for line in prepared for sentence in line], found)
            step = advance(searches, found)
            if isinstance(step, LineSearch):
                prepared = self._translator.prepare(step)
        (translation,) = step
        return translation

    def _release(self, future: Future[Translation]) -> None:
        """Stop counting a line as running; a second call has no effect."""
        with self._changed:
            if self._lines.pop(future, None) is not None:
                self._running -= 1
                self._changed.notify_all()

    def _count(self, segments: Sequence[Sentence], found: Sequence[Translation]) -> None:
        best = [segment for line in found for segment in line.hypotheses[0].segments]
        self._done = replace(
            self._done,
            sentences=self._done.sentences + len(segments),
            source_tokens=self._done.source_tokens + sum(len(one.tokens) for one in segments),
            target_tokens=self._done.target_tokens + sum(len(one.tokens) for one in best),
        )
