"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from translate_trt.runtime.results import Statistics
from translate_trt.runtime.serve.load_metrics import COUNTERS, GAUGES

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: Name and statistics of each bundle.
BundleStatistics = Callable[[], Iterable[tuple[str, Statistics]]]


class HttpMetrics:
    """Metrics of a server, in a registry of their own.

    Args:
        statistics: Returns the name and the statistics of each loaded bundle.
    """

    def __init__(self, statistics: BundleStatistics) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_BundleCollector(statistics))
        self.requests = Counter(
            "translate_trt_http_requests", "Requests by route and outcome",
            ("route", "outcome"), registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "translate_trt_http_request_seconds", "Time from the request to its whole answer",
            ("route",), buckets=_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "translate_trt_http_requests_in_flight", "Unanswered requests",
            registry=self._registry,
        )  # fmt: skip
        self.files = Counter(
            "translate_trt_files", "Translated files by format", ("format",),
            registry=self._registry,
        )  # fmt: skip
        self.reloads = Counter(
            "translate_trt_reloads", "Reloads of bundles by outcome", ("outcome",),
            registry=self._registry,
        )  # fmt: skip

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        rendered: bytes = generate_latest(self._registry)
        return rendered


class _BundleCollector(Collector):
    """Statistics of bundles, read when metrics are asked for.

    The totals of a bundle begin again at 0 when it is reloaded, which Prometheus allows for.
    """

    def __init__(self, statistics: BundleStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        found = list(self._statistics())
        for kind, named in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for field, (name, text) in named.items():
                family = kind(name, text, labels=("model",))
                for model, statistics in found:
                    family.add_metric((model,), getattr(statistics, field))
                yield family
