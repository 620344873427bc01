"""Constraints (rule 15): their progress, the search, and what is refused."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import pytest
from sentencepiece import sentencepiece_model_pb2
from support.translations import Translate, random_sources

from translate_trt.runtime import (
    InputError,
    OptionError,
    SearchOptions,
    Translator,
)
from translate_trt.runtime.bundle.manifest import hash_file, read_manifest, write_manifest
from translate_trt.runtime.results import Hypothesis
from translate_trt.train.search import _constraints_in

pytestmark = pytest.mark.slow

SEARCH = SearchOptions(beam_size=4, max_length=30, num_hypotheses=4)


#: Constraints, tokens of a hypothesis, its progress, and the constraints that it lacks.
READINGS = [
    ([[5, 6]], [], 0, [[5, 6]]),
    ([[5, 6]], [9, 5], 1, [[5, 6]]),
    ([[5, 6]], [5, 9], 0, [[5, 6]]),
    ([[5, 6]], [5, 5, 6, 9], 2, []),
    ([[5, 6], [5, 6]], [5, 6, 9], 2, [[5, 6]]),
    ([[5, 6], [5, 6]], [5, 6, 5, 6], 4, []),
    # A phrase that ends where another one begins: occurrences do not overlap.
    ([[5, 6], [6, 7]], [5, 6, 7], 2, [[6, 7]]),
    # The beginning of a longer phrase: the shorter one is met once the longer one is not.
    ([[5], [5, 6]], [5], 1, [[5], [5, 6]]),
    ([[5], [5, 6]], [5, 9], 1, [[5, 6]]),
    ([[5], [5, 6]], [5, 6], 2, [[5]]),
    ([[5], [5, 6]], [5, 6, 5], 3, []),
    # What has been read is read again from the next token on.
    ([[5, 5, 6]], [5, 5, 5, 6], 3, []),
    ([[5, 6, 5, 7]], [5, 6, 5, 6, 5], 3, [[5, 6, 5, 7]]),
]


@pytest.mark.parametrize(("constraints", "tokens", "progress", "lacking"), READINGS)
def test_progress_of_a_hypothesis(
    constraints: list[list[int]], tokens: list[int], progress: int, lacking: list[list[int]]
) -> None:
    """In the search of PyTorch, with which the library is compared below."""
    found, left = _constraints_in(tuple(tokens), [tuple(one) for one in constraints])
    assert (found, sorted(map(list, left))) == (progress, lacking)


def test_hypotheses_that_read_on(as_pytorch: Translate) -> None:
    constraints, prefixes = ([one[index] for one in READINGS] for index in (0, 1))
    as_pytorch([[7, 8]] * len(READINGS), SEARCH, prefixes, constraints)


def random_constraints(count: int, seed: int) -> list[list[list[int]]]:
    """Phrases of 1 to 3 tokens; some sentences have none, and some tokens recur."""
    rng = random.Random(seed)
    return [
        [[rng.randrange(4, 60) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(0, 3))]
        for _ in range(count)
    ]


def has(found: Hypothesis, constraints: list[list[int]]) -> bool:
    return not _constraints_in(found.tokens, [tuple(one) for one in constraints])[1]


CASES = {
    "plain": {},
    "two beams": {"beam_size": 2, "num_hypotheses": 2},
    "many beams": {"beam_size": 8},
    "early": {"early_stopping": True, "length_penalty_form": "length", "length_penalty": 1.0},
    "marked": {"no_repeat_ngram_size": 1, "repetition_penalty": 1.5, "min_length": 12},
    "guarded": {"loop_guard": True, "max_length": 60},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_the_reference(as_pytorch: Translate, case: str) -> None:
    options = dataclasses.replace(SEARCH, **CASES[case])  # type: ignore[arg-type]
    sources = random_sources(10, seed=2, longest=12)
    constraints = random_constraints(len(sources), seed=3)
    found = as_pytorch(sources, options, None, constraints)
    plain = as_pytorch(sources, options)
    for line, own, without in zip(found, constraints, plain, strict=True):
        assert has(line[0], own)
        assert own or line[0].tokens == without[0].tokens


def test_a_shortlist_need_not_have_the_tokens(shortlist_bundle: Path) -> None:
    translator = Translator(shortlist_bundle, shortlist=True, threads=1)
    sources = random_sources(6, seed=6, longest=9)
    constraints = [[[token, token + 1]] for token in range(40, 52, 2)]
    for line, own in zip(
        translator.translate_ids(sources, SEARCH, constraints=constraints), constraints, strict=True
    ):
        assert has(line[0], own)


def test_a_forced_prefix_counts(as_pytorch: Translate) -> None:
    sources, constraints = random_sources(3, seed=3, longest=8), [[[6, 7]], [[7, 8], [5]], [[40]]]
    found = as_pytorch(sources, SEARCH, [[5, 6, 7]] * 3, constraints)
    assert all(has(line[0], own) for line, own in zip(found, constraints, strict=True))


def test_constraints_do_not_change_the_order_of_alternatives(looping_bundle: Path) -> None:
    options = SearchOptions(beam_size=4, max_length=30, alternatives=3)
    sources = random_sources(4, seed=5, longest=8)
    translator = Translator(looping_bundle, threads=1)
    plain = translator.translate_ids(sources, options)
    own = [[[line[2].tokens[0]]] for line in plain]  # closed by the third alternative's first token
    found = translator.translate_ids(sources, options, constraints=own)
    for one, expected, phrases in zip(found, plain, own, strict=True):
        assert all(has(alternative, phrases) for alternative in one)
        assert [alternative.tokens[0] for alternative in one] == [
            alternative.tokens[0] for alternative in expected
        ]


def test_phrases_of_text(looping_bundle: Path) -> None:
    translator = Translator(looping_bundle, threads=1)
    options = SearchOptions(beam_size=4)
    lines = ["a dog runs", "", "two men talk"]
    phrases = [["Hund", "ein Mann"], [], []]
    found = translator.translate(lines, options, constraints=phrases)
    for phrase in phrases[0]:
        assert phrase in found[0].text
    assert found[1:] == translator.translate(lines, options)[1:]
    assert found[0] == translator.translate(lines[0], options, constraints=phrases[0])


@pytest.mark.parametrize(
    ("options", "constraints", "error"),
    [
        ({"beam_size": 1}, [[5]], OptionError),
        ({}, [[]], InputError),
        ({}, [[5, 9999]], InputError),
        ({}, [[3]], InputError),
        ({"max_length": 4}, [[5, 6], [7, 8]], OptionError),
    ],
)
def test_constraints_that_no_translation_can_have(
    looping_bundle: Path,
    options: dict[str, int],
    constraints: list[list[int]],
    error: type[Exception],
) -> None:
    translator = Translator(looping_bundle, threads=1)
    search = dataclasses.replace(SearchOptions(), **options)  # type: ignore[arg-type]
    with pytest.raises(error, match=r"constraint.* source 0|source 0.* constraint"):
        translator.translate_ids([[7, 8]], search, constraints=[constraints])


def test_what_lines_cannot_have(looping_bundle: Path) -> None:
    translator = Translator(looping_bundle, threads=1)
    with pytest.raises(InputError, match="2 lists of constraints"):
        translator.translate(["a"], constraints=[["b"], ["c"]])
    with pytest.raises(InputError, match="2 lists of constraints"):
        translator.translate_ids([[5]], constraints=[[[6]], [[7]]])
    with pytest.raises(InputError, match=r"constraint.*line 1"):
        translator.translate("a", constraints=[" "])
    with pytest.raises(InputError, match=r"line 1.*'b'"):
        translator.translate(["a"], constraints=["b"])
    with pytest.raises(OptionError, match="constraints"):
        translator.translate("a", constraints=["b"], markup="text")
    long = "a dog runs " * 400
    with pytest.raises(InputError, match="single sentence"):
        translator.translate(long, constraints=["Hund"])


def test_phrases_that_the_vocabulary_cannot_spell(looping_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(looping_bundle, tmp_path / "bundle"))
    model = sentencepiece_model_pb2.ModelProto.FromString((bundle / "shared.spm").read_bytes())
    model.trainer_spec.byte_fallback = False
    for piece in model.pieces:
        if piece.type == piece.BYTE:
            piece.type = piece.NORMAL
    (bundle / "shared.spm").write_bytes(model.SerializeToString())
    tokenizer = dict.fromkeys(("source", "target"), hash_file(bundle, "shared.spm"))
    write_manifest(bundle, dataclasses.replace(read_manifest(bundle), tokenizer=tokenizer))
    with pytest.raises(InputError, match=r"a\.txt.*\u732b"):
        Translator(bundle, threads=1).translate(["a"], constraints=[["\u732b"]], names=["a.txt"])
