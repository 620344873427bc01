"""DeepL's API, by its own client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime import Translator
from translate_trt.runtime.text.glossary import Entry, Glossary

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("py3langid", reason="the extra detect is not installed")
pytest.importorskip("deepl", reason="the package deepl is not installed")
import deepl

TEXT = "the cat runs under the green tree."


@pytest.fixture(scope="module")
def url(serve_on_port: Callable[..., str], keys: dict[str, Any]) -> str:
    return serve_on_port(apis=("deepl",), **keys)


@pytest.fixture
def client(url: str) -> Any:
    return deepl.DeepLClient("alice", server_url=url)


def test_texts(client: Any, translator: Translator) -> None:
    expected = translator.translate_document(TEXT, split_sentences="en").text
    before = client.get_usage().character.count
    found, number = client.translate_text([TEXT, "12345"], target_lang="DE")
    assert (found.text, found.detected_source_lang) == (expected, "EN")
    assert (number.text, number.billed_characters) == ("12345", 5)
    assert client.get_usage().character.count == before + len(TEXT) + 5
    named = client.translate_text(
        TEXT, source_lang="EN", target_lang="DE", split_sentences="nonewlines",
        preserve_formatting=True, formality="prefer_more",
    )  # fmt: skip
    assert named.text == expected
    assert client.translate_text(TEXT, source_lang="DE", target_lang="EN-GB").text


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_tags_are_kept(client: Any, kind: str) -> None:
    text = "the <b>cat</b> runs."
    found = client.translate_text(text, source_lang="EN", target_lang="DE", tag_handling=kind)
    assert (found.text.count("<b>"), found.text.count("</b>")) == (1, 1)


def test_languages(client: Any) -> None:
    assert [one.code for one in client.get_source_languages()] == ["DE", "EN"]
    targets = client.get_target_languages()
    assert [one.code for one in targets] == ["DE", "EN-GB", "EN-US", "FR"]
    pairs = [(one.source_lang, one.target_lang) for one in client.get_glossary_languages()]
    assert pairs == [("de", "en"), ("de", "fr"), ("en", "de"), ("en", "fr")]


def test_glossaries_belong_to_a_key(client: Any, url: str, translator: Translator) -> None:
    made = client.create_glossary("animals", "EN", "DE", {"cat": "Katze"})
    assert (made.name, made.entry_count, made.ready) == ("animals", 1, True)
    assert [one.glossary_id for one in client.list_glossaries()] == [made.glossary_id]
    assert client.get_glossary_entries(made.glossary_id) == {"cat": "Katze"}
    found = client.translate_text(TEXT, source_lang="EN", target_lang="DE", glossary=made)
    terms = Glossary([Entry("cat", ("Katze",))])
    expected = translator.translate_document(TEXT, split_sentences="en", terminology=terms)
    assert found.text == expected.text
    other = deepl.DeepLClient("bob", server_url=url)
    assert other.list_glossaries() == []
    with pytest.raises(deepl.GlossaryNotFoundException):
        other.get_glossary(made.glossary_id)
    csv = client.create_glossary_from_csv("b", "EN", "DE", '"a, b",c\n')
    assert client.get_glossary_entries(csv) == {"a, b": "c"}
    for one in (made, csv):
        client.delete_glossary(one.glossary_id)
    assert client.list_glossaries() == []


def test_documents(client: Any, translator: Translator, tmp_path: Path) -> None:
    (source := tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    output = tmp_path / "b.txt"
    status = client.translate_document_from_filepath(source, output, target_lang="DE")
    assert status.done
    assert status.billed_characters == len(TEXT)
    expected = translator.translate_document(TEXT, split_sentences="en").text
    assert output.read_text(encoding="utf-8") == expected


def test_errors_are_deepls(client: Any, url: str) -> None:
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("unknown", server_url=url).translate_text(TEXT, target_lang="DE")
    for arguments in (
        {"target_lang": "XX"}, {"target_lang": "DE", "formality": "more"},
        {"target_lang": "DE", "extra_body_parameters": {"glossary_ids": ["a", "b"]}},
    ):  # fmt: skip
        with pytest.raises(deepl.DeepLException, match="Bad request, message"):
            client.translate_text(TEXT, **arguments)
    with pytest.raises(deepl.DeepLException, match="not translated"):
        client.translate_document_upload(b"x", filename="a.exe", target_lang="DE")
    with pytest.raises(deepl.DeepLException, match="output_format"):
        client.translate_document_upload(
            b"x", filename="a.txt", target_lang="DE", output_format="pdf"
        )
    with pytest.raises(deepl.DeepLException, match="Not found"):
        client.translate_document_get_status(deepl.DocumentHandle("x", "ä"))
    with pytest.raises(deepl.DeepLException, match="Bad request"):
        client.create_glossary_from_csv("b", "EN", "DE", "a\n")
