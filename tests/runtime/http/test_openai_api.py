"""OpenAI's API, by its own client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from translate_trt.runtime import Translator
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.serve.http.text_translation import TextTranslation

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("py3langid", reason="the extra detect is not installed")
pytest.importorskip("openai", reason="the package openai is not installed")
import openai

TEXT = "the cat runs under the green tree. a dog sleeps."
USER = {"role": "user", "content": TEXT}


@pytest.fixture(scope="module")
def url(serve_on_port: Callable[..., str], keys: dict[str, Any]) -> str:
    return serve_on_port(apis=("openai",), **keys)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(api_key="alice", base_url=f"{url}v1", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def expected(translator: Translator) -> str:
    return translator.translate_document(TEXT, split_sentences="en").text


def ask(client: Any, model: str, *messages: dict[str, Any], **options: Any) -> str:
    answer = client.chat.completions.create(model=model, messages=messages, **options)
    text: str = answer.choices[0].message.content
    return text


def test_models_are_languages(client: Any, expected: str) -> None:
    names = [one.id for one in client.models.list()]
    assert names == ["de", "en", "fr", "de-en", "de-fr", "en-de", "en-fr"]
    older = [USER | {"content": "something else"}, {"role": "assistant", "content": "anything"}]
    assert ask(client, "en-de", *older, USER, temperature=0.3) == expected
    parts = [{"type": "text", "text": TEXT}]
    assert ask(client, "de", {"role": "user", "content": parts}) == expected


@pytest.mark.parametrize(
    "system",
    [
        "You are a translator. Translate from English into German.",
        "Translate all texts to German, not to the letter.",
        "You translate into English. No: to German",
        "You are a German translator.",
    ],
)
def test_the_system_message_names_the_languages(client: Any, expected: str, system: str) -> None:
    assert ask(client, "gpt", {"role": "system", "content": system}, USER) == expected


def test_a_first_paragraph_may_name_the_languages(client: Any, expected: str) -> None:
    asked = {"role": "user", "content": f"Please translate this text to German:\n\n{TEXT}"}
    assert ask(client, "gpt", asked) == ask(client, "en-de", asked) == expected
    document = "Translate with care:\n\nthe cat runs."
    found = ask(client, "en-de", {"role": "user", "content": document})
    assert found.count("\n\n") == 1


def test_sentences_are_streamed(client: Any, expected: str) -> None:
    chunks = list(client.chat.completions.create(model="en-de", messages=[USER], stream=True))
    texts = [one.choices[0].delta.content for one in chunks]
    assert len(texts) >= 3
    assert "".join(text or "" for text in texts) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_errors_are_openais(client: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = openai.OpenAI(api_key="unknown", base_url=f"{url}v1", max_retries=0)
    with other, pytest.raises(openai.AuthenticationError):
        ask(other, "en-de", USER)
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    for model, message in (("gpt", USER), ("en-de", {"role": "system", "content": "x"}),
                           ("en-de", picture)):  # fmt: skip
        with pytest.raises(openai.BadRequestError):
            ask(client, model, message)

    async def fail(*_: object) -> Any:
        yield "x", "", []
        raise BackendError("no memory")

    monkeypatch.setattr(TextTranslation, "stream", fail)
    with pytest.raises(openai.APIError, match="no memory"):
        list(client.chat.completions.create(model="en-de", messages=[USER], stream=True))
