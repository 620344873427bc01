"""Translations sentence by sentence, of lines and documents."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.prompts import SOURCE, TARGET, with_prompt

from translate_trt.runtime import SearchOptions, Translation, Translator
from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.text.glossary import Entry, Glossary

# All tests of the module.
pytest.importorskip("sentencex")
pytest.importorskip("langcodes")

ONE, TWO, THREE = "The cat runs.", "A big dog sleeps!", "The tree walks?"
LINE = f" {ONE}  {TWO}\t{THREE} "


def assert_joined(found: Translation, parts: Sequence[Translation], separators: str) -> None:
    """Check that a translation is that of sentences, with separators given between "|"."""
    between = separators.split("|")
    assert len(between) == len(parts) + 1
    for rank, hypothesis in enumerate(found.hypotheses):
        own = [part.hypotheses[min(rank, len(part.hypotheses) - 1)] for part in parts]
        texts = [f"{one.text}{after}" for one, after in zip(own, between[1:], strict=True)]
        assert hypothesis.text == between[0] + "".join(texts)
        assert hypothesis.score == pytest.approx(sum(one.score for one in own), abs=1e-4)
        assert hypothesis.token_log_probs == pytest.approx(
            [value for one in own for value in one.token_log_probs], abs=1e-4
        )
        assert hypothesis.truncated == any(one.truncated for one in own)
        tokens = [segment.tokens for segment in hypothesis.segments]
        assert tokens == [segment.tokens for one in own for segment in one.segments]


@pytest.mark.parametrize("language", [True, "en"])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(beam_size=4, num_hypotheses=4, return_attention=True, max_length=5),
    ],
)
def test_sentences_are_translated_one_by_one(
    translator: Translator, options: SearchOptions, language: bool | str
) -> None:
    parts = translator.translate([ONE, TWO, THREE], options)
    split, blank, single = translator.translate(
        [LINE, " \t", ONE], options, split_sentences=language
    )
    assert_joined(split, parts, " |  |\t| ")
    assert (split.sentence_count, split.segment_count) == (3, 3)
    assert (blank.text, blank.score, blank.sentence_count) == (" \t", 0.0, 0)
    assert_joined(single, parts[:1], "|")
    if options.return_attention:
        assert all(one.attention is not None for one in split.hypotheses[0].segments)
    alone = translator.translate(LINE, options, split_sentences=language)
    assert_joined(alone, parts, " |  |\t| ")


def test_a_sentence_that_is_too_long_is_cut_further(translator: Translator) -> None:
    long = "the cat sleeps under the big tree " * 20
    split = translator.translate(f"{ONE} {long}", split_sentences=True)
    assert split.sentence_count == 2
    assert split.segment_count == 1 + translator.translate(long).segment_count > 2


def test_a_stream_is_split_as_well(translator: Translator) -> None:
    lines = [LINE, "", f"{TWO} {ONE}"]
    found = list(translator.translate_iter(lines, chunk_lines=2, split_sentences="en"))
    expected = translator.translate(lines, split_sentences="en")
    assert [one.text for one in found] == [one.text for one in expected]


def test_the_prefix_begins_the_first_sentence(translator: Translator) -> None:
    first = translator.translate([ONE], target_prefixes=["Haus"])
    found = translator.translate([LINE, " "], None, ["Haus", "Haus"], split_sentences=True)
    assert_joined(found[0], [*first, *translator.translate([TWO, THREE])], " |  |\t| ")
    assert found[1].text == " "


def test_errors_number_lines_and_not_sentences(translator: Translator) -> None:
    prefixes = ["", "Haus " * 40]
    with pytest.raises(OptionError, match=r"line 2.*call"):
        translator.translate(
            [LINE, LINE], SearchOptions(max_length=10), prefixes, split_sentences=True
        )
    # A phrase of a sentence that is not the first of its line.
    long = Glossary([Entry(TWO.split()[1], ("Haus " * 40,))])
    with pytest.raises(OptionError, match=r"constraints.*line 2"):
        translator.translate(
            [ONE, LINE], SearchOptions(max_length=10), split_sentences=True, terminology=long
        )


def test_language_codes_reach_every_sentence(compiled_bundle: Path, tmp_path: Path) -> None:
    bundle = with_prompt(compiled_bundle, SOURCE, tmp_path / "bundle")
    with Translator(bundle, threads=1) as translator:
        parts = translator.translate([f">>nld<< {ONE}", f">>nld<< {TWO}"])
        found = translator.translate(f" >>nld<< {ONE} {TWO}", split_sentences="en")
        assert_joined(found, parts, " | |")


def test_the_options_name_the_language(compiled_bundle: Path, tmp_path: Path) -> None:
    bundle = with_prompt(compiled_bundle, TARGET, tmp_path / "bundle", target_language="de")
    with Translator(bundle, threads=1) as translator:
        options = SearchOptions(source_language="fr")
        line = "M. Dupont est là ! Ça va ?"
        parts = translator.translate(["M. Dupont est là !", "Ça va ?"], options)
        assert_joined(translator.translate(line, options, split_sentences=True), parts, "| |")


def test_what_it_refuses(translator: Translator) -> None:
    for wrong in ("english", "", "xx"):
        with pytest.raises(OptionError, match="split_sentences is '"):
            translator.translate("a", split_sentences=wrong)
    for other in (1, None, ["en"]):
        with pytest.raises(OptionError, match=r"split_sentences.*True"):
            translator.translate("a", split_sentences=other)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="split_sentences is 'english'"):
        translator.translate_iter(["a"], split_sentences="english")
    with pytest.raises(InputError, match=r"text 2.*string"):
        translator.translate_document(["a", b"a"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("language", "message"),
    [(None, "does not name its source language"), ("mylang", "'mylang' is none whose rules")],
)
def test_a_bundle_without_a_language(
    compiled_bundle: Path, tmp_path: Path, language: str | None, message: str
) -> None:
    bundle = with_prompt(compiled_bundle, read_manifest(compiled_bundle).prompt, tmp_path / "b")
    write_manifest(bundle, dataclasses.replace(read_manifest(bundle), source_language=language))
    with Translator(bundle, threads=1) as translator:
        with pytest.raises(OptionError, match=f"{message}.*split_sentences='de'"):
            translator.translate(LINE, split_sentences=True)
        assert translator.translate(LINE, split_sentences="en").sentence_count == 3


def test_documents(translator: Translator) -> None:
    one, two = (found.text for found in translator.translate([ONE, TWO]))
    text = f"# {ONE}\r\n\r\n  - {TWO}  {ONE}\r\n---\r\n\t{TWO}"
    found = translator.translate_document(text)
    assert found.text == f"# {one}\r\n\r\n  - {two}  {one}\r\n---\r\n\t{two}"
    assert found.sentence_count == 4
    both = translator.translate_document(iter([text, ONE]))
    assert [each.text for each in both] == [found.text, one]
    wrapped = ONE.replace(" ", "\n", 1)
    assert translator.translate_document(f"{wrapped}\n", unwrap=True).text == f"{one}\n"
    assert translator.translate_document("").text == ""
    whole = translator.translate_document(f"{ONE} {TWO}\n\n{ONE}", split_sentences=False)
    assert whole.text == f"{translator.translate(f'{ONE} {TWO}').text}\n\n{one}"
    assert whole.sentence_count == 2


def test_without_the_option_nothing_is_imported(compiled_bundle: Path) -> None:
    program = (
        "import sys; from translate_trt.runtime import Translator;"
        f"Translator({str(compiled_bundle)!r}, threads=1).translate('A dog. A cat.');"
        "sys.exit(bool({'sentencex', 'langcodes'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
