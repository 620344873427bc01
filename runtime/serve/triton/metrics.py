"""Metrics of an instance; Triton's own count refused requests as successful."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import triton_python_backend_utils as triton

from translate_trt.runtime.results import Statistics
from translate_trt.runtime.serve.load_metrics import COUNTERS, GAUGES

log = logging.getLogger("translate_trt")

_SECONDS = 1.0  # between two updates, each of which sends several messages to the server
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Outcome(Enum):
    """Outcome of a request."""

    SUCCESS = "success"
    REFUSED = "refused"  # an invalid request (400)
    BUSY = "busy"  # the instance was at its capacity
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Metrics:
    """Publisher of an instance's metrics, once per second.

    Args:
        labels: Labels of all metrics.
        statistics: Returns the statistics of the service.
        in_work: Returns the number of unanswered requests.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        statistics: Callable[[], Statistics],
        in_work: Callable[[], int],
    ) -> None:
        self._statistics, self._published = statistics, Statistics()
        self._in_work = in_work
        self._lock = threading.Lock()
        self._outcomes: Counter[Outcome] = Counter()
        self._seconds: list[float] = []
        self._families: list[Any] = []
        self._metrics: dict[str, Any] = {}
        self._latency: Any = None
        self._ended = threading.Event()
        try:
            self._create(dict(labels))
        except Exception as error:  # Triton's own exception classes
            log.warning("this instance publishes no metrics: %s", error)
            self._ended.set()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def answered(self, outcome: Outcome, seconds: float) -> None:
        """Count an answer and the time that its request spent in the instance."""
        with self._lock:
            self._outcomes[outcome] += 1
            if outcome is Outcome.SUCCESS and self._latency is not None:
                self._seconds.append(seconds)

    def close(self) -> None:
        """Publish the final values and stop."""
        self._ended.set()
        self._thread.join()
        # Metrics must be freed before their family.
        self._metrics.clear()
        self._latency = None
        self._families.clear()

    def _create(self, labels: dict[str, str]) -> None:
        def family(name: str, description: str, kind: Any) -> Any:
            made = triton.MetricFamily(name=name, description=description, kind=kind)
            self._families.append(made)
            return made

        counter, gauge = triton.MetricFamily.COUNTER, triton.MetricFamily.GAUGE
        requests = family("translate_trt_requests_total", "Requests by outcome", counter)
        for outcome in Outcome:
            self._metrics[outcome.value] = requests.Metric(
                labels={**labels, "outcome": outcome.value}
            )
        for kind, suffix, named in ((counter, "_total", COUNTERS), (gauge, "", GAUGES)):
            for field, (name, description) in named.items():
                made = family(f"{name}{suffix}", description, kind)
                self._metrics[field] = made.Metric(labels=labels)
        self._metrics["in_work"] = family(
            "translate_trt_requests_in_work", "Unanswered requests", gauge
        ).Metric(labels=labels)
        if hasattr(triton.MetricFamily, "HISTOGRAM"):  # Triton 2.53 and later
            self._latency = family(
                "translate_trt_request_seconds",
                "Time from the arrival of a successful request in the instance to its answer",
                triton.MetricFamily.HISTOGRAM,
            ).Metric(labels=labels, buckets=list(_BUCKETS))

    def _run(self) -> None:
        if self._ended.is_set():
            return
        ended = False
        while not ended:
            ended = self._ended.wait(_SECONDS)
            try:
                self._publish()
            except Exception as error:  # Triton's own exception classes
                log.warning("this instance could not publish its metrics: %s", error)

    def _publish(self) -> None:
        # Read first and published last: once it is 0, the other metrics include all requests.
        in_work = self._in_work()
        now, before = self._statistics(), self._published
        with self._lock:
            outcomes, self._outcomes = self._outcomes, Counter()
            seconds, self._seconds = self._seconds, []
        self._published = now
        for outcome, count in outcomes.items():
            self._metrics[outcome.value].increment(count)
        for field in COUNTERS:
            if more := getattr(now, field) - getattr(before, field):
                self._metrics[field].increment(more)
        for field in GAUGES:
            if getattr(now, field) != getattr(before, field):
                self._metrics[field].set(getattr(now, field))
        for one in seconds:
            self._latency.observe(one)
        self._metrics["in_work"].set(in_work)
