"""The graphs through ONNX Runtime against the PyTorch reference, for every option."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from support.models import lively_model, save_model
from support.translations import assert_same, random_sources

from translate_trt.export.compile import BuildOptions, compile_bundle
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Transformer:
    return checkpoint.load_model()


@pytest.fixture(scope="module")
def translator(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, "onnx-fp32", threads=1)


@pytest.fixture(scope="module")
def int8(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, "onnx-int8", threads=1)


OPTIONS = [
    SearchOptions(),
    SearchOptions(beam_size=1),
    SearchOptions(beam_size=2, num_hypotheses=2),
    SearchOptions(beam_size=8, num_hypotheses=8, length_penalty=2.0),
    SearchOptions(length_penalty=0.0),
    SearchOptions(length_penalty=1.0, length_penalty_form="length", num_hypotheses=4),
    SearchOptions(max_length=4, num_hypotheses=4),
    SearchOptions(max_length=1, num_hypotheses=3),
    SearchOptions(min_length=12, max_length=30),
    SearchOptions(num_hypotheses=4, return_attention=True),
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_equal_to_the_reference(
    options: SearchOptions, translator: Translator, model: Transformer
) -> None:
    sources = random_sources(24)
    found = translator.translate_ids(sources, options)
    assert_same(found, beam_search(model, sources, options))


@pytest.mark.parametrize(
    "changes", [{"norm": "pre", "key_size": 5}, {"positions": "learned", "max_positions": 98}]
)
def test_every_kind_of_model_is_equal_to_its_reference(
    changes: dict[str, Any], tokenizer_model: Path, tmp_path: Path
) -> None:
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    model = lively_model(size, **changes)
    checkpoint = open_checkpoint(save_model(model, tmp_path / "checkpoint", tokenizer_model))
    targets = ("onnx-fp32", "onnx-int8")
    compile_bundle(checkpoint, tmp_path / "bundle", BuildOptions(targets, attention=True))
    sources = random_sources(24)
    options = SearchOptions(num_hypotheses=4, return_attention=True)
    expected = beam_search(checkpoint.load_model(), sources, options)
    translator = Translator(tmp_path / "bundle", "onnx-fp32", threads=1)
    assert_same(translator.translate_ids(sources, options), expected)
    int8 = Translator(tmp_path / "bundle", "onnx-int8", threads=1)
    pairs = zip(int8.translate_ids(sources, options), expected, strict=True)
    same = [a[0].tokens == b[0].tokens for a, b in pairs]
    assert sum(same) >= 0.5 * len(same)


def test_the_model_of_these_tests_finishes_and_is_cut_off(translator: Translator) -> None:
    # Otherwise the tests above would say little of pools, penalties and stops.
    sources = random_sources(24)
    found = translator.translate_ids(sources, SearchOptions(num_hypotheses=4, max_length=9))
    truncated = [h.truncated for hypotheses in found for h in hypotheses]
    assert any(truncated)
    assert not all(truncated)
    assert len({len(hypotheses[0].tokens) for hypotheses in found}) > 3


def test_prefixes_of_different_lengths_in_one_batch(
    translator: Translator, model: Transformer
) -> None:
    rng = random.Random(3)
    sources = random_sources(20, seed=1)
    prefixes = [[rng.randrange(4, 40) for _ in range(index % 5)] for index in range(20)]
    for beams in (1, 4):
        options = SearchOptions(beam_size=beams, num_hypotheses=beams, min_length=2)
        found = translator.translate_ids(sources, options, prefixes)
        assert_same(found, beam_search(model, sources, options, prefixes))
        for hypotheses, prefix in zip(found, prefixes, strict=True):
            assert all(list(h.tokens[: len(prefix)]) == prefix for h in hypotheses)


@pytest.mark.parametrize("name", ["translator", "int8"])
def test_neighbours_padding_and_order_do_not_matter(
    name: str, request: pytest.FixtureRequest
) -> None:
    chosen: Translator = request.getfixturevalue(name)
    options = SearchOptions(num_hypotheses=2)
    sources = random_sources(32, seed=2)
    together = chosen.translate_ids(sources, options)
    alone = [chosen.translate_ids([source], options)[0] for source in sources]
    backwards = chosen.translate_ids(sources[::-1], options)[::-1]
    # The longest source pads all others when they share one batch.
    for other in (alone, backwards):
        for ours, theirs in zip(together, other, strict=True):
            assert [h.tokens for h in ours] == [h.tokens for h in theirs]
            for one, two in zip(ours, theirs, strict=True):
                assert one.score == pytest.approx(two.score, abs=1e-4)


def test_any_beam_from_one_bundle(translator: Translator, model: Transformer) -> None:
    sources = random_sources(4, seed=5)
    for beams in (3, 5, 16):
        options = SearchOptions(beam_size=beams, num_hypotheses=beams)
        assert_same(
            translator.translate_ids(sources, options), beam_search(model, sources, options)
        )


def test_int8_stays_close(translator: Translator, int8: Translator) -> None:
    sources = random_sources(64, seed=6, longest=12)
    pairs = list(zip(translator.translate_ids(sources), int8.translate_ids(sources), strict=True))
    same = [(ours[0], theirs[0]) for ours, theirs in pairs if ours[0].tokens == theirs[0].tokens]
    assert len(same) >= 0.6 * len(pairs)
    assert max(abs(ours.score - theirs.score) for ours, theirs in same) < 0.5
    assert any(ours.score != theirs.score for ours, theirs in same)  # it is another graph


def test_every_option_is_covered_here() -> None:
    defaults = SearchOptions()
    changed = {
        field.name
        for options in OPTIONS
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != getattr(defaults, field.name)
    }
    assert changed == {field.name for field in dataclasses.fields(SearchOptions)}


@pytest.mark.parametrize("form", ["gnmt", "length"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [1, 2, 4, 8])
def test_every_penalty_with_every_beam(
    beams: int, alpha: float, form: str, translator: Translator, model: Transformer
) -> None:
    options = SearchOptions(
        beam_size=beams,
        num_hypotheses=beams,
        length_penalty=alpha,
        length_penalty_form=form,
        max_length=10,
    )
    sources = random_sources(8, seed=beams, longest=12)
    found = translator.translate_ids(sources, options)
    assert_same(found, beam_search(model, sources, options))
    truncated = {hypothesis.truncated for hypotheses in found for hypothesis in hypotheses}
    assert truncated == {False, True} or beams == 1


def test_sources_of_all_lengths_in_one_batch(compiled_bundle: Path, model: Transformer) -> None:
    rng = random.Random(7)
    sources = [[rng.randrange(4, 40) for _ in range(length)] for length in range(1, 41)]
    options = SearchOptions(num_hypotheses=4, return_attention=True, max_length=24)
    together = Translator(compiled_bundle, "onnx-fp32", threads=1, batch_tokens=41 * 40)
    found = together.translate_ids(sources, options)
    assert_same(found, beam_search(model, sources, options))
    for source, hypotheses in zip(sources, found, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.attention is not None
            rows, columns = hypothesis.attention.shape
            assert (rows, columns) == (len(hypothesis.token_log_probs), len(source) + 1)
