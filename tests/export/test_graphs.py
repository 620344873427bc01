"""Graphs in ONNX Runtime compared with the PyTorch reference, for every option."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.compiled import compile_once
from support.models import lively_model, save_model
from support.shared import SharedFiles
from support.translations import assert_same, random_sources, share_of_same

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime import reference
from translate_trt.runtime.bundle.contract import unscored
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Batch, Sentence
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import END, START
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


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("batch_tokens", [64, 2000])
def test_options_of_one_beam_size_share_a_batch(
    batch_tokens: int, translator: Translator, compiled_bundle: Path
) -> None:
    mixed = [one for one in OPTIONS if one.beam_size == 4 and not one.return_attention]
    assert len(mixed) > 6
    sources = random_sources(3 * len(mixed), seed=5)
    own = [mixed[index % len(mixed)] for index in range(len(sources))]
    plain = Translator(compiled_bundle, "onnx-fp32", threads=1, batch_tokens=batch_tokens)
    assert plain._reference is not None
    found = plain._reference.reference.translate(
        [Sentence(source, (), one) for source, one in zip(sources, own, strict=True)]
    )
    for together, source, one in zip(found, sources, own, strict=True):
        assert_same([together], translator.translate_ids([source], one))


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


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
def test_a_cache_that_grows_and_one_large_from_the_start(
    target: str, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(compiled_bundle, target, threads=1, batch_tokens=250)
    options = SearchOptions(beam_size=6, num_hypotheses=6, min_length=40, max_length=60)
    sources, found, grown = random_sources(24, seed=4), {}, {}
    grow = Batch._grow
    for first in (12, 6 * 61):
        sizes: list[int] = []

        def counted(self: Batch, full: NDArray[np.bool_], sizes: list[int] = sizes) -> None:
            grow(self, full)
            sizes.append(self._inputs["ancestry"].shape[2])

        def slots(needed: int, first: int = first) -> int:
            return -(-needed // first) * first

        monkeypatch.setattr(reference, "_slot_capacity", slots)
        monkeypatch.setattr(Batch, "_grow", counted)
        found[first] = translator.translate_ids(sources, options)
        grown[first] = sizes
    if target == "onnx-fp32":
        assert_same(found[12], found[6 * 61])
    # Sums over more masked slots round differently, which can change 8-bit values.
    assert share_of_same(*found.values()) >= 0.9
    assert len(set(grown[12])) > 2
    assert grown[6 * 61] == []
    assert max(grown[12]) < 0.8 * 6 * 60  # beams of one model share their past


@pytest.mark.usefixtures("without_library")
def test_a_sentence_that_is_done_waits_at_the_last_position_there_is(
    compiled_bundle: Path, model: Transformer
) -> None:
    # The table of positions ends with the longest target. A sentence that ends there and sentences
    # that ended long before stay in the same batch.
    translator = Translator(compiled_bundle, "onnx-fp32", threads=1, batch_tokens=10_000)
    longest = translator.manifest.limits.max_target_length
    assert translator._reference is not None
    plain = translator._reference.reference
    sources = random_sources(6, seed=3, longest=12)
    for minimum in (0, longest):
        options = SearchOptions(min_length=minimum, max_length=longest, num_hypotheses=2)
        found = translator.translate_ids(sources, options)
        assert_same(found, beam_search(model, sources, options))
        limits = [longest, 1, 2, 3, 4, 5]
        sentences = [
            Sentence(source, (), SearchOptions(min_length=min(minimum, limit), max_length=limit))
            for source, limit in zip(sources, limits, strict=True)
        ]
        batch = Batch(plain._graphs, plain._contract, sentences, START, END)
        for _ in range(longest + 3):
            batch.step()
            assert not np.isnan(batch.history[-1][2]).any()
        assert batch.is_done
        assert (batch.lengths <= limits).all()
        assert all(batch.hypotheses(row) for row in range(6))
