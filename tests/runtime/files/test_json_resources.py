"""JSON and its kinds of locale files."""

import json
import random
import string
from typing import Any

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts, upper

from translate_trt.runtime.errors import InputError


def random_value(source: random.Random, depth: int = 0) -> Any:
    kind = source.randrange(6 if depth < 4 else 3)
    if kind < 3:
        letters = string.ascii_lowercase + ' "\\/\n\té漢😀'
        text = "".join(source.choices(letters, k=source.randrange(12)))
        return (text, source.random(), None)[kind]
    children = [random_value(source, depth + 1) for _ in range(source.randrange(4))]
    return children if kind == 3 else {f"k.{n}": one for n, one in enumerate(children)}


def test_random_documents() -> None:
    source = random.Random(0)
    for _ in range(500):
        value = random_value(source)
        text = json.dumps(
            value, ensure_ascii=source.random() < 0.5, indent=source.choice((None, 2, "\t")),
            separators=source.choice(((",", ":"), (", ", ": "), (" ,", " : "))),
        )  # fmt: skip
        if source.random() < 0.3:
            text = text.replace("/", "\\/").replace("\n", "\r\n")
        content = text.encode("utf-8-sig" if source.random() < 0.2 else "utf-8")
        assert rendered(content, "a.json") == content
        translated = rendered(content, "a.json", capitals)
        assert json.loads(translated) == upper(value)
        assert translated.isascii() or not content.isascii()


CATALOGUE = b"""{
  "title": "A title", "list": [1, {"name": "One", "id": "x"}], "home": {"title": "Home"}
}"""


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ((), ["A title", "One", "x", "Home"]),
        (("title", "*.title"), ["A title", "Home"]),
        (("list.*.name",), ["One"]),
    ],
)
def test_keys_select_values(keys: tuple[str, ...], found: list[str]) -> None:
    assert texts(CATALOGUE, "a.json", keys=keys) == found


def test_only_messages_of_extensions() -> None:
    content = b'{"a": {"message": "Hi $NAME$", "description": "Greeting"}, "b": {"message": "Go"}}'
    assert texts(content, "a.json") == ["Hi {0}", "Go"]
    assert json.loads(rendered(content, "a.json", capitals))["a"] == {
        "message": "HI $NAME$", "description": "Greeting",
    }  # fmt: skip


def test_metadata_of_arb() -> None:
    content = b'{"@@locale": "en", "n": "{n, plural, other{x}}", "@n": {"description": "y"}}'
    translated = rendered(content, "a.arb", capitals, target_language="por_Latn")
    assert json.loads(translated) == {
        "@@locale": "pt", "n": "{n, plural, other{X}}", "@n": {"description": "y"},
    }  # fmt: skip
    assert rendered(content, "a.arb") == content


def test_damaged_files_are_refused() -> None:
    assert read_damaged(CATALOGUE, "a.json") > 20
    with pytest.raises(InputError, match="deep"):
        texts(b"[" * 500 + b"]" * 500, "a.json")
    with pytest.raises(InputError, match="deep"):
        texts(b"[" * 100000 + b"]" * 100000, "a.json")
