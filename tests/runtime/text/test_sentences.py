"""Sentence boundaries: rules by language, language codes, texts of any length and content."""

from __future__ import annotations

import builtins
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text import sentences
from translate_trt.runtime.text.sentences import (
    SentenceRules,
    base_language,
    chosen_rules,
    sentence_rules,
    sentence_starts,
    writes_spaces,
)

pytest.importorskip("sentencex")
pytest.importorskip("langcodes")


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Mr. Smith went to Washington. ", "He stayed!  ", "Why?"]),
        ("de", ["Am 3. Oktober kam Dr. Müller z.B. nach Bonn. ", "Er blieb."]),
        ("fr", ["M. Dupont est là ! ", "Ça va, M. C. Martin ? ", "Oui."]),
        ("zh", ["你好。", "你好吗\uff1f", "很好\uff01"]),
        ("ja", ["今日は暑い。", "明日は雨です。"]),
        ("hi", ["यह पहला वाक्य है। ", "यह दूसरा है।"]),
    ],
)
def test_sentences_by_the_rules_of_their_language(language: str, expected: list[str]) -> None:
    assert SentenceRules(language).split("".join(expected)) == expected


def test_a_language_unknown_to_the_library_has_rules() -> None:
    assert SentenceRules("ace").split("Hello. Bye.") == ["Hello. ", "Bye."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("3. Oktober 2020", ["3. Oktober 2020"]),
        ("Yes. ... No.", ["Yes. ... ", "No."]),
        ("Why? 42.", ["Why? 42."]),
        ("...", ["..."]),
        ("1. 2. 3.", ["1. 2. 3."]),
    ],
)
def test_parts_without_letters_go_with_a_neighbour(text: str, expected: list[str]) -> None:
    assert SentenceRules("de").split(text) == expected


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("language", ["en", "zh", "hi"])
def test_any_text_is_the_sum_of_its_sentences(language: str, seed: int) -> None:
    # U+0085 and U+2028 before a full stop make the library panic; lone surrogates it refuses.
    characters = "abC 1.!?…\"'()「」。\t\n\r\v\x00\x1f\x85\u2028\u200b\ud800😀é"
    alphabet = [*characters, ". ", "Dr. ", "1. "]
    rng = random.Random(seed)
    rules = SentenceRules(language)
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=rng.randrange(40)))
        parts = rules.split(text)
        assert "".join(parts) == text
        assert all(parts)


def test_a_panic_of_the_library_loses_no_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class PanicException(BaseException):
        pass

    def panic(language: str, text: str) -> Any:
        raise PanicException("not a char boundary")

    monkeypatch.setattr("sentencex.get_sentence_boundaries", panic)
    assert SentenceRules("en").split("One. Two.") == ["One. Two."]
    assert "char boundary" in caplog.text


class Counted:
    """Finder of sentences that begin after ". "; counts calls and characters."""

    def __init__(self) -> None:
        self.calls = self.characters = 0

    def __call__(self, text: str) -> list[int]:
        self.calls += 1
        self.characters += len(text)
        return [0, *(i for i in range(2, len(text)) if text[i - 2 : i] == ". ")]


@pytest.mark.parametrize("pattern", ["word", "word ", ". ", "A sentence. ", ". " + "x" * 70, "."])
def test_the_time_is_proportional_to_the_length(pattern: str) -> None:
    window = 64
    for size in (1_000, 10_000):
        find = Counted()
        text = (pattern * size)[:size]
        starts = sentence_starts(text, find, window)
        assert starts == sorted(set(starts))
        assert find.calls <= 2 * size / window + 1
        assert find.characters <= 2 * size + window


def test_windows_find_the_boundaries_of_the_whole_text() -> None:
    rng = random.Random(1)
    text = "".join(rng.choice("ab") * rng.randrange(1, 25) + ". " for _ in range(500))
    assert sentence_starts(text, Counted(), 64) == Counted()(text)


@pytest.mark.parametrize("pattern", ["M. ", "... ", "1. ", "\u300c. a ", "word", " "])
def test_a_million_characters_keep_their_order(pattern: str) -> None:
    text = pattern * (1_000_000 // len(pattern))
    assert "".join(SentenceRules("fr").split(text)) == text


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("de", "de"), ("deu", "de"), ("deu_Latn", "de"), ("de_DE", "de"), ("en_XX", "en"),
        ("cmn_Hans", "zh"), ("zh_CN", "zh"), ("jpn_Jpan", "ja"), ("arb_Arab", "ar"),
        ("ace_Latn", "ace"), (None, None), ("", None), ("xx", None), ("english", None),
        ("two words", None), ("../etc", None),
    ],
)  # fmt: skip
def test_codes_of_any_model_name_a_language(code: str | None, expected: str | None) -> None:
    assert base_language(code) == expected


def test_languages_without_spaces() -> None:
    assert not writes_spaces(base_language("zho_Hant"))
    assert not writes_spaces(base_language("ja"))
    assert writes_spaces(base_language("th"))
    assert writes_spaces(None)


@pytest.mark.parametrize("package", ["sentencex", "langcodes"])
@pytest.mark.parametrize(
    "use", [lambda: chosen_rules(True, "de"), lambda: base_language("de") and SentenceRules("de")]
)
def test_a_missing_package_is_named(
    package: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == package:
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    caches = (base_language, sentence_rules, sentences._langcodes)
    for one in caches:
        one.cache_clear()
    with pytest.raises(OptionError, match=rf"{package}.*translate-trt\[split\]"):
        use()
    for one in caches:
        one.cache_clear()
