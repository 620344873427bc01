"""Texts cut into sentences and joined: white space, structure, language codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.prompts import SOURCE

from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.documents import SplitText, TextSplitter
from translate_trt.runtime.text.sentences import SentenceRules

pytest.importorskip("sentencex")
pytest.importorskip("langcodes")
hypothesis = pytest.importorskip("hypothesis")
given, strategies = hypothesis.given, hypothesis.strategies
# Every run has the same examples and no time limit for one.
settings = hypothesis.settings(derandomize=True, deadline=None, max_examples=150, database=None)

OPTIONS = SearchOptions()
DOCUMENT = """\
# Heading one. Two!

First sentence.  Second  one?\tThird.
   Indented line.\r
- Item one. Goes on.
  * Item two
1. Numbered. (a) Not a marker.
> Quoted. Text.
> > - Deep.

----
...

\x0cNo line end at the end."""

# Characters that matter to sentences, markers and line ends, and any others.
PIECES = strategies.one_of(
    strategies.sampled_from(
        ["\n", "\r\n", "\r", "\n\n", " ", "  ", "\t", "\u3000", "\u2028", "\x85", ". ", "! ",
         "\u3002", "- ", "* ", "1. ", "(a) ", "# ", "> ", ">>deu<< ", ">>", "<<", "Dr. ", "word",
         "Two words.", "3", "\u201c", '"']
    ),
    strategies.text(max_size=5),
)  # fmt: skip
TEXTS = strategies.lists(PIECES, max_size=25).map("".join)


def splitter(
    language: str | None = "en", target: str | None = "en", prompt: Prompt | None = None
) -> TextSplitter:
    rules = None if language is None else SentenceRules(language)
    return TextSplitter(prompt or Prompt(), rules, target)


def untranslated(split: SplitText) -> str:
    pairs = zip(split.separators, [*split.sentences, ""], strict=True)
    return "".join(part for pair in pairs for part in pair)


@settings
@given(TEXTS, strategies.sampled_from([None, "en", "ja"]))
def test_a_document_that_is_not_translated_stays_as_it_is(text: str, language: str | None) -> None:
    split = splitter(language, language).split_document(text, OPTIONS, unwrap=False)
    assert untranslated(split) == text
    assert all(one == one.strip() and any(map(str.isalnum, one)) for one in split.sentences)


@settings
@given(TEXTS, strategies.sampled_from([None, "en", "ja"]))
def test_a_line_that_is_not_translated_stays_as_it_is(text: str, language: str | None) -> None:
    line = " ".join(text.splitlines())
    assert untranslated(splitter(language, language).split_line(line, OPTIONS)) == line


@settings
@given(TEXTS)
def test_only_white_space_changes_when_paragraphs_are_unwrapped(text: str) -> None:
    split = splitter().split_document(text, OPTIONS, unwrap=True)
    assert untranslated(split).split() == text.split()


@settings
@given(TEXTS)
def test_a_split_line_has_no_line_ends(text: str) -> None:
    separators = splitter().split_line(text, OPTIONS).separators
    assert len("".join(separators).splitlines()) <= 1


def test_the_structure_of_a_document_is_not_translated() -> None:
    split = splitter().split_document(DOCUMENT, OPTIONS, unwrap=False)
    assert untranslated(split) == DOCUMENT
    assert split.sentences == (
        "Heading one.", "Two!", "First sentence.", "Second  one?", "Third.", "Indented line.",
        "Item one.", "Goes on.", "Item two", "Numbered.", "(a) Not a marker.", "Quoted.", "Text.",
        "Deep.", "No line end at the end.",
    )  # fmt: skip


def test_paragraphs_are_unwrapped() -> None:
    text = (
        "# Title\nA sentence that\nwas wrapped. Another\n  one.\n\n- An item that\n  goes on\n"
        "- next\n    Indented\n    code.\n"
    )
    split = splitter().split_document(text, OPTIONS, unwrap=True)
    assert split.sentences == (
        "Title", "A sentence that was wrapped.", "Another", "one.", "An item that goes on", "next",
        "Indented code.",
    )  # fmt: skip
    assert untranslated(split) == (
        "# Title\nA sentence that was wrapped. Another\n  one.\n\n- An item that goes on\n"
        "- next\n    Indented code.\n"
    )


def test_a_text_without_spaces_is_unwrapped_without_spaces() -> None:
    split = splitter("zh", "zh").split_document("你好\n吗\uff1f很好。\n", OPTIONS, unwrap=True)
    assert split.sentences == ("你好吗\uff1f", "很好。")


@pytest.mark.parametrize(
    ("source", "target", "line", "expected"),
    [
        ("en", "de", " One.  Two.\tThree. ", " One.  Two.\tThree. "),
        ("ja", "en", "一つ。二つ。\u3000三つ。", "一つ。 二つ。\u3000三つ。"),
        ("ja", "zho_Hans", "一つ。二つ。", "一つ。二つ。"),
        ("ja", None, "一つ。二つ。", "一つ。 二つ。"),
        ("en", "jpn_Jpan", "One. Two.  Three.", "One.Two.  Three."),
        ("en", "de", "One.\nTwo.\x85Three.", "One. Two. Three."),
    ],
)
def test_white_space_between_sentences(
    source: str, target: str | None, line: str, expected: str
) -> None:
    assert untranslated(splitter(source, target).split_line(line, OPTIONS)) == expected


def test_the_target_language_of_the_options_decides_about_spaces() -> None:
    options = replace(OPTIONS, target_language="jpn_Jpan")
    assert untranslated(splitter("en", None).split_line("One. Two.", options)) == "One.Two."


@pytest.mark.parametrize(
    ("line", "sentences", "separators"),
    [
        ("  >>deu<<  One. Two. ", (">>deu<< One.", ">>deu<< Two."), ("  ", " ", " ")),
        (">>deu<<", (), ("",)),
        (">>deu<< \t", (), (" \t",)),
        (">>Non<< One. Two.", (">>Non<< One.", "Two."), ("", " ", "")),  # not the form of a code
    ],
)
def test_a_language_code_reaches_every_sentence(
    line: str, sentences: tuple[str, ...], separators: tuple[str, ...]
) -> None:
    assert splitter(prompt=SOURCE).split_line(line, OPTIONS) == SplitText(sentences, separators)


def test_a_language_code_holds_for_its_line_of_a_document() -> None:
    split = splitter(prompt=SOURCE).split_document(
        ">>deu<< One. Two.\n\n>>nld<<\n>>nld<< Three.\nFour.\n", OPTIONS, unwrap=False
    )
    assert split.sentences == (">>deu<< One.", ">>deu<< Two.", ">>nld<< Three.", "Four.")
    assert "".join(split.separators) == " \n\n\n\n\n"


@pytest.mark.parametrize("unwrap", [False, True])
@pytest.mark.parametrize("line", ["word ", "word", "- a. ", "> ", "word\n", "\n", " "])
def test_long_documents_keep_every_character(line: str, unwrap: bool) -> None:
    text = line * 20_000
    split = splitter().split_document(text, OPTIONS, unwrap)
    assert untranslated(split).split() == text.split()
