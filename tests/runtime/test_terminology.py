"""Translation with a glossary of a bundle that reads annotations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.bad_bundles import edit

from translate_trt.runtime import Glossary, SearchOptions, Term, Translator
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.bundle.term_annotation import FORMS, TermAnnotation
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.glossary import Entry

ANNOTATION = TermAnnotation()
GLOSSARY = Glossary([Entry("cat", ("Katze",)), Entry("big dog", ("Hund",))])
LINES = ["the cat sleeps.", "", "a big dog and a cat", "no terms", "⟦ x"]


@pytest.fixture(scope="module")
def annotated_bundle(compiled_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated(compiled_bundle, tmp_path_factory.mktemp("annotated") / "bundle", ANNOTATION)


def annotated(bundle: Path, path: Path, annotation: TermAnnotation) -> Path:
    """Copy a bundle and add the record of a model that was trained on annotated text."""
    shutil.copytree(bundle, path)
    edit(path, lambda value: value.update(term_annotation=annotation.to_json()))
    return path


@pytest.fixture(scope="module")
def translator(annotated_bundle: Path) -> Translator:
    return Translator(annotated_bundle, threads=1)


def test_lines_are_annotated_and_terms_are_looked_for(translator: Translator) -> None:
    options = SearchOptions(num_hypotheses=2, min_length=6)
    found = translator.translate(LINES, options, terminology=GLOSSARY)
    by_hand = [ANNOTATION.annotate_source(line, GLOSSARY) for line in LINES]
    assert by_hand[2:] == ["a⟦ big dog⟼ Hund⟧ and a⟦ cat⟼ Katze⟧", "no terms", "[ x"]
    plain = translator.translate(by_hand, options)
    for line, one, other in zip(LINES, found, plain, strict=True):
        for hypothesis, expected in zip(one.hypotheses, other.hypotheses, strict=True):
            assert (hypothesis.text, hypothesis.score) == (expected.text, expected.score)
            assert hypothesis.terms == tuple(GLOSSARY.terms(line, hypothesis.text))
            assert expected.terms is None
    assert [len(one.hypotheses[0].terms or ()) for one in found] == [1, 0, 2, 0, 0]
    assert [translator.annotate(line, GLOSSARY) for line in LINES] == by_hand
    assert translator.translate(LINES[0], options, terminology=GLOSSARY) == found[0]
    assert list(translator.translate_iter(LINES, options, terminology=GLOSSARY)) == found


@pytest.mark.parametrize("form", FORMS)
def test_spaces_and_symbols_of_annotations(
    compiled_bundle: Path, tmp_path: Path, form: str
) -> None:
    """The library annotates as Python's `annotate_source` does."""
    annotation = TermAnnotation(form)
    translator = Translator(annotated(compiled_bundle, tmp_path / "b", annotation), threads=1)
    # Phrases at the beginning and the end, without space in front, and in several segments;
    # targets with and without a space in front; symbols in lines and in target phrases.
    content = "cat\tKatze\nDOG\t\u732b\tHund\na b\tx\u27e6y\u27e7\n\u732b\tcat\n"
    glossary = Glossary.parse(content.splitlines(), "terms.tsv", ignore_case=True)
    lines = ["cat dog", "\u732bdog\u27fc  cat", " (cat) a b.", "\u27e6a b\u27e7", "A cat. " * 40]
    by_hand = [annotation.annotate_source(line, glossary) for line in lines]
    options = SearchOptions(beam_size=1)  # terms are no constraints of the search
    found = translator.translate(lines, options, terminology=glossary)
    expected = translator.translate(by_hand, options)
    assert [one.text for one in found[:-1]] == [one.text for one in expected[:-1]]
    assert found[-1].segment_count > 1


def test_a_term_is_found_in_the_translation(translator: Translator) -> None:
    glossary = Glossary([Entry("cat", ("Kater", "Katze")), Entry("sleeps", ("schläft",))])
    found = translator.translate("the cat sleeps.", None, "Katze, ja", terminology=glossary)
    assert found.text.startswith("Katze,")
    assert found.hypotheses[0].terms == (
        Term("cat", ("Kater", "Katze"), "Katze"), Term("sleeps", ("schläft",), None),
    )  # fmt: skip


def test_sentences_and_documents_are_annotated_one_by_one(translator: Translator) -> None:
    pytest.importorskip("sentencex")
    options, sentences = SearchOptions(min_length=6), ["The cat sleeps.", "No terms.", "A big dog."]
    first, second, third = (
        translator.translate(ANNOTATION.annotate_source(one, GLOSSARY), options).text
        for one in sentences
    )
    text = "- The cat sleeps. No terms.\n\n  A big dog."
    found = translator.translate_document(text, options, split_sentences="en", terminology=GLOSSARY)
    assert found.text == f"- {first} {second}\n\n  {third}"
    assert [term.source for term in found.hypotheses[0].terms or ()] == ["cat", "big dog"]
    line = "The cat sleeps. No terms."
    found = translator.translate(line, options, split_sentences="en", terminology=GLOSSARY)
    assert found.text == f"{first} {second}"
    assert [term.source for term in found.hypotheses[0].terms or ()] == ["cat"]


