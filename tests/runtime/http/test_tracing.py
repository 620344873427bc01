"""OpenTelemetry traces of requests."""

from __future__ import annotations

import http.server
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.server import serving

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

from translate_trt.runtime.serve.http.app import create_app
from translate_trt.runtime.serve.http.http_settings import HttpSettings
from translate_trt.runtime.serve.http.tracing import start_tracing

if TYPE_CHECKING:
    from translate_trt.runtime.serve.http.served_bundle import BundleSource

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_requests_are_spans(sources: list[BundleSource], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no extra otel")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    settings = HttpSettings(workers=1, threads=1, target="onnx-fp32")
    with serving(Collector) as url:
        monkeypatch.setenv(ENDPOINT, url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "translations")
        with TestClient(create_app(sources[:1], settings)) as client:
            query = {"q": "the cat runs.", "source": "en", "target": "de"}
            within = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert client.post("/translate", json=query, headers=within).status_code == 200
            client.get("/no/such", headers={"traceparent": "nonsense"})
    assert {path for path, _ in received} == {"/v1/traces"}
    resources = [one for _, request in received for one in request.resource_spans]
    of_resource = {one.key: one.value.string_value for one in resources[0].resource.attributes}
    assert of_resource["service.name"] == "translations"
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["POST /translate", "GET other"]
    assert (spans[0].trace_id.hex(), spans[0].parent_span_id.hex()) == (TRACE, PARENT)
    assert spans[1].parent_span_id == b""
    attributes = {one.key: one.value for one in spans[0].attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["translate_trt.model"].string_value == "en-de"
    assert attributes["translate_trt.characters"].int_value == 13
    assert attributes["translate_trt.translating_milliseconds"].double_value > 0


def test_traces_are_wanted_by_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert start_tracing() is None
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert start_tracing() is None
    assert "translate-trt[otel]" in caplog.text
