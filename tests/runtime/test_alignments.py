"""Alignments of a bundle's translations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.prompts import SOURCE, TARGET, with_prompt

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.results import TextHypothesis
from translate_trt.runtime.text.alignment import Alignment

LINES = ["the cat sleeps.", "", "  a big  dog\truns under the tree ", "日本 ½"]


def of(hypothesis: TextHypothesis) -> Alignment:
    assert hypothesis.alignment is not None
    return hypothesis.alignment


def test_weights_are_the_attention_without_the_end_symbols(translator: Translator) -> None:
    options = SearchOptions(num_hypotheses=3, return_attention=True, min_length=9)
    found = translator.translate(LINES, options, alignments=True)
    plain = translator.translate(LINES, options)
    for line, one, other in zip(LINES, found, plain, strict=True):
        for hypothesis, expected in zip(one.hypotheses, other.hypotheses, strict=True):
            assert hypothesis.text == expected.text
            alignment = of(hypothesis)
            assert (alignment.source, alignment.target) == (line, hypothesis.text)
            for segment, part in zip(alignment.segments, hypothesis.segments, strict=True):
                assert part.attention is not None
                tokens = translator.tokenizer.encode_source(line)
                assert segment.weights.shape == (len(part.tokens), len(tokens))
                np.testing.assert_array_equal(
                    segment.weights, part.attention[: len(part.tokens), :-1]
                )
            words = {target for _, target in alignment.pairs()}
            assert words == set(range(len(hypothesis.text.split())))


TEXTS = ["the cat sleeps.", "  Hi ﬁne  日本 😀x  ", "a\tb\x0bc", "½ e\u0301", "\ud800 x"]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_tokens_cover_the_words_of_both_texts(translator: Translator, text: str) -> None:
    found = translator.translate(text, SearchOptions(min_length=9), alignments=True)
    check_segments(of(found.hypotheses[0]), found.text, text)
    (segment,) = of(found.hypotheses[0]).segments
    assert len(segment.source) == len(translator.tokenizer.encode_source(text))


def test_attention_is_returned_only_on_request(translator: Translator) -> None:
    found = [one.hypotheses[0] for one in translator.translate(LINES, alignments=True)]
    assert all(of(one).segments for one, line in zip(found, LINES, strict=True) if line)
    assert all(segment.attention is None for one in found for segment in one.segments)
    assert translator.translate("the cat").hypotheses[0].alignment is None


def test_segments_and_sentences_keep_the_words_of_the_line(translator: Translator) -> None:
    pytest.importorskip("sentencex")
    pytest.importorskip("langcodes")
    longest = translator.manifest.limits.max_source_length
    for line in (" ".join(["the cat"] * longest), "  The cat runs.  A dog sleeps! "):
        found = translator.translate(line, alignments=True, split_sentences=True)
        assert found.segment_count > 1
        check_segments(of(found.hypotheses[0]), found.text, line)
        (again,) = translator.translate_iter([line], alignments=True, split_sentences=True)
        assert of(again.hypotheses[0]).pairs() == of(found.hypotheses[0]).pairs()


def check_segments(alignment: Alignment, text: str, line: str) -> None:
    """Check that the tokens of the segments follow one another in both texts."""
    assert (alignment.source, alignment.target) == (line, text)
    for side, whole in (("source", line), ("target", text)):
        spans = [span for segment in alignment.segments for span in getattr(segment, side)]
        assert spans == sorted(spans)
        covered = {n for begin, end in spans for n in range(begin, end)}
        assert {n for n, character in enumerate(whole) if character.isalnum()} <= covered


def test_words_of_a_document_are_those_of_its_lines(translator: Translator) -> None:
    pytest.importorskip("sentencex")
    pytest.importorskip("langcodes")
    text = "  - a dog sleeps.\r\n\n the cat runs. the dog eats.\n"
    found = translator.translate_document(text, split_sentences="en", alignments=True)
    aligned = of(found.hypotheses[0])
    check_segments(aligned, found.text, text)
    for segment, sentence in zip(aligned.segments, ("a dog", "the cat", "the dog"), strict=True):
        assert text[segment.source[0][0] :].startswith(sentence)
    with pytest.raises(OptionError, match="unwrap"):
        translator.translate_document(text, unwrap=True, alignments=True)


@pytest.mark.parametrize(
    ("prompt", "line", "options"),
    [
        (SOURCE, ">>deu<< the cat", SearchOptions(return_attention=True)),
        (
            TARGET,
            "the cat",
            SearchOptions(source_language="en", target_language="de", return_attention=True),
        ),
    ],
    ids=["source", "target"],
)
def test_prompts_are_no_part_of_alignments(
    compiled_bundle: Path, tmp_path: Path, prompt: Prompt, line: str, options: SearchOptions
) -> None:
    bundle = with_prompt(compiled_bundle, prompt, tmp_path / "bundle")
    translator = Translator(bundle, threads=1)
    found = translator.translate(line, options, alignments=True).hypotheses[0]
    (segment,), (part,) = of(found).segments, found.segments
    begin = line.index("the")
    assert segment.source[0][0] == begin
    assert segment.source[-1][1] == len(line)
    assert part.attention is not None
    # Before the text: the token of deu; a token before all texts and that of en.
    before = 1 if prompt is SOURCE else 2
    assert part.attention.shape[1] == before + len(segment.source) + 1
    np.testing.assert_array_equal(
        segment.weights,
        part.attention[len(part.tokens) - len(segment.target) : len(part.tokens), before:-1],
    )


def test_given_translations_are_aligned(translator: Translator) -> None:
    scored = translator.score(["the cat", ""], ["die Katze", ""], alignments=True)
    assert of(scored[0]).target == "die Katze"
    assert {target for _, target in of(scored[0]).pairs()} == {0, 1}
    assert of(scored[1]).pairs() == []
    assert of(translator.score("the cat", "die Katze", alignments=True)).pairs() == (
        of(scored[0]).pairs()
    )
