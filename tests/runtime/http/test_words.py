"""Confidences and alignments of streams and alternatives, which the web page shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

TEXT = "the cat runs. a dog sleeps."
QUERY = {"q": TEXT, "source": "en", "target": "de", "words": True, "alignments": True}


def stream(client: TestClient, **query: Any) -> list[tuple[str, dict[str, Any]]]:
    answer = client.post("/translate/stream", json=query)
    assert answer.status_code == 200, answer.text
    found = []
    for event in answer.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_streamed_sentences_have_the_words_of_translations(client: TestClient) -> None:
    *sentences, (last, done) = stream(client, **QUERY)
    assert [name for name, _ in sentences] == ["translation"] * 2
    assert last == "done"
    assert "detectedLanguage" not in done
    for _, sentence in sentences:
        query = QUERY | {"q": sentence["source"]}
        (expected,) = client.post("/translate", json=query).json()["hypotheses"]
        assert sentence["words"] == expected["words"]
        assert sentence["alignments"] == expected["alignments"]
    assert not {"words", "alignments"} & set(stream(client, **QUERY | {"words": False,
                                                    "alignments": False})[0][1])  # fmt: skip


def test_a_pivot_joins_the_alignments_of_streams(client: TestClient) -> None:
    # No bundle joins German and French.
    query = QUERY | {"source": "de", "target": "fr"}
    *sentences, (_, done) = stream(client, **query)
    assert done["model"] == "de-en+en-fr"
    for _, sentence in sentences:
        again = client.post("/translate", json=query | {"q": sentence["source"]}).json()
        assert sentence["alignments"] == again["hypotheses"][0]["alignments"]


def test_alternatives_have_words(client: TestClient) -> None:
    query = QUERY | {"q": "the cat runs.", "count": 3}
    answer = client.post("/alternatives", json=query)
    assert answer.status_code == 200, answer.text
    for one in answer.json()["alternatives"]:
        assert [word["text"] for word in one["words"]] == one["text"].split()
        assert {target for _, target in one["alignments"]} == set(range(len(one["words"])))
    plain = client.post("/alternatives", json=query | {"words": False, "alignments": False})
    assert "words" not in plain.json()["alternatives"][0]


def test_streams_name_a_detected_language(client: TestClient) -> None:
    pytest.importorskip("py3langid", reason="the extra detect is not installed")
    text = "Der Hund schläft unter dem großen grünen Baum, und die Katze frisst."
    *_, (_, done) = stream(client, **QUERY | {"q": text, "source": "auto", "target": "en"})
    assert done["detectedLanguage"]["language"] == "de"
