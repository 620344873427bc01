"""Marked tokens (rule 13): penalties and suppressed tokens."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
import torch
from support.translations import Translate, random_sources

from translate_trt.runtime import OptionError, SearchOptions, Translator
from translate_trt.train.config import END, UNKNOWN
from translate_trt.train.search import _Partial, _Sentence

SEARCH = SearchOptions(num_hypotheses=4)
SOURCES = random_sources(8, seed=2, longest=12)

BANNED = inf


@pytest.mark.parametrize(
    ("options", "tokens", "marks"),
    [
        ({}, [5, 6], {}),
        ({"repetition_penalty": 1.5}, [], {}),
        ({"repetition_penalty": 1.5}, [5, 6, 5], {5: 1.5, 6: 1.5}),
        ({"no_repeat_ngram_size": 1}, [5, 6], {5: BANNED, 6: BANNED}),
        ({"no_repeat_ngram_size": 2}, [5, 6, 5], {6: BANNED}),
        ({"no_repeat_ngram_size": 2}, [5, 5, 5], {5: BANNED}),
        ({"no_repeat_ngram_size": 3}, [5, 6, 7, 5], {}),
        ({"no_repeat_ngram_size": 3}, [5, 6, 7, 5, 6], {7: BANNED}),
        ({"no_repeat_ngram_size": 9}, [5, 6, 7], {}),
        ({"suppress_sequences": "7"}, [], {7: BANNED}),
        ({"suppress_sequences": "5 6 7"}, [6], {}),
        ({"suppress_sequences": "5 6 7, 6 9"}, [5, 6], {7: BANNED, 9: BANNED}),
        ({"disable_unk": True}, [5], {UNKNOWN: BANNED}),
        ({"repetition_penalty": 2, "no_repeat_ngram_size": 1}, [5], {5: BANNED}),
    ],
)
def test_factors_of_a_hypothesis(
    options: dict[str, object], tokens: list[int], marks: dict[int, float]
) -> None:
    """In the search of PyTorch, with which the library is compared below."""
    search = SearchOptions(**options)  # type: ignore[arg-type]
    sentence = _Sentence(search, 50, (), [7], True, live=[_Partial(0.0, tuple(tokens))])
    (factors,) = -sentence._marked(torch.full((1, 20), -1.0))
    assert {i: factor for i, factor in enumerate(factors.tolist()) if factor != 1} == marks
    assert search.marks_tokens == bool(options)


CASES = {
    "penalty": {"repetition_penalty": 1.3},
    "strong penalty": {"repetition_penalty": 5.0, "loop_guard": True},
    "no n-gram": {"no_repeat_ngram_size": 2},
    "no token twice": {"no_repeat_ngram_size": 1},
    "no unknown": {"disable_unk": True},
    "suppressed": {"suppress_sequences": "279, 107 107 107"},
    "all": {
        "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "disable_unk": True,
        "suppress_sequences": "9", "min_length": 4, "early_stopping": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_the_same_as_the_reference(as_pytorch: Translate, case: str, beam_size: int) -> None:
    plain = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size, max_length=30)
    found = as_pytorch(SOURCES, dataclasses.replace(plain, **CASES[case]))  # type: ignore[arg-type]
    changed = [line[0].tokens for line in found] != [
        line[0].tokens for line in as_pytorch(SOURCES, plain)
    ]
    assert changed == (case != "no unknown")


def test_a_forced_prefix_counts_but_is_not_changed(as_pytorch: Translate) -> None:
    options = dataclasses.replace(SEARCH, no_repeat_ngram_size=2, max_length=20)
    for line in as_pytorch(SOURCES[:3], options, [[5, 6, 5, 6]] * 3):
        assert line[0].tokens[:4] == (5, 6, 5, 6)
        assert (6, 5) not in list(pairwise(line[0].tokens[3:]))


def test_options_that_a_bundle_refuses(looping_bundle: Path) -> None:
    translator = Translator(looping_bundle, threads=1)
    size = translator.manifest.model.vocabulary_size
    for text in (str(size), f"7 {END}"):
        with pytest.raises(OptionError, match="suppress_sequences"):
            translator.translate_ids([[7]], SearchOptions(suppress_sequences=text))
