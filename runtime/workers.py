"""Several batches at once: workers that take sentences from one queue.

Workers are threads over one loaded backend, so that weights are in memory once. A step runs without
the interpreter's lock; what needs it is a small part of a step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Event, Lock

from translate_trt.runtime.errors import BackendError, TranslateTrtError
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import Queue, Search, Sentence, Waiting

log = logging.getLogger("translate_trt")

_POLL_SECONDS = 0.2  # how soon Ctrl-C is noticed


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: Batches at once for each core: more of them take memory and time, and translate nothing sooner.
_WORKERS_EACH = 4


def share_cores(threads: int | None, workers: int) -> tuple[int, int]:
    """Threads of each worker, and workers; a warning says which of both was lowered.

    Args:
        threads: that were asked for; None shares out the cores.
        workers: that were asked for.
    """
    workers = within_cores("workers", workers, _WORKERS_EACH)
    if threads is None:
        return max(1, available_cores() // workers), workers
    return within_cores("threads", threads), workers


def within_cores(name: str, wanted: int, each: int = 1) -> int:
    """As many as wanted, but with a warning no more than `each` for every available core.

    ONNX Runtime hangs where it starts some thousands of threads, and more than there are cores
    wait for each other.
    """
    cores = available_cores()
    if wanted <= (most := each * cores):
        return wanted
    log.warning(
        "%s is %d; %d are used, since this process may use %d processor core%s",
        name, wanted, most, cores, "" if cores == 1 else "s",
    )  # fmt: skip
    return most


def run_search(
    make_search: Callable[[], Search],
    waiting: Queue,
    found: Callable[[Sentence, list[Hypothesis]], None],
    searches: set[Search] | None = None,
    stop: Event | None = None,
) -> tuple[list[Sentence], Exception] | None:
    """Run a search until nobody waits.

    Args:
        make_search: gives it its batch.
        waiting: where its sentences come from.
        found: is given each sentence with its n best hypotheses.
        searches: has it while it runs, for whoever wants to cancel it.
        stop: ends it before its next step.

    Returns:
        None, or the sentences that it died with, and why: whatever the backend's library raised.
    """
    search: Search | None = None
    try:
        search = make_search()
        if searches is not None:
            searches.add(search)
        search.run(waiting, found, stop)
    except Exception as error:
        return ([] if search is None else search.unfinished()), error
    finally:
        if search is not None and searches is not None:
            searches.discard(search)  # which may hold memory that the next one needs
    return None


@dataclass
class _Work:
    """What the workers of one call share."""

    waiting: Waiting
    results: dict[int, list[Hypothesis]]
    make_search: Callable[[], Search]
    stop: Event
    lock: Lock
    retried: set[int]  # sentences that a worker died with
    searches: set[Search] = field(default_factory=set)  # of all workers, but for dead ones

    def run(self) -> None:
        """One worker's part; one that dies is replaced, and its sentences are tried once more."""
        while True:
            died = run_search(self.make_search, self.waiting, self._found, self.searches, self.stop)
            if died is None or not self._goes_on(*died):
                return
            del died  # its traceback holds the batch, whose memory the next one may need

    def cancel(self) -> None:
        """End all workers, within a call of the backend if need be."""
        self.stop.set()
        for search in list(self.searches):
            search.cancel()

    def _found(self, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        self.results[sentence.index] = hypotheses

    def _goes_on(self, sentences: Sequence[Sentence], error: Exception) -> bool:
        """True if what a worker died with is tried again; False: it was cancelled."""
        if isinstance(error, TranslateTrtError):
            raise error
        if self.stop.is_set():
            return False
        with self.lock:
            if not sentences or any(one.index in self.retried for one in sentences):
                raise failed_twice(error) if sentences else _failed(error)
            log.error("a worker died (%s); its %d sentences are retried", error, len(sentences))
            self.retried |= {one.index for one in sentences}
        self.waiting.give_back(sentences)
        return True


def failed_twice(error: Exception) -> BackendError:
    """What callers are told of an error of the backend's library that came again."""
    return _failed(error, " twice")


def _failed(error: Exception, how: str = "") -> BackendError:
    found = BackendError(
        f"translation failed{how}: {error}. If memory ran out, lower batch_tokens or workers."
    )
    found.__cause__ = error
    return found


def search_all(
    make_search: Callable[[], Search], sentences: Sequence[Sentence], workers: int
) -> dict[int, list[Hypothesis]]:
    """Translate sentences with several workers.

    Args:
        make_search: gives a worker its batch.
        sentences: in any order.
        workers: batches at once.

    Returns:
        By the sentence's index, its n best hypotheses.

    Raises:
        BackendError: the backend failed twice with the same sentences.
    """
    count = max(1, min(workers, len(sentences)))
    work = _Work(Waiting(sentences, count), {}, make_search, Event(), Lock(), set())
    if len(sentences) == 1:  # its steps are short, and whoever sends one waits for it
        work.run()
        return work.results
    # A single worker is a thread, too: Ctrl-C is heard by the main thread, and only between two
    # calls of a backend, which take seconds where batches are large.
    with ThreadPoolExecutor(count, "translate") as pool:
        try:
            futures = [pool.submit(work.run) for _ in range(count)]
            pending = set(futures)
            while pending and not any(f.done() and f.exception() for f in futures):
                pending = wait(pending, _POLL_SECONDS, FIRST_EXCEPTION).not_done
        finally:
            work.cancel()  # on an error of one, or Ctrl-C
    for future in futures:
        future.result()
    return work.results
