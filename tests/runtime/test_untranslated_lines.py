"""Text without letters, and addresses: unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prompts import SOURCE, with_prompt

from translate_trt.runtime import (
    Glossary,
    SearchOptions,
    Translation,
    Translator,
)
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.glossary import Entry

NUMBERS = ["244890", " 12:30 -\t14:00 ", "\u2060", "https://example.org/a.", "me@example.org"]
CUES = "1\r\n00:00:02,830 --> 00:00:05,560\r\nThe cat runs.\r\n\r\n2\r\n00:00:05,700 --> 00:00:06"
# No letters, and nothing that markup, Markdown or the text of a line cannot contain.
PLAIN = st.text(
    st.characters(exclude_categories=("L", "Cs"), exclude_characters="<>&"), min_size=1
)  # fmt: skip


def assert_same(found: Translation, text: str) -> None:
    (hypothesis,) = found.hypotheses
    assert (hypothesis.text, hypothesis.score, hypothesis.segments) == (text, 0.0, ())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(PLAIN)
def test_text_without_letters_is_unchanged(translator: Translator, text: str) -> None:
    for markup in (None, "text", "html"):
        for rules in ("en", False) if markup is None else (False,):
            pytest.importorskip("sentencex")
            found = translator.translate_document(text, split_sentences=rules, markup=markup)
            assert_same(found, text)
    (line,) = text.splitlines()[:1]
    assert_same(translator.translate(line), line if line.strip() else "")


def test_lines_among_others(translator: Translator) -> None:
    lines = [NUMBERS[0], "The cat runs.", *NUMBERS[1:], "", "a"]
    options = SearchOptions(num_hypotheses=2)
    found = translator.translate(lines, options, alignments=True)
    for line, one in zip(lines, found, strict=True):
        if line in NUMBERS:
            assert_same(one, line)
    plain = translator.translate(["The cat runs.", "", "a"], options)
    assert [found[index].text for index in (1, 6, 7)] == [one.text for one in plain]
    alignment = found[2].hypotheses[0].alignment
    assert alignment is not None
    assert alignment.pairs() == [(0, 0), (1, 1), (2, 2)]
    assert translator.words(found[0].hypotheses[0]) == []


def test_the_model_translates_what_is_asked_for(translator: Translator) -> None:
    (line, blank), options = ("244890", ""), SearchOptions(beam_size=2)
    glossary = Glossary([Entry("244890", ("Haus",))])
    found = [
        *translator.translate([line], translate_all=True),
        *translator.translate_iter([line], translate_all=True),
        *translator.translate([line], split_sentences="en", translate_all=True),
        *translator.translate([line], target_prefixes=["Haus"]),
        *translator.translate([line], options, constraints=[["Haus"]]),
        *translator.translate([line], options, terminology=glossary),
    ]
    assert all(one.segment_count == 1 for one in found)
    assert all("Haus" in one.text for one in found[3:])
    assert len(translator.score(line, "Haus").segments) == 1
    mixed = translator.translate([line, line], target_prefixes=["Haus", blank])
    assert [one.segment_count for one in mixed] == [1, 0]
    mixed = translator.translate([line, line], options, constraints=[[], ["Haus"]])
    assert [one.segment_count for one in mixed] == [0, 1]
    with pytest.raises(OptionError, match="translate_all"):
        translator.translate(line, markup="html", translate_all=True)


def test_cues_and_cells(translator: Translator) -> None:
    pytest.importorskip("sentencex")
    found = translator.translate_document(CUES)
    before, after = CUES.split("The cat runs.")
    assert found.text.startswith(before)
    assert found.text.endswith(after)
    assert found.segment_count == 1
    table = "<tr><td> 24&#52;8 </td><td>a@b.org</td><td>The cat</td></tr>"
    found = translator.translate_document(table, markup="html")
    assert found.text.startswith(table[: table.index("The")])
    assert found.segment_count == 1
    text = "<p>The cat runs. <b>www.example.org</b></p>"
    found = translator.translate_document(text, markup="html")
    assert (found.segment_count, found.sentence_count) == (1, 2)
    assert re.sub("<[^>]*>", "", found.text).endswith(" www.example.org")


def test_a_language_code_is_no_text(compiled_bundle: Path, tmp_path: Path) -> None:
    bundle = with_prompt(compiled_bundle, SOURCE, tmp_path / "bundle")
    code = next(iter(SOURCE.target_languages))
    with Translator(bundle, threads=1) as translator:
        assert_same(translator.translate(f" >>{code}<< 24 "), "24 ")
        german = SearchOptions(target_language="deu")
        assert translator.translate(">>Cats<< 24", german).segment_count == 1
