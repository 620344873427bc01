"""Graphs in ONNX Runtime compared with the PyTorch reference, for every option."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.compiled import compile_once
from support.models import lively_model, save_model
from support.shared import SharedFiles
from support.translations import assert_same, random_sources, share_of_same

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime.bundle.contract import unscored
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow


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
    SearchOptions(), SearchOptions(beam_size=1), SearchOptions(beam_size=2, num_hypotheses=2),
    SearchOptions(beam_size=8, num_hypotheses=8, length_penalty=2.0),
    SearchOptions(length_penalty=0.0),
    SearchOptions(length_penalty=1.0, length_penalty_form="length", num_hypotheses=4),
    SearchOptions(max_length=4, num_hypotheses=4), SearchOptions(max_length=1, num_hypotheses=3),
    SearchOptions(max_extra_length=1, num_hypotheses=4),
    SearchOptions(beam_size=21, max_extra_length=9), SearchOptions(min_length=12, max_length=30),
    SearchOptions(num_hypotheses=4, early_stopping=True),
    SearchOptions(num_hypotheses=4, return_attention=True),
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_equal_to_the_reference(
    options: SearchOptions, translator: Translator, model: Transformer
) -> None:
    sources = random_sources(24)
    found = translator.translate_ids(sources, options)
    assert_same(found, beam_search(model, sources, options))


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre", "key_size": 5, "positions": "learned", "max_positions": 98},
        {"decoder_mixer": "ssru", "norm": "pre", "decoder_layers": 3, "decoder_ties": "1,2,1"},
        *(
            pytest.param(changes, marks=pytest.mark.nightly)
            for changes in (
                {"decoder_mixer": "ssru"},
                {"decoder_layers": 2, "decoder_ties": "5,5", "decoder_d_ff": 64},
            )
        ),
    ],
)
def test_every_kind_of_model_is_equal_to_its_reference(
    changes: dict[str, Any], tokenizer_model: Path, shared: SharedFiles, tmp_path: Path
) -> None:
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    model = lively_model(size, **changes)
    checkpoint = open_checkpoint(save_model(model, tmp_path / "checkpoint", tokenizer_model))
    targets = ("onnx-fp32", "onnx-int8")
    bundle = compile_once(shared, checkpoint, BuildOptions(targets, attention=True))
    sources = random_sources(24)
    options = SearchOptions(num_hypotheses=4, return_attention=True)
    expected = beam_search(checkpoint.load_model(), sources, options)
    translator = Translator(bundle, "onnx-fp32", threads=1)
    assert_same(translator.translate_ids(sources, options), expected)
    int8 = Translator(bundle, "onnx-int8", threads=1)
    assert share_of_same(int8.translate_ids(sources, options), expected) >= 0.5


def unscored_prefixes(prefixes: list[list[int]]) -> list[list[int]]:
    """Prefixes of unscored tokens, as callers' prefixes are forced."""
    return [[unscored(token) for token in prefix] for prefix in prefixes]


def test_prefixes_of_different_lengths_in_one_batch(
    translator: Translator, model: Transformer
) -> None:
    rng = random.Random(3)
    sources = random_sources(20, seed=1)
    prefixes = [[rng.randrange(4, 40) for _ in range(index % 5)] for index in range(20)]
    for beams in (1, 4):
        options = SearchOptions(beam_size=beams, num_hypotheses=beams, min_length=2)
        found = translator.translate_ids(sources, options, prefixes)
        assert_same(found, beam_search(model, sources, options, unscored_prefixes(prefixes)))
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


# ---- batches whose rows are done at different steps, and caches that grow ----


@pytest.mark.parametrize(("batch_tokens", "workers"), [(1, 1), (60, 3), (250, 1), (2000, 3)])
def test_results_do_not_depend_on_the_batch(
    batch_tokens: int, workers: int, compiled_bundle: Path, model: Transformer
) -> None:
    # Sentences of all lengths and limits; with continuous batching, pending sentences replace
    # finished ones.
    chosen = Translator(
        compiled_bundle, "onnx-fp32", threads=1, batch_tokens=batch_tokens, workers=workers
    )
    rng = random.Random(8)
    sources = random_sources(40, seed=8)
    prefixes = [[rng.randrange(4, 40) for _ in range(index % 4)] for index in range(40)]
    options = SearchOptions(num_hypotheses=4, return_attention=True)
    found = chosen.translate_ids(sources, options, prefixes)
    assert_same(found, beam_search(model, sources, options, unscored_prefixes(prefixes)))


def test_translations_end_where_the_table_of_positions_does(
    translator: Translator, model: Transformer
) -> None:
    longest = translator.manifest.limits.max_target_length
    sources = random_sources(6, seed=3, longest=12)
    for minimum in (0, longest):  # with 0, sentences that have ended stay in the batch
        options = SearchOptions(min_length=minimum, max_length=longest, num_hypotheses=2)
        assert_same(
            translator.translate_ids(sources, options), beam_search(model, sources, options)
        )
