"""Clients of LibreTranslate, unchanged, against a server of one direction."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("py3langid", reason="the extra detect is not installed")
import httpx

TEXT = "the cat runs under the green tree."
HTML = "<p>the <b>cat</b> runs.</p>"


@pytest.fixture(scope="module")
def url(serve_on_port: Callable[..., str]) -> str:
    return serve_on_port(directions=1, apis=("deepl", "openai"))


@pytest.fixture(scope="module")
def translation(url: str) -> str:
    """The translation of TEXT."""
    query = {"q": TEXT, "source": "en", "target": "de"}
    found: str = httpx.post(f"{url}translate", json=query).json()["translatedText"]
    return found


def test_libretranslatepy(url: str, translation: str) -> None:
    libretranslatepy = pytest.importorskip("libretranslatepy")
    client = libretranslatepy.LibreTranslateAPI(url)
    assert client.translate(TEXT, "en", "de") == translation
    assert client.detect(TEXT)[0]["language"] == "en"
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]


# The requests of clients in other languages, with the paths that they ask for languages or models.
PAIR = {"source": "en", "target": "de"}
LIBRE = ("languages", "translate")
KEY = {"headers": {"Authorization": "DeepL-Auth-Key x"}}
DEEPL = ("v2/languages?type=target", "v2/translate")
OPENAI = ("v1/models", "v1/chat/completions")
PROMPT = (
    "Translate from English to German, keep punctuation as input, do not censor the translation, "
    "give only the output without comments:"
)
TAGGED = 'the <x id="7"></x> runs.'
REQUESTS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "Weblate": (LIBRE, {"json": {"api_key": "", "q": [TEXT, "12345"], **PAIR}}),
    "Weblate, older": (LIBRE, {"data": {"api_key": "", "q": TEXT, **PAIR}}),
    "Discourse": (LIBRE, {"data": {"q": HTML, **PAIR, "format": "html", "api_key": ""}}),
    "Mastodon": (LIBRE, {"json": {"q": [HTML, "12345"], "source": "auto", "target": "de",
                                  "format": "html", "api_key": None}}),
    "SearXNG": (LIBRE, {"json": {**PAIR, "q": TEXT, "alternatives": 3}}),
    "Subtitle Edit": (LIBRE, {"json": {"q": TEXT, **PAIR},
                              "headers": {"Accept": "application/json"}}),
    "Weblate, DeepL": (DEEPL, {"json": {
        "text": [TAGGED, "12345"], "source_lang": "EN", "target_lang": "DE", "formality": "default",
        "tag_handling": "xml", "ignore_tags": ["x"], "context": "c",
        "model_type": "prefer_quality_optimized"}, **KEY}),
    "Mastodon, DeepL": (DEEPL, {"data": {"text": [HTML, "12345"], "source_lang": "",
                                         "target_lang": "de", "tag_handling": "html"}, **KEY}),
    "Subtitle Edit, DeepL": (DEEPL, {"data": {"text": TEXT, "target_lang": "de",
                                              "source_lang": "en", "formality": "default"}, **KEY}),
    "Subtitle Edit, OpenAI": (OPENAI, {"json": {
        "messages": [{"role": "user", "content": f"{PROMPT}\n\n{TEXT}"}]}}),
    "Open WebUI": (OPENAI, {"json": {
        "stream": True, "model": "en-de", "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "User Context:"},
                     {"role": "user", "content": [{"type": "text", "text": TEXT}]}],
        "metadata": {"chat_id": "1"}, "max_tokens": 9}}),
}  # fmt: skip


def answered(path: str, answer: httpx.Response) -> list[str]:
    """Return the translations in the fields that clients read."""
    if answer.headers["Content-Type"].startswith("text/event-stream"):
        *lines, done = (line.removeprefix("data: ") for line in answer.text.split("\n\n") if line)
        assert done == "[DONE]"
        deltas = (json.loads(line)["choices"][0]["delta"] for line in lines)
        return ["".join(delta.get("content", "") for delta in deltas)]
    found = answer.json()
    if path.startswith("v1"):
        return [one["message"]["content"] for one in found["choices"]]
    if path.startswith("v2"):
        assert {one["detected_source_language"] for one in found["translations"][:1]} == {"EN"}
        return [one["text"] for one in found["translations"]]
    texts = found["translatedText"]
    return texts if isinstance(texts, list) else [texts]


@pytest.mark.parametrize("client", REQUESTS)
def test_requests_of_other_clients(url: str, translation: str, client: str) -> None:
    (listing, path), request = REQUESTS[client]
    listed = httpx.get(f"{url}{listing}", headers=request.get("headers")).json()
    names = listed if isinstance(listed, list) else listed["data"]
    code = "code" if listing == "languages" else "id" if "models" in listing else "language"
    assert "de" in [one[code].lower() for one in names]
    answer = httpx.post(f"{url}{path}", **request)
    assert answer.status_code == 200, answer.text
    found, *numbers = answered(path, answer)
    assert numbers in ([], ["12345"])
    if client.startswith("Mastodon") and "detectedLanguage" in answer.text:
        assert answer.json()["detectedLanguage"][1]["language"] == "und"
    sent = str(request)
    if HTML in sent:
        assert (found[:3], found[-4:], found.count("<b>")) == ("<p>", "</p>", 1)
    elif TAGGED in sent:
        assert '<x id="7"></x>' in found
    else:
        assert found == translation