def test_a_language_code_stays_in_front(annotated_bundle: Path, tmp_path: Path) -> None:
    prompt = Prompt(target_languages={"cat": 5, "dog": 6}, target_side="source")
    path = Path(shutil.copytree(annotated_bundle, tmp_path / "bundle"))
    edit(path, lambda value: value.update(prompt=prompt.to_json()))
    translator = Translator(path, threads=1)
    assert translator.annotate(">>cat<< a cat", GLOSSARY) == ">>cat<< a⟦ cat⟼ Katze⟧"
    assert translator.annotate(">>fox<< a cat", GLOSSARY) == ">>fox<< a⟦ cat⟼ Katze⟧"
    found = translator.translate(">>cat<< a cat", terminology=GLOSSARY)
    assert [term.source for term in found.hypotheses[0].terms or ()] == ["cat"]


def test_a_plain_model_is_made_to_use_the_terms(looping_bundle: Path) -> None:
    translator = Translator(looping_bundle, threads=1)
    options = SearchOptions(beam_size=4, loop_guard=True)
    wanted = [translator.required_phrases(line, GLOSSARY) for line in LINES]
    assert wanted == [["Katze"], [], ["Hund", "Katze"], [], []]
    found = translator.translate(LINES, options, terminology=GLOSSARY)
    assert [one.text for one in found] == [
        one.text for one in translator.translate(LINES, options, constraints=wanted)
    ]
    for line, one, phrases in zip(LINES, found, wanted, strict=True):
        assert all(phrase in one.text for phrase in phrases)
        assert one.hypotheses[0].terms == tuple(GLOSSARY.terms(line, one.text))
    more = [["Maus"]] * len(LINES)
    both = translator.translate(LINES, options, terminology=GLOSSARY, constraints=more)
    assert all(phrase in both[2].text for phrase in ("Hund", "Katze", "Maus"))
    aligned = translator.translate(LINES, options, terminology=GLOSSARY, alignments=True)
    assert [one.text for one in aligned] == [one.text for one in found]
    html = translator.translate(
        "a big <b>dog</b>", options, markup="html", terminology=GLOSSARY
    ).text
    assert "Hund" in html.replace("<b>", "").replace("</b>", "")
    with pytest.raises(OptionError, match=r"--terminology.*required_phrases"):
        translator.annotate(LINES[0], GLOSSARY)
    with pytest.raises(OptionError, match="beam_size is 1"):
        translator.translate(LINES, SearchOptions(beam_size=1), terminology=GLOSSARY)


def test_a_line_too_long_for_the_model_has_the_terms_of_its_segments(looping_bundle: Path) -> None:
    translator, options = Translator(looping_bundle, threads=1), SearchOptions(max_length=12)
    line = "A cat sleeps. " + "no terms, " * 60 + "a big dog."
    found = translator.translate([line, "a cat"], options, terminology=GLOSSARY)
    count = len(found[0].hypotheses[0].segments)
    assert count == len(translator.translate(line, options).hypotheses[0].segments) > 2
    assert all(phrase in found[0].text for phrase in ("Katze", "Hund"))
    assert found[1] == translator.translate("a cat", options, terminology=GLOSSARY)
    with pytest.raises(OptionError, match="alternatives belong"):
        translator.translate(line, SearchOptions(alternatives=2), terminology=GLOSSARY)


def test_terms_of_a_text_with_markup(looping_bundle: Path) -> None:
    """Names of tags are no terms, and tags and references in phrases are no obstacle."""
    translator, options = Translator(looping_bundle, threads=1), SearchOptions(beam_size=4)
    # The model goes on within words: these end with a mark.
    glossary = Glossary([
        Entry("table", ("Tabelle",)), Entry("big cat", ("Katze!",)), Entry("R&D", ("F&E!",)),
    ])  # fmt: skip
    page = "<table><tr><td>A big <b>cat</b> of<td>R&amp;D</table>"
    sources = ["big cat", "R&D"]
    for found in (
        translator.translate(page, options, markup="html", terminology=glossary),
        translator.translate_document(
            page, options, split_sentences=False, markup="html", terminology=glossary
        ),
    ):
        terms = found.hypotheses[0].terms or ()
        assert [term.source for term in terms if term.found] == sources, found.text
        assert len(terms) == len(sources)
    empty, plain = (
        translator.translate("<table></table>", options, markup="html", terminology=one)
        for one in (glossary, None)
    )
    assert (empty.hypotheses[0].terms, plain.hypotheses[0].terms) == ((), None)


def test_a_line_that_normalization_makes_longer_is_cut(looping_bundle: Path) -> None:
    """The number of bytes does not tell how many tokens a line has."""
    translator, options = Translator(looping_bundle, threads=1), SearchOptions(max_length=12)
    longest = translator.manifest.max_segment_length
    line = "a cat " + "\u00bd " * (longest // 4)
    assert len(line.encode()) < longest < len(translator.tokenizer.encode_source(line))
    found = translator.translate(line, options, terminology=GLOSSARY)
    assert len(found.hypotheses[0].segments) > 1
    assert [term.source for term in found.hypotheses[0].terms or ()] == ["cat"]
    assert "Katze" in found.text


def test_what_does_not_go_together(translator: Translator) -> None:
    for arguments in ({"alignments": True}, {"markup": "html"}):
        with pytest.raises(OptionError, match="neither alignments"):
            translator.translate(LINES, terminology=GLOSSARY, **arguments)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match=r"write Glossary\.read"):
        translator.translate(LINES, terminology="glossary.tsv")  # type: ignore[call-overload]
