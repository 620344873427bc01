"""examples/fastapi_app, asked as a client asks it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from translate_trt.runtime import Translator

pytest.importorskip("httpx", reason="httpx is not installed")
from fastapi.testclient import TestClient

LINES = ["the cat runs.", "Haus", "a dog sleeps under the tree."]


@pytest.fixture
def module(compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BUNDLE", str(compiled_bundle))
    monkeypatch.setenv("TARGET", "onnx-fp32")
    monkeypatch.setenv("CAPACITY", "4")
    path = ROOT / "examples/fastapi_app/app.py"
    spec = importlib.util.spec_from_file_location("fastapi_app_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "fastapi_app_example", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client(module: Any) -> Iterator[TestClient]:
    with TestClient(module.app) as client:
        yield client


def test_it_translates_as_the_translator_does(client: TestClient, compiled_bundle: Path) -> None:
    answer = client.post("/translate", json={"lines": LINES})
    assert answer.status_code == 200, answer.text
    expected = Translator(compiled_bundle, "onnx-fp32", threads=1).translate(LINES)
    assert answer.json()["translations"] == [translation.text for translation in expected]
    assert answer.json()["scores"] == pytest.approx([t.score for t in expected], abs=1e-4)
    assert client.get("/health").json()["status"] == "ok"


def test_wrong_requests_are_refused_with_a_reason(client: TestClient) -> None:
    refused = client.post("/translate", json={"lines": LINES, "beam_size": 0})
    assert refused.status_code == 422
    assert "beam_size" in refused.text
    assert client.post("/translate", json={"lines": []}).status_code == 422
    assert client.post("/translate", json={"lines": LINES}).status_code == 200


def test_it_refuses_what_is_beyond_its_capacity(client: TestClient) -> None:
    refused = client.post("/translate", json={"lines": LINES * 2})
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "1"
    assert client.post("/translate", json={"lines": LINES}).status_code == 200


def test_a_late_request_is_cancelled(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    service, cancelled = client.app.state.service, []
    with monkeypatch.context() as patch:
        patch.setattr(service, "submit", lambda *_, **__: Future())  # which never finish
        patch.setattr(service, "cancel", cancelled.append)
        late = client.post("/translate", json={"lines": LINES, "timeout": 0.05})
    assert late.status_code == 504
    assert len(cancelled) == 1
    assert client.app.state.in_flight == 0
    assert client.post("/translate", json={"lines": LINES}).status_code == 200
