"""Scores of given translations, compared with the model in PyTorch on whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.models import log_probs
from support.prompts import TARGET, with_prompt
from support.translations import random_sources

from translate_trt.runtime import Hypothesis, SearchOptions, TranslationService, Translator
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END

LINES = ["the cat runs.", "a dog eats green", "Haus Hund läuft."]
TRANSLATIONS = ["Hund the cat.", "a", ""]


def expected(checkpoint: Checkpoint, source: Sequence[int], target: Sequence[int]) -> list[float]:
    """Log-probabilities of the target's tokens and the end symbol."""
    found = log_probs(checkpoint, source, target)
    return [float(row[token]) for row, token in zip(found, [*target, END], strict=True)]


def check(
    checkpoint: Checkpoint,
    found: Sequence[Hypothesis],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    alpha: float = 0.6,
) -> None:
    for one, source, target in zip(found, sources, targets, strict=True):
        wanted = expected(checkpoint, source, target)
        assert one.tokens == tuple(target)
        assert not one.truncated
        np.testing.assert_allclose(one.token_log_probs, wanted, atol=1e-4)
        assert one.score == pytest.approx(sum(wanted) / ((5 + len(wanted)) / 6) ** alpha, abs=1e-4)


def test_tokens_have_the_log_probabilities_of_the_model(
    translator: Translator, checkpoint: Checkpoint
) -> None:
    sources, targets = random_sources(12, seed=1), random_sources(12, seed=2)[::-1]
    targets[3] = []  # the end symbol alone
    check(checkpoint, translator.score_ids(sources, targets), sources, targets)


def test_options_of_the_search_have_no_effect(
    translator: Translator, checkpoint: Checkpoint
) -> None:
    sources, targets = random_sources(5, seed=3), random_sources(5, seed=4)
    options = SearchOptions(
        beam_size=3, num_hypotheses=2, max_length=2, min_length=2, early_stopping=True,
        length_penalty=0.0,
    )  # fmt: skip
    check(checkpoint, translator.score_ids(sources, targets, options), sources, targets, 0.0)


def test_text(translator: Translator, checkpoint: Checkpoint) -> None:
    found = translator.score(LINES, TRANSLATIONS)
    tokenizer = translator.tokenizer
    segments = [segment for one in found for segment in one.segments]
    check(
        checkpoint, segments, [tokenizer.encode_source(line) for line in LINES],
        [tokenizer.encode_target(text) for text in TRANSLATIONS],
    )  # fmt: skip
    assert [one.text for one in found] == TRANSLATIONS
    assert [one.score for one in found] == [segment.score for segment in segments]
    alone = translator.score(LINES[0], TRANSLATIONS[0])
    assert alone.segments[0].tokens == segments[0].tokens
    assert alone.score == pytest.approx(found[0].score, abs=1e-4)


def test_blank_lines(translator: Translator) -> None:
    assert translator.score([], []) == []
    (blank,) = translator.score(["  "], [" "])
    assert (blank.text, blank.score, blank.token_log_probs) == ("", 0.0, ())
    with pytest.raises(InputError, match="translation"):
        translator.score(["the cat", " "], ["a", "b"], names=["a", "b"])
    assert translator.score_ids([[]], [[]])[0].tokens == ()
    with pytest.raises(InputError, match=r"source 0.*translation"):
        translator.score_ids([[]], [[5]])


def test_attention_of_a_given_translation(translator: Translator) -> None:
    (one,) = translator.score_ids([[7, 8, 9]], [[5, 6]], SearchOptions(return_attention=True))
    assert one.attention is not None
    assert one.attention.shape == (3, 4)
    np.testing.assert_allclose(one.attention.sum(1), 1, atol=1e-5)


def test_a_prompt_is_forced_and_not_scored(
    compiled_bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    path = with_prompt(compiled_bundle, TARGET, tmp_path / "bundle")
    options = SearchOptions(source_language="en", target_language="de", length_penalty=0.0)
    (one,) = Translator(path, "onnx-fp32", threads=1).score_ids([[7, 8]], [[9, 10]], options)
    assert one.tokens == (6, 31, 9, 10)
    wanted = expected(checkpoint, [5, 21, 7, 8], [6, 31, 9, 10])
    np.testing.assert_allclose(one.token_log_probs, [0, 0, *wanted[2:]], atol=1e-4)
    assert one.score == pytest.approx(sum(wanted[2:]), abs=1e-4)


def test_what_cannot_be_scored(translator: Translator) -> None:
    limits = translator.manifest.limits
    longest = limits.max_target_length - 1
    assert len(translator.score_ids([[7]], [[5] * longest])[0].tokens) == longest
    with pytest.raises(
        InputError, match=f"translation of source 0 has {longest + 2} tokens with the end symbol; "
    ):
        translator.score_ids([[7]], [[5] * (longest + 1)])
    long = " ".join(["the dog runs over the big river."] * 60)
    with pytest.raises(InputError, match=r"line 2.*tokens"):
        translator.score(["the cat", long], ["a", "b"])
    with pytest.raises(InputError, match="1 translations"):
        translator.score(LINES[:2], ["a"])
    with pytest.raises(InputError, match="0 translations"):
        translator.score_ids([[7]], [])
    with pytest.raises(InputError, match="translation of source 0 contains the end symbol"):
        translator.score_ids([[7]], [[5, END]])
    with pytest.raises(InputError, match="translation of source 0 has token 99999, outside"):
        translator.score_ids([[7]], [[99999]])
    with pytest.raises(InputError, match="translations"):
        translator.score("the cat", ["a"])  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="length_penalty"):
        translator.score("the cat", "a", SearchOptions(length_penalty=-1.0))


def test_a_service_scores(translator: Translator) -> None:
    tokens = translator.tokenizer.encode_target(TRANSLATIONS[0])
    source = translator.tokenizer.encode_source(LINES[0])
    wanted = translator.score(LINES[0], TRANSLATIONS[0])
    with TranslationService(translator) as service:
        for line, given in ((LINES[0], TRANSLATIONS[0]), (LINES[0], tokens), (source, tokens)):
            (one,) = service.submit(line, None, given, score=True).result(60).hypotheses
            assert one.segments[0].tokens == wanted.segments[0].tokens
            assert one.score == pytest.approx(wanted.score, abs=1e-4)
            assert one.text == TRANSLATIONS[0]
        with pytest.raises(InputError):
            service.submit("", None, "a", score=True)
