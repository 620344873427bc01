"""Annotation of source text: forms, spaces, symbols in the text, and their record."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import pytest

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.term_annotation import SYMBOLS, TermAnnotation
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.glossary import Entry, Glossary

GLOSSARY = Glossary(
    [Entry("cat", ("Katze", "Kater")), Entry("New York", ("New York",)), Entry("GPU", ("显卡",))]
)
APPEND, REPLACE = TermAnnotation("append"), TermAnnotation("replace")


@pytest.mark.parametrize(
    ("text", "appended", "replaced"),
    [
        ("the cat sat", "the⟦ cat⟼ Katze⟧ sat", "the⟦ Katze⟧ sat"),
        ("cat, cat", "⟦ cat⟼ Katze⟧,⟦ cat⟼ Katze⟧", "⟦ Katze⟧,⟦ Katze⟧"),
        ("  a  New  York-cat", "  a⟦ New  York⟼ New York⟧-⟦cat⟼ Katze⟧",
         "  a⟦ New York⟧-⟦ Katze⟧"),
        ("a GPU", "a⟦ GPU⟼显卡⟧", "a⟦显卡⟧"),
        ("no terms", "no terms", "no terms"),
        ("⟦cat⟼x⟧", "[⟦cat⟼ Katze⟧>x]", "[⟦ Katze⟧>x]"),
    ],
)  # fmt: skip
def test_forms(text: str, appended: str, replaced: str) -> None:
    assert APPEND.annotate_source(text, GLOSSARY) == appended
    assert REPLACE.annotate_source(text, GLOSSARY) == replaced


def test_a_pair_is_annotated_with_what_its_translation_has() -> None:
    assert APPEND.annotate_pair("cat in New York", "Der Kater", GLOSSARY) == (
        "⟦ cat⟼ Kater⟧ in New York"
    )
    assert APPEND.annotate_pair("cat", "Hund", GLOSSARY) is None


def test_symbols_of_a_target_phrase_are_escaped() -> None:
    glossary = Glossary([Entry("cat", ("⟧ x",))])
    assert APPEND.annotate_source("cat", glossary) == "⟦ cat⟼ ] x⟧"


def test_normalization_maps_no_other_character_to_a_symbol() -> None:
    found = {
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if not unicodedata.is_normalized("NFKC", character)
        and set(SYMBOLS) & set(unicodedata.normalize("NFKC", character))
    }
    assert not found


def test_json() -> None:
    own = TermAnnotation("replace", ("a", "b", "c"))
    assert TermAnnotation.from_json(Fields(own.to_json(), Path("x"))) == own
    with pytest.raises(OptionError, match="append or replace"):
        TermAnnotation("prepend")
