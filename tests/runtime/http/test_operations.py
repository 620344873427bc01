"""Health, readiness and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.cli.serve import serve as command

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

from translate_trt.runtime.serve.http.http_settings import HttpSettings

if TYPE_CHECKING:
    from translate_trt.runtime.serve.http.served_bundle import BundleSource


def test_flags_are_the_fields_of_the_settings() -> None:
    defaults = command.make_context("serve", ["bundle"]).params
    for name, value in dataclasses.asdict(HttpSettings()).items():
        assert defaults[name] == value, name
    others = {"argos", "bundles", "log_format"}
    assert defaults.keys() == {*dataclasses.asdict(HttpSettings()), *others}


def test_health_translates_and_ready_says_so(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}


def test_a_reload_during_a_health_check_frees_no_bundle_that_waits_for_it() -> None:
    from translate_trt.runtime.serve.http.health_check import HealthCheck

    used: list[str] = []

    def bundle(name: str) -> Any:
        @contextlib.contextmanager
        def use() -> Iterator[None]:
            used.append(name)
            yield
            used.remove(name)

        def submit(*_: object, **__: object) -> Future[str]:
            assert used == ["a", "b"]
            done: Future[str] = Future()
            done.set_result("ein Wort")
            return done

        made = mock.Mock(used=use)
        made.service.submit = submit
        made.languages.first_pair = "en", "de"
        return made

    bundles = mock.Mock()
    bundles.routes.bundles = [bundle("a"), bundle("b")]
    asyncio.run(HealthCheck(bundles, 60).check())
    assert used == []


def test_a_bundle_without_attention_is_named_at_the_start(
    sources: list[BundleSource], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from translate_trt.runtime.serve.http import served_bundle

    settings = HttpSettings(workers=1, threads=1, target="onnx-fp32")
    served_bundle.open_translator(sources[0], settings).close()
    assert not caplog.records
    monkeypatch.setattr(Contract, "attention", False)
    served_bundle.open_translator(sources[0], settings).close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "--attention" in record.getMessage()


def test_a_cache_is_counted(serve: Callable[..., TestClient]) -> None:
    client = serve(cache_mib=1)
    query = {"q": "the cat", "source": "en", "target": "de"}
    answers = [client.post("/translate", json=query).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    counted = 'translate_trt_repeated_sentences_total{model="en-de"} 2.0'
    assert counted in client.get("/metrics").text


def test_metrics_count_requests_and_tokens(client: TestClient) -> None:
    client.post("/translate", json={"q": "the cat", "source": "en", "target": "de"})
    client.post("/translate", json={})
    client.get("/no/such/path")
    client.get("/")
    text = client.get("/metrics").text
    for line in (
        'translate_trt_http_requests_total{outcome="success",route="/translate"}',
        'translate_trt_http_requests_total{outcome="refused",route="/translate"}',
        'translate_trt_http_requests_total{outcome="refused",route="other"}',
        'translate_trt_http_requests_total{outcome="success",route="other"}',
        'translate_trt_http_request_seconds_bucket{le="+Inf",route="/translate"}',
        'translate_trt_sentences_total{model="en-de"}',
        'translate_trt_waiting_sentences{model="en-fr"} 0.0',
    ):
        assert line in text
    assert "no/such" not in text


def test_the_routes_are_those_of_the_description(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/translate", "/alternatives", "/translate/stream", "/admin/reload"} < set(paths)
    for path, operations in paths.items():
        answer = client.put(path)
        allowed = {method.upper() for method in operations}
        allowed |= {"HEAD"} if "GET" in allowed else set()
        assert answer.status_code == 405, path
        assert answer.headers["Allow"] == ", ".join(sorted(allowed))


def test_monitors_and_clients_that_join_paths(client: TestClient) -> None:
    for path in ("/health", "/ready", "/languages", "/frontend/settings", "/metrics", "/spec"):
        assert client.head(path).status_code == 200, path
    query = {"q": "the cat", "source": "en", "target": "de"}
    for path in (
        "/translate/",
        f"{client.base_url}//translate",
        f"{client.base_url}///translate//",
    ):
        answer = client.post(path, json=query)
        assert answer.json() == client.post("/translate", json=query).json(), path
    assert client.get("/spec").json() == client.get("/openapi.json").json()
    assert client.get("/languages%0a").status_code == 404


def test_the_description_has_forms_without_objects(client: TestClient) -> None:
    route = client.get("/openapi.json").json()["paths"]["/translate"]["post"]
    fields = {
        kind: set(one["schema"]["properties"])
        for kind, one in route["requestBody"]["content"].items()
    }
    json = fields.pop("application/json")
    assert {"q", "source", "target", "options", "terminology"} < json
    assert list(fields.values()) == [json - {"options", "terminology"}] * 2
