"""Google's API, by its own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from translate_trt.runtime import Translator

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("py3langid", reason="the extra detect is not installed")
pytest.importorskip("google.cloud.translate_v2", reason="google-cloud-translate is not installed")
import httpx
from google.api_core.exceptions import BadRequest
from google.auth.credentials import AnonymousCredentials
from google.cloud import translate_v2

TEXT = "the cat runs under the green tree."


@pytest.fixture(scope="module")
def url(serve_on_port: Callable[..., str]) -> str:
    return serve_on_port(apis=("google",))


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    options = {"api_endpoint": url.rstrip("/")}
    client: Any = translate_v2.Client  # its package has types for some functions alone
    anonymous: Any = AnonymousCredentials
    return client(credentials=anonymous(), client_options=options)


def test_texts(client: Any, url: str, translator: Translator) -> None:
    expected = translator.translate_document(TEXT, split_sentences="en").text
    found = client.translate([TEXT, "12345"], target_language="de", format_="text")
    assert [one["translatedText"] for one in found] == [expected, "12345"]
    assert [one["detectedSourceLanguage"] for one in found] == ["en", "und"]
    html = client.translate("<p>the <b>cat</b></p>", target_language="de", source_language="en")
    assert html["translatedText"].startswith("<p>")
    assert "detectedSourceLanguage" not in html
    given = [("q", TEXT), ("q", "1"), ("target", "de"), ("source", "en"), ("format", "text")]
    answer = httpx.get(f"{url}language/translate/v2?{urlencode(given)}")
    assert answer.json() == {
        "data": {"translations": [{"translatedText": expected}, {"translatedText": "1"}]}
    }


def test_languages_and_detection(client: Any) -> None:
    found = client.get_languages()
    assert {"language": "de", "name": "German"} in found
    one, two = client.detect_language([TEXT, TEXT])
    assert one["language"] == two["language"] == "en"
    assert 0 < one["confidence"] <= 1


def test_errors_are_googles(client: Any) -> None:
    with pytest.raises(BadRequest, match="xx is not supported"):
        client.translate(TEXT, target_language="xx", source_language="en")
