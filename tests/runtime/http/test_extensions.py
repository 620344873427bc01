"""Hypotheses, alternatives and streams."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.line_request import LineRequest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from fastapi.testclient import TestClient

TEXT = "the cat runs. a dog sleeps."
QUERY = {"q": TEXT, "source": "en", "target": "de"}
#: Options with which the random model writes words.
LONG = {"min_length": 12, "max_length": 24}


def test_hypotheses_have_scores_words_tokens_and_alignments(
    client: TestClient, translator: Translator
) -> None:
    wanted = {"num_hypotheses": 2, "words": True, "tokens": True, "alignments": True}
    answer = client.post("/translate", json=QUERY | wanted | {"options": LONG}).json()
    expected = translator.translate_document(
        TEXT, SearchOptions(num_hypotheses=2, **LONG), split_sentences="en", alignments=True
    )
    assert answer["translatedText"] == expected.text
    assert answer["model"] == "en-de"
    assert answer["seconds"] >= 0
    assert len(answer["hypotheses"]) == 2
    for found, right in zip(answer["hypotheses"], expected.hypotheses, strict=True):
        assert found["text"] == right.text
        assert found["score"] == pytest.approx(right.score, abs=1e-4)
        words = [one.text for one in translator.words(right)]
        assert [one["text"] for one in found["words"]] == words
        tokens = [token for segment in right.segments for token in segment.tokens]
        pieces = translator.tokenizer.target_pieces(tokens)
        assert [one["text"] for one in found["tokens"]] == pieces
        assert right.alignment is not None
        assert found["alignments"] == [list(pair) for pair in right.alignment.pairs()]


def test_details_of_arrays_are_arrays(client: TestClient) -> None:
    query = QUERY | {"q": [TEXT, ""], "details": True, "source": "auto"}
    answer = client.post("/translate", json=query).json()
    assert [len(one) for one in answer["hypotheses"]] == [1, 1]
    assert answer["model"] == ["en-de", ""]
    assert [one["language"] for one in answer["detectedLanguage"]] == ["en", "und"]


def test_alignments_meet_in_the_pivot_language(client: TestClient, translator: Translator) -> None:
    query = QUERY | {"source": "de", "target": "fr", "alignments": True, "options": LONG}
    (found,) = client.post("/translate", json=query).json()["hypotheses"]
    options = SearchOptions(**LONG)
    first = translator.translate_document(TEXT, options, split_sentences="de", alignments=True)
    second = translator.translate_document(
        first.text, options, split_sentences="en", alignments=True
    )
    alignments = [one.hypotheses[0].alignment for one in (first, second)]
    assert alignments[0] is not None
    assert alignments[1] is not None
    after = alignments[1].pairs()
    through = {(a, d) for a, b in alignments[0].pairs() for c, d in after if b == c}
    assert found["alignments"] == [list(pair) for pair in sorted(through)]


def test_a_text_is_translated_into_several_languages(serve: Callable[..., TestClient]) -> None:
    client = serve(max_characters=200, max_texts=5)
    query = {"q": [TEXT, "24"], "source": "auto", "target": ["fr", "de", "fr"], "details": True}
    answer = client.post("/translate", json=query).json()
    assert [*answer["translations"]] == ["fr", "de"]
    for code, found in answer["translations"].items():
        alone = client.post("/translate", json=query | {"target": code}).json()
        del alone["seconds"]
        assert found == alone
    for wrong, status in (
        ({"target": []}, 400), ({"target": ["de", 3]}, 400), ({"target": ["de", "xx"]}, 400),
        ({"q": ["a"] * 3, "target": ["de", "fr"]}, 413), ({"q": TEXT * 5}, 413),
        ({"target": ["de"] * 6}, 413), ({"terminology": {"cat": "Katze"}}, 400),
    ):  # fmt: skip
        refused = client.post("/translate", json=query | wrong)
        assert refused.status_code == status, refused.text


def test_terminology_is_required_of_the_translation(client: TestClient) -> None:
    query = QUERY | {"terminology": {"cat": "Katze"}}
    assert "Katze" in client.post("/translate", json=query).json()["translatedText"]
    found = client.post("/alternatives", json=query | {"count": 2}).json()["alternatives"]
    assert found
    assert all("Katze" in one["text"] for one in found)


@pytest.mark.parametrize("form", ["text", "html", "stream"])
def test_terminology_passes_through_a_pivot_language(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    routes = client.app.state.server.bundles.routes  # type: ignore[attr-defined]
    (first, _) = routes.find("de", "fr").hops
    submit, lines = first.bundle.service.submit_request, list[str]()

    def counted(request_: LineRequest, **named: Any) -> Any:
        lines.extend(request_.lines)
        return submit(request_, **named)

    monkeypatch.setattr(first.bundle.service, "submit_request", counted)
    term = f"big {form}"
    query = {"source": "de", "target": "fr", "terminology": {term: "Katze", "no such": "Hund"}}
    query["q"] = f"the {term} runs."
    for _ in range(2):
        if form == "stream":
            found = client.post("/translate/stream", json=query).text
        else:
            found = client.post("/translate", json=query | {"format": form}).json()[
                "translatedText"
            ]
        assert "Katze" in found
        assert "Hund" not in found
    assert lines == [term, query["q"], query["q"]]


def test_alternatives_differ_in_the_next_token(client: TestClient, translator: Translator) -> None:
    query = {"q": "the cat runs.", "source": "en", "target": "de", "prefix": "Hund", "count": 3}
    answer = client.post("/alternatives", json=query | {"options": LONG}).json()
    expected = translator.translate(
        "the cat runs.", SearchOptions(alternatives=3, **LONG), "Hund"
    ).hypotheses
    assert [one["text"] for one in answer["alternatives"]] == [one.text for one in expected]
    forced = len(translator.tokenizer.encode_target("Hund"))
    for found, right in zip(answer["alternatives"], expected, strict=True):
        probability = math.exp(right.token_log_probs[forced])
        assert found["probability"] == pytest.approx(probability, abs=1e-4)
    for wrong in ({"q": "a\nb"}, {"source": "de", "target": "fr"}, {"count": 0}, {"count": 99},
                  {"format": "html"}):  # fmt: skip
        assert client.post("/alternatives", json=query | wrong).status_code == 400


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for event in text.strip().split("\n\n"):
        kind, data = event.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("source", ["en", "de", "auto"])
def test_a_stream_adds_up_to_the_translation(client: TestClient, source: str) -> None:
    text = f" - {TEXT}\r\n\n{TEXT} the house\n"
    query = QUERY | {"q": text, "source": source, "target": "fr"}
    assert client.post("/translate/stream", json=query | {"format": "html"}).status_code == 400
    answer = client.post("/translate/stream", json=query)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *sentences, (last, done) = events(answer.text)
    assert {kind for kind, _ in sentences} == {"translation"}
    assert (last, done["sentences"]) == ("done", len(sentences))
    assert "".join("".join(one["source"] for _, one in sentences).split()) == "".join(
        text.replace("-", "").split()
    )
    joined = "".join(one["before"] + one["text"] for _, one in sentences) + done["after"]
    whole = client.post("/translate", json=query).json()
    assert joined == whole["translatedText"]
    assert done.get("detectedLanguage") == whole.get("detectedLanguage")


@pytest.mark.parametrize("pair", [("en", "de"), ("de", "fr")], ids="-".join)
def test_streamed_sentences_have_the_words_of_translations(
    client: TestClient, pair: tuple[str, str]
) -> None:
    query = QUERY | {"source": pair[0], "target": pair[1], "words": True, "alignments": True}
    *sentences, _ = events(client.post("/translate/stream", json=query).text)
    assert sentences
    for _, sentence in sentences:
        again = client.post("/translate", json=query | {"q": sentence["source"]}).json()
        (expected,) = again["hypotheses"]
        assert sentence["words"] == expected["words"]
        assert sentence["alignments"] == expected["alignments"]
    plain = events(client.post("/translate/stream", json=QUERY).text)
    assert not {"words", "alignments"} & plain[0][1].keys()


def test_alternatives_have_words(client: TestClient) -> None:
    query = QUERY | {"q": "the cat runs.", "count": 3, "words": True, "alignments": True}
    for one in client.post("/alternatives", json=query).json()["alternatives"]:
        assert [word["text"] for word in one["words"]] == one["text"].split()
        assert {target for _, target in one["alignments"]} == set(range(len(one["words"])))


def test_an_error_ends_a_stream(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from translate_trt.runtime import BackendError

    service = client.app.state.server.bundles.routes.bundles[0].service  # type: ignore[attr-defined]
    submit, count = service.submit_request, []

    def fail_later(*arguments: Any, **named: Any) -> Any:
        count.append(1)
        future = submit(*arguments, **named)
        if len(count) == 2:
            future.result(60)
            future = type(future)()
            future.set_exception(BackendError("no memory"))
        return future

    monkeypatch.setattr(service, "submit_request", fail_later)
    answer = client.post("/translate/stream", json=QUERY)
    assert answer.status_code == 200
    assert [kind for kind, _ in events(answer.text)] == ["translation", "error"]
    assert events(answer.text)[1][1] == {"error": "no memory", "status": 500}
