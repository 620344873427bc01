"""Confidence of words, and its calibration."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import WORDS
from support.prompts import TARGET, with_prompt

from translate_trt.runtime import (
    Hypothesis,
    SearchOptions,
    TextHypothesis,
    Translation,
    Translator,
    Word,
)
from translate_trt.runtime.cli import main
from translate_trt.runtime.confidence import (
    Calibration,
    calibration_error,
    learn_calibration,
    occurrences,
)
from translate_trt.runtime.errors import BundleError, InputError

LINES = ["the cat runs.", "a dog eats green", "", "Haus Hund läuft."]


def test_words_are_those_of_the_text(translator: Translator) -> None:
    for translation in translator.translate([*LINES, " ".join(LINES * 40)]):
        best = translation.hypotheses[0]
        words = translator.words(best)
        assert " ".join(one.text for one in words).split() == best.text.split()
        for one in words:
            assert one.confidence == pytest.approx(math.exp(one.log_prob))


def test_tokens_of_a_word_are_multiplied(translator: Translator) -> None:
    pieces = translator.tokenizer.encode_target("Hund läuft")
    names = translator.tokenizer.target_pieces(pieces)
    second = next(place for place, name in enumerate(names) if place and name[0] == "\u2581")
    probs = [0.5 ** (place + 1) for place in range(len(pieces) + 1)]
    segment = Hypothesis(tuple(pieces), -1.0, tuple(map(math.log, probs)))
    words = translator.words(TextHypothesis("Hund läuft", -1.0, (segment,)))
    assert [one.text for one in words] == ["Hund", "läuft"]
    assert words[0].confidence == pytest.approx(math.prod(probs[:second]))
    assert words[1].confidence == pytest.approx(math.prod(probs[second:-1]))  # without the end


def test_prompts_are_no_words(compiled_bundle: Path, tmp_path: Path) -> None:
    path = with_prompt(compiled_bundle, TARGET, tmp_path / "bundle")
    options = SearchOptions(source_language="en", target_language="de")
    with_languages = Translator(path, "onnx-fp32", threads=1)
    for one in with_languages.translate(LINES[:2], options):
        best = one.hypotheses[0]
        texts = [word.text for word in with_languages.words(best)]
        assert " ".join(texts).split() == best.text.split()


def test_words_of_the_reference() -> None:
    assert occurrences(["a", "b", "c"], "a x c c") == [True, False, True]
    assert occurrences(["c", "c", "c"], "c b") == [True, False, False]
    assert occurrences(["b", "a"], "a b").count(True) == 1
    assert occurrences([], "a") == []
    assert occurrences(["a"], "") == [False]


def test_calibration_error() -> None:
    confidences = np.array([0.05, 0.95, 0.95, 1.0])
    right = np.array([False, True, False, True])
    assert calibration_error(confidences, right) == pytest.approx((0.05 + abs(2.9 - 2)) / 4)
    assert calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0


def test_the_fit_is_the_one_of_maximum_likelihood() -> None:
    """Labels drawn from a known curve: its parameters, zero gradients, and a small error."""
    rng = random.Random(1)
    lines = []
    for _ in range(4000):
        log_probs = [-rng.expovariate(1.0) for _ in range(3)]
        right = [rng.random() < 1 / (1 + math.exp(-(2.0 * x + 1.5))) for x in log_probs]
        lines.append(([Word("", x, math.exp(x)) for x in log_probs], right))
    found = learn_calibration(lines)
    assert found.slope == pytest.approx(2.0, abs=0.15)
    assert found.intercept == pytest.approx(1.5, abs=0.15)
    assert found.words == 6000
    assert found.error_after < 0.02 < found.error_before
    learned = [
        (word.log_prob, mark)
        for words, marks in lines[::2]
        for word, mark in zip(words, marks, strict=True)
    ]
    differences = [mark - confidence(found, x) for x, mark in learned]
    # Platt's targets shift the sums by less than one word.
    assert abs(sum(differences)) < 1
    assert abs(sum(d * x for d, (x, _) in zip(differences, learned, strict=True))) < 3


def test_too_few_words_and_a_wrong_reference() -> None:
    words = [Word("a", -1.0, 0.4), Word("b", -2.0, 0.1)]
    with pytest.raises(InputError, match="20 words"):
        learn_calibration([(words, [True, False])] * 40)
    with pytest.raises(InputError, match="reference"):
        learn_calibration([(words, [False, True])] * 200)
    with pytest.raises(InputError, match="has 0 words"):
        learn_calibration([])


def confidence(calibration: Calibration, log_prob: float) -> float:
    """The calibrated confidence by its definition."""
    return 1 / (1 + math.exp(-(calibration.slope * log_prob + calibration.intercept)))


class Guessing:
    """A translator that repeats its lines, with random probabilities."""

    def __init__(self, translator: Translator) -> None:
        self.tokenizer, self.target = translator.tokenizer, translator.target
        self.default_options, self.words = translator.default_options, translator.words
        self._rng = random.Random(4)

    def translate_iter(
        self, lines: Iterable[str], options: SearchOptions, chunk_lines: int
    ) -> Iterator[Translation]:
        for line in lines:
            tokens = self.tokenizer.encode_target(line)
            log_probs = [-self._rng.expovariate(2.0) for _ in [*tokens, None]]
            segment = Hypothesis(tuple(tokens), sum(log_probs), tuple(log_probs))
            yield Translation((TextHypothesis(line, segment.score, (segment,)),))


def test_a_bundle_is_calibrated(
    translator: Translator, compiled_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(compiled_bundle, bundle)
    rng = random.Random(5)
    lines = [" ".join(rng.choices(WORDS.split(), k=8)) for _ in range(200)]
    guessed = Guessing(translator).translate_iter(lines, SearchOptions(), 1)
    # Words are right more often than their probabilities say.
    references = [
        " ".join(
            word.text if rng.random() < word.confidence**0.3 else "?"
            for word in translator.words(one.hypotheses[0])
        )
        for one in guessed
    ]
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference.write_text("\n".join(references) + "\n", encoding="utf-8")
    monkeypatch.setattr(
        "translate_trt.runtime.cli.calibrate.load_translator", lambda *_, **__: Guessing(translator)
    )
    done = CliRunner().invoke(main, [
        "calibrate", str(bundle), "--source", str(source), "--reference", str(reference),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    calibrated = Translator(bundle, "onnx-fp32", threads=1)
    found = calibrated.calibration
    assert found is not None
    assert found.error_after < 0.05 < found.error_before
    assert done.stdout == (
        f"onnx-fp32: 1600 words of 200 lines, {marked(lines, references):.1%} of them in the "
        f"reference\nexpected calibration error on the words held out: {found.error_before:.4f} "
        f"before, {found.error_after:.4f} after\n"
    )
    assert Translator(bundle, "onnx-int8", threads=1).calibration is None
    best = calibrated.translate(LINES[0]).hypotheses[0]
    for word, raw in zip(calibrated.words(best), translator.words(best), strict=True):
        assert word.confidence == pytest.approx(confidence(found, raw.log_prob))
    shown = CliRunner().invoke(main, ["info", str(bundle)]).stdout
    assert f"slope {found.slope:.4g}" in shown
    assert "not calibrated" in shown  # the other target


def marked(lines: list[str], references: list[str]) -> float:
    """Share of the words of the lines that occur in the references."""
    marks = [occurrences(a.split(), b) for a, b in zip(lines, references, strict=True)]
    return sum(map(sum, marks)) / sum(map(len, marks))


@pytest.mark.parametrize(
    "change",
    [{"slope": 0.0}, {"slope": "1"}, {"intercept": None}, {"words": True}, {"slope": 1e999}],
)
def test_a_damaged_calibration(
    change: dict[str, object], compiled_bundle: Path, tmp_path: Path
) -> None:
    value = Calibration(1.0, 0.0, 100, 0.1, 0.0).to_json()
    assert Calibration.from_json("x", value) == Calibration(1.0, 0.0, 100, 0.1, 0.0)
    with pytest.raises(BundleError, match="calibration"):
        Calibration.from_json("x", value | change)
