"""examples/fastapi_app, asked as a client asks it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from translate_trt.runtime import BackendError, SearchOptions, Translator
from translate_trt.runtime.bundle.term_annotation import TermAnnotation

fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")
from fastapi.testclient import TestClient  # noqa: E402

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


def test_alternatives_after_a_prefix(client: TestClient, compiled_bundle: Path) -> None:
    query = {"lines": LINES[:1], "target_prefixes": ["Hund"], "alternatives": 3}
    answer = client.post("/translate", json=query)
    assert answer.status_code == 200, answer.text
    expected = Translator(compiled_bundle, "onnx-fp32", threads=1).translate(
        LINES[0], SearchOptions(alternatives=3), "Hund"
    )
    assert answer.json()["alternatives"] == [[one.text for one in expected.hypotheses]]
    assert client.post("/translate", json=query | {"lines": LINES[:2]}).status_code == 422
    assert client.post("/translate", json=query | {"alternatives": 4}).status_code == 429


TERMINOLOGY = {"lines": LINES, "terminology": {"cat": "Katze", "dog": "Hund"}}


def test_the_terminology_of_a_request_is_enforced(client: TestClient) -> None:
    answer = client.post("/translate", json=TERMINOLOGY)
    assert answer.status_code == 200, answer.text
    assert "Hund" in answer.json()["translations"][2]
    refused = client.post("/translate", json=TERMINOLOGY | {"terminology": {" ": "x"}})
    assert refused.status_code == 422


def test_terms_that_a_model_of_annotated_text_leaves_out_are_reported(client: TestClient) -> None:
    translator = client.app.state.translator  # type: ignore[attr-defined]
    translator.manifest = replace(translator.manifest, term_annotation=TermAnnotation())
    answer = client.post(
        "/translate", json=TERMINOLOGY | {"target_prefixes": ["Katze,", "", "Katze,"]}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["missing_terms"] == [[], [], ["dog"]]


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


def test_failures_are_errors_of_the_server(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BackendError("no memory")

    monkeypatch.setattr(client.app.state.service, "submit", fail)
    assert client.post("/translate", json={"lines": LINES}).status_code == 500
