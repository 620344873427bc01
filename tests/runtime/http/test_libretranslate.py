"""LibreTranslate's API, as its clients use it."""

from __future__ import annotations

from typing import Any

import pytest

from translate_trt.runtime import Translator

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

TEXT = "the cat runs."
QUERY = {"q": TEXT, "source": "en", "target": "de"}


@pytest.mark.parametrize("form", ["json", "data", "files", "params"])
def test_a_text_is_translated_as_by_the_translator(
    client: TestClient, translator: Translator, form: str
) -> None:
    given: Any = QUERY if form != "files" else {k: (None, v) for k, v in QUERY.items()}
    answer = client.post("/translate", **{form: given})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"translatedText": translator.translate(TEXT).text}
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_an_array_is_translated_in_order(client: TestClient, translator: Translator) -> None:
    texts = ["the cat runs.", "", " 24 \n", "https://a.org", "Haus", " a dog sleeps. "]
    answer = client.post("/translate", json=QUERY | {"q": texts}).json()
    expected = [translator.translate_document(one, split_sentences="en").text for one in texts]
    assert answer == {"translatedText": expected}
    assert expected[2:4] == texts[2:4]


def test_pivot_languages_and_the_same_language(client: TestClient, translator: Translator) -> None:
    between = translator.translate(TEXT).text
    through = translator.translate_document(between, split_sentences="en").text
    answer = client.post("/translate", json=QUERY | {"source": "de", "target": "fr"})
    assert answer.json() == {"translatedText": through}
    same = client.post("/translate", json=QUERY | {"target": "en-US"}).json()
    assert same == {"translatedText": TEXT}


def test_languages_have_names_and_targets(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en", "fr"]},
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "fr", "name": "French", "targets": []},
    ]


def test_settings_for_pages(client: TestClient) -> None:
    found = client.get("/frontend/settings").json()
    assert found["charLimit"] == 20_000
    assert found["language"]["target"] == {"code": "en", "name": "English"}
    assert found["suggestions"] is found["apiKeys"] is found["keyRequired"] is False


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "missing q parameter"),
        (QUERY | {"q": ""}, "missing q parameter"),
        (QUERY | {"q": []}, "missing q parameter"),
        (QUERY | {"source": None}, "missing source parameter"),
        (QUERY | {"q": 3}, "q"),
        (QUERY | {"source": ["en"]}, "source"),
        (QUERY | {"q": ["a", 3]}, "q."),
        (QUERY | {"target": "xx"}, "supported"),
        (QUERY | {"target": "x" * 1000}, "is not supported"),
        (QUERY | {"format": "pdf"}, "format"),
        (QUERY | {"format": "html", "alignments": True}, "alignments"),
        (QUERY | {"alternatives": -1}, "alternatives"),
        (QUERY | {"source": "fr", "target": "en"}, "English (en)"),
        (QUERY | {"model": "no such"}, "called 'no"),
        (QUERY | {"model": "de-en"}, "English"),
    ],
)
def test_wrong_requests_are_refused_with_a_reason(
    client: TestClient, query: dict[str, Any], message: str
) -> None:
    answer = client.post("/translate", json=query)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]


def test_html_keeps_its_tags(client: TestClient, translator: Translator) -> None:
    text = '<p class="a">the <b>cat</b> runs.</p>\n<p>a dog</p>'
    answer = client.post("/translate", json=QUERY | {"q": text, "format": "html"})
    expected = translator.translate_document(text, split_sentences="en", markup="html").text
    assert answer.json() == {"translatedText": expected}


def test_suggestions_are_refused(client: TestClient) -> None:
    assert client.post("/suggest", data=QUERY | {"s": "die Katze"}).status_code == 403
