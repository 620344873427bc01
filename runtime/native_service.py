"""`TranslationService` on libtranslate_trt: its workers translate, a thread resolves futures."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from translate_trt.runtime.arguments import token_ids
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.futures import check_process, closed_error, resolve
from translate_trt.runtime.native.core import Completions, Job
from translate_trt.runtime.results import Statistics, Translation
from translate_trt.runtime.service_line import ServiceLine
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")


class _Future(Future[Translation]):
    """Future that also cancels its job."""

    job: Job | None = None

    def cancel(self) -> bool:
        """Cancel the future and the rest of its job, unless it has finished."""
        cancelled = super().cancel()
        if cancelled and self.job is not None:
            self.job.cancel()
        return cancelled


@dataclass(frozen=True)
class _Line:
    future: _Future
    given: ServiceLine


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

    def submit(self, given: ServiceLine) -> Future[Translation]:
        """See `TranslationService`."""
        check_process(self._process)
        self._translator.check(given.options, score=given.score)
        source, target_prefix = given.source, given.target_prefix
        if not isinstance(source, str):
            source = token_ids("the line", source)
        if not isinstance(target_prefix, str):
            target_prefix = token_ids("the target prefix of the line", target_prefix)
        given = replace(given, source=source, target_prefix=target_prefix)
        future = _Future()
        with self._changed:
            while self._is_full() and not (self._closed or self._ended):
                self._changed.wait()
            if self._closed:
                raise closed_error()
            if self._ended:
                raise _ended_error()
            if given.texts is not None and not given.texts:
                future.set_result(given.join([]))
                return future
            if given.texts is None and not source and not given.score:
                future.set_result(self._translator.join([]))  # the same as for a blank line
                return future
            key = next(self._keys)
            line = self._lines[key] = _Line(future, given)
        try:
            job = self._submit(given, key)
        except BaseException:
            self._forget(key)
            raise
        with self._changed:
            future.job = job
            early = key in self._early
            self._early.discard(key)
        if early:
            self._finish(key, line)
        return future

    def new_request(self) -> int:
        """See `TranslationService`."""
        return next(self._requests)

    def cancel(self, request: int) -> None:
        """See `TranslationService`."""
        check_process(self._process)
        with self._changed:
            futures = [one.future for one in self._lines.values() if one.given.request == request]
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
        if threading.current_thread() is not self._thread:  # a callback cannot join its own thread
            self._completions.add(_WAKE_UP)
            self._thread.join()

    def _submit(self, given: ServiceLine, key: int) -> Job:
        target_prefix = given.target_prefix
        shared: dict[str, Any] = {
            "caller": given.request, "completions": self._completions, "key": key,
            "score": given.score,
            "constraints": given.constraints if any(given.constraints) else None,
        }  # fmt: skip
        if given.texts is not None:
            # Only the first sentence has the prefix; the others have an empty one of its type.
            others = [target_prefix[:0]] * (len(given.texts) - 1)
            prefixes: Any = [target_prefix, *others] if given.score or len(target_prefix) else None
            return self._core.submit(given.texts, given.options, prefixes, **shared)
        assert not isinstance(given.source, str)
        if isinstance(target_prefix, str):
            (target_prefix,) = self._translator.tokenizer.encode_target_batch([target_prefix])
        return self._core.submit_ids([given.source], given.options, [target_prefix], **shared)

    def _is_full(self) -> bool:
        return self._capacity is not None and len(self._lines) >= self._capacity

    def _forget(self, key: int) -> None:
        with self._changed:
            self._lines.pop(key, None)
            self._early.discard(key)
            self._changed.notify_all()

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
                resolve(line.future, _fail)

    def _finish(self, key: int, line: _Line) -> None:
        """Resolve a future with the result of its job."""
        job = line.future.job
        assert job is not None

        def found() -> Translation:
            if line.given.texts is not None:
                return line.given.join(job.result())
            (only,) = job.result()
            # For a line of token ids, the library returns tokens without text.
            return self._translator.join([[one.segments[0] for one in only.hypotheses]])

        try:
            resolve(line.future, found)
        finally:
            self._forget(key)


def _ended_error() -> BackendError:
    return BackendError(
        "the thread that resolves translations has ended, and the service with it; make another "
        "one."
    )


def _fail() -> Translation:
    raise _ended_error()


# Completion key that belongs to no line and only wakes the thread up.
_WAKE_UP = 2**62
