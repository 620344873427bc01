"""OpenTelemetry traces of requests, if the usual environment variables name a collector."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

log = logging.getLogger("translate_trt")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NAME = "translate-trt"
_CONTEXT = (b"traceparent", b"tracestate")  # headers of W3C Trace Context


class Tracing:
    """A span for each request, sent to a collector by OTLP over HTTP.

    Raises:
        ModuleNotFoundError: The packages of the extra `otel` are not installed.
    """

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: _NAME}))
        # A provider of its own: a library does not change that of its host process.
        self._provider: Any = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer: Any = self._provider.get_tracer(_NAME)
        self._propagator: Any = TraceContextTextMapPropagator()
        self._server, self._error = SpanKind.SERVER, StatusCode.ERROR

    def begin(self, scope: Scope) -> Any:
        """Return the span of a request, within the trace of its client if it names one."""
        carrier = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"] if name in _CONTEXT
        }  # fmt: skip
        context = self._propagator.extract(carrier)
        return self._tracer.start_span(scope["method"], context, self._server)

    def end(
        self, span: Any, method: str, route: str, status: int, fields: Mapping[str, Any]
    ) -> None:
        """End a span.

        Args:
            span: The span.
            method: Method of the request.
            route: Its route.
            status: Status of its answer.
            fields: Fields of its log record, which become attributes.
        """
        span.update_name(f"{method} {route}")
        attributes = {f"translate_trt.{name}": value for name, value in fields.items()
                      if value is not None}  # fmt: skip
        span.set_attributes(
            {"http.request.method": method, "http.route": route,
             "http.response.status_code": status, **attributes}
        )  # fmt: skip
        if status >= 500:
            span.set_status(self._error)
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def start_tracing() -> Tracing | None:
    """Return the traces that the environment asks for; None if it asks for none."""
    if not any(map(os.environ.get, _ENDPOINTS)):
        return None
    try:
        return Tracing()
    except ModuleNotFoundError as error:
        log.warning("no traces without %s: pip install 'translate-trt[otel]'", error.name)
        return None
