"""Plain text and HTML."""

from __future__ import annotations

import random

import pytest
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError, OptionError


def test_paragraphs_keep_what_is_between_them() -> None:
    content = b"\xef\xbb\xbf\r\n One\r\n two\r\n\r\n \t\r\nThree"
    assert texts(content, "a.txt") == ["One\r\n two\r\n", "Three"]
    assert rendered(content, "a.txt") == content
    assert rendered(content, "a.txt", capitals) == content.upper()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_encodings(encoding: str) -> None:
    content = "Stra\u00dfe \u00fc\n".encode(encoding)
    options = {"encoding": encoding} if encoding == "cp1252" else {}
    assert rendered(content, "a.txt", **options) == content
    assert rendered(content, "a.txt", lambda _: "\u00e4", **options).decode(encoding) == "\u00e4"
    # What an encoding lacks is written in UTF-8.
    other = rendered("a".encode("cp1252"), "a.txt", lambda _: "\u0153\u4e00", encoding="cp1252")
    assert other.decode() == "\u0153\u4e00"


def test_encodings_of_bytes_are_no_encodings_of_text() -> None:
    for encoding in ("base64", "rot13", "undefined"):
        with pytest.raises(OptionError):
            texts(b"YQ==", "a.txt", encoding=encoding)
        with pytest.raises(InputError, match="charset"):
            texts(f'msgid ""\nmsgstr "charset={encoding}\\n"\n'.encode(), "a.po")
    with pytest.raises(InputError):
        texts(b"One two", "a.txt", encoding="punycode")


def test_random_text() -> None:
    rng = random.Random(2)
    for _ in range(500):
        content = "".join(
            rng.choices(("a", " ", "\t", "\n", "\r\n", "\r", "\u4e00", "\f", "."), k=20)
        )
        assert rendered(content.encode(), "a.txt") == content.encode()
        assert rendered(content.encode(), "a.txt", capitals) == content.upper().encode()


def test_the_language_of_a_page() -> None:
    page = b"<!DOCTYPE html><html class=a lang='en'><p lang=fr>One</p></html>"
    assert rendered(page, "a.html", target_language="de") == page
    found = rendered(page, "a.html", capitals, target_language="deu_Latn")
    assert found == page.replace(b"'en'", b'"de"').replace(b"One", b"ONE")
    twice = b"<!--[if IE]><html lang=en><![endif]--><html xml:lang='en' lang=en>"
    twice += b"<p>One<script>'<html lang=en>'</script>"
    found = rendered(twice, "a.html", capitals, target_language="de")
    assert found.count(b'lang="de"') == 3
    assert rendered(b" \n", "a.htm") == b" \n"
    declared = b'<meta charset="latin1"><p>One \xe9'
    with pytest.raises(InputError):
        texts(declared, "a.html")
    found = rendered(declared, "a.html", lambda one: f"{one.text}\u0142", encoding="latin1")
    assert found == declared + b"&#322;"  # declared as before
