"""Detection of languages: among all, preferably as those of the server."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("py3langid", reason="the extra detect is not installed")
from fastapi.testclient import TestClient

from translate_trt.runtime.serve.http import detection
from translate_trt.runtime.serve.http.app import create_app
from translate_trt.runtime.serve.http.http_settings import HttpSettings

if TYPE_CHECKING:
    from translate_trt.runtime.serve.http.served_bundle import BundleSource
    from translate_trt.runtime.serve.http.server_state import ServerState

ENGLISH = "A small dog sleeps under the big green tree while the cat eats."
FRENCH = "Un petit chien dort sous le grand arbre vert pendant que le chat mange."
ITALIAN = "Un piccolo cane dorme sotto il grande albero verde mentre il gatto mangia."
NAMES = [
    "Leonardo da Vinci", "Mozart", "Dr. Müller", "Café", "Visit Rio de Janeiro", "Tokyo 東京",
    "New York, Rio de Janeiro, Buenos Aires",
]  # fmt: skip
NO_LETTERS = ["12345", "+49 (0)30 / 123-45", "2026-11-28 12:30", "…", "\u200d", "🙂", " "]


@pytest.mark.parametrize(
    ("text", "languages", "code"),
    [
        (ENGLISH, ("de", "en"), "en"),
        (ITALIAN, ("de", "en"), "it"),
        ("the cat", ("de", "en"), "en"),
        *[(text, ("en",), "en") for text in NAMES],
        ("你好世界", ("en", "zh-Hans", "zh-Hant"), "zh-Hans"),
        *[(text, ("de", "en"), "und") for text in NO_LETTERS],
    ],
)
def test_languages_are_detected_among_all(text: str, languages: tuple[str, ...], code: str) -> None:
    first, *others = detection.detect(text, languages)
    assert first["language"] == code
    assert all(one["confidence"] <= first["confidence"] for one in others)
    assert (first["confidence"] == 0) == (code == "und")


def translated(client: TestClient, text: str | list[str], target: str) -> Any:
    query = {"q": text, "source": "auto", "target": target}
    answer = client.post("/translate", json=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_text_of_no_language_comes_back_unchanged(client: TestClient) -> None:
    for text in NO_LETTERS:
        found = translated(client, text, "de")
        detected = {"confidence": 0, "language": "und"}
        assert found == {"translatedText": text, "detectedLanguage": detected}
    both = translated(client, [ENGLISH, "12345"], "de")
    assert both["translatedText"][1] == "12345"
    assert [one["language"] for one in both["detectedLanguage"]] == ["en", "und"]


def test_tags_have_no_language(client: TestClient) -> None:
    texts = ["<p>42</p>", "<style>p {color: red}</style>&nbsp;42<br>", f"<p>{ENGLISH}</p>"]
    query = {"q": texts, "source": "auto", "target": "de", "format": "html"}
    found = client.post("/translate", json=query).json()
    assert [one["language"] for one in found["detectedLanguage"]] == ["und", "und", "en"]
    assert found["translatedText"][:2] == texts[:2]


def test_text_of_another_language_is_refused(client: TestClient) -> None:
    (first, *_) = client.post("/detect", json={"q": ITALIAN}).json()
    assert first["language"] == "it"
    for q, name in (
        (ITALIAN, "the text"),
        (["OK", ITALIAN], "text 2"),
        (["Mozart", *[ENGLISH] * 19, ITALIAN], "text 21"),
    ):
        for path in ("/translate", "/translate/stream"):
            if path == "/translate" or isinstance(q, str):
                query = {"q": q, "source": "auto", "target": "de"}
                answer = client.post(path, json=query)
                assert answer.status_code == 400
                reason = f"it is not supported ({name} was detected as Italian)"
                assert answer.json()["error"].startswith(reason)


def test_text_of_a_language_that_is_only_a_target(client: TestClient) -> None:
    assert translated(client, FRENCH, "fr")["translatedText"] == FRENCH
    query = {"q": FRENCH, "source": "auto", "target": "de"}
    assert client.post("/translate", json=query).status_code == 400


def test_a_server_is_ready_when_it_detects_languages(
    sources: list[BundleSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, prepared = threading.Event(), threading.Event()

    def prepare() -> None:
        begun.set()
        prepared.wait(60)

    tasks = []

    async def begin(state: ServerState) -> None:
        tasks.append(asyncio.create_task(state.load()))

    monkeypatch.setattr(detection, "prepare", prepare)
    settings = HttpSettings(workers=1, threads=1, target="onnx-fp32")
    with TestClient(create_app(sources, settings, on_loading=begin)) as client:
        assert begun.wait(60)
        assert client.get("/ready").status_code == 503
        prepared.set()
        while client.get("/ready").status_code == 503:
            assert not any(one.done() and one.exception() for one in tasks)
        assert client.post("/detect", json={"q": ENGLISH}).status_code == 200


def test_terminology_gives_texts_without_letters_a_language(client: TestClient) -> None:
    query = {"source": "auto", "target": "de", "terminology": {"42": "zweiundvierzig"}}
    for q, number in (("42", None), ([ENGLISH, "42"], 1)):
        found = client.post("/translate", json=query | {"q": q}).json()
        expected = client.post("/translate", json=query | {"q": q, "source": "en"}).json()
        assert found["translatedText"] == expected["translatedText"]
        assert "zweiundvierzig" in str(found["translatedText"])
        detected = found["detectedLanguage"] if number is None else found["detectedLanguage"][1]
        assert detected == {"confidence": 0, "language": "en"}
