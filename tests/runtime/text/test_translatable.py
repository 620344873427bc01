from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translate_trt.runtime.text.sentences import is_translatable

LETTERS = ("Lu", "Ll", "Lt", "Lm", "Lo")


@given(
    st.text(st.characters(exclude_categories=LETTERS)),
    st.text(st.characters(exclude_categories=LETTERS)),
    st.characters(categories=LETTERS),
)
def test_one_letter_is_enough(before: str, after: str, letter: str) -> None:
    assert not is_translatable(before + after)
    assert is_translatable(f"{before} {letter} {after}")


@pytest.mark.parametrize(
    "text",
    [
        "244890", "00:00:02,830 --> 00:00:05,560", "24.12.2026", "€ 1.299,00", "+49 30 901820",
        "\u2167 \u3007", "\u0301\u20dd", "\u200d", "\u2060", "\U0001f44d\U0001f3fd",
        " https://example.org/a?b=c#d ", "HTTP://x", "www.example.org", "ftp://a.b/c.txt",
        "first.last+tag@mail.example.org", "mailto:a_b@c-d.e",
    ],
)  # fmt: skip
def test_nothing_to_translate(text: str) -> None:
    assert not is_translatable(text)


@pytest.mark.parametrize(
    "text",
    [
        "5 km", "三", "\u0e01\u0e34", "see https://example.org", "https://example.org now",
        "https://example.org/を見て", "https://", "www.", "and/or", "Hello.World", "a@b", "@b.c",
        "a@.c", "a@b..c", "a@b.", "a b@c.d", "é@b.c", "a@b.c,", "mailto:", "a@b@c.d",
    ],
)  # fmt: skip
def test_something_to_translate(text: str) -> None:
    assert is_translatable(text)
