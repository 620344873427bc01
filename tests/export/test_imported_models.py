"""Settings of imported models that trained models lack, in every kind of target."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.compiled import compile_once
from support.models import EVERYTHING_ELSE, T5, enlarge, lively_model, save_imported_model
from support.shared import SharedFiles
from support.shortlists import listed_search, random_table
from support.static_bundles import static_bundle
from support.translations import assert_same, random_sources, share_of_same
from torch import Tensor, nn

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.verify.layers import compare_layers
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import CheckpointError, InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.evaluation.attention_maps import attend_sentence
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

TARGETS = ("onnx-fp32", "onnx-int8", "onnx-fp16")
LISTED = "onnx-fp32-shortlist"
OPTIONS = SearchOptions(num_hypotheses=4, return_attention=True)


class Compiled(NamedTuple):
    """A checkpoint and its bundle."""

    checkpoint: Checkpoint
    bundle: Path


def compiled(
    shared: SharedFiles, changes: dict[str, Any], directory: Path, tokenizer: Path,
    targets: tuple[str, ...],
) -> Compiled:  # fmt: skip
    """Compile a model with changes to the paper's."""
    size = Tokenizer(tokenizer, tokenizer).vocabulary_size
    model = lively_model(size, **changes)
    if model.config.rms_norm:
        enlarge(model)
    path = save_imported_model(model, directory / "checkpoint", tokenizer)
    checkpoint = open_checkpoint(path)
    shortlist = None
    if any(target.endswith("shortlist") for target in targets):
        shortlist = directory / "table.safetensors"
        random_table(checkpoint).save(shortlist)
    options = BuildOptions(targets, attention=True, shortlist=shortlist)
    return Compiled(checkpoint, compile_once(shared, checkpoint, options))


@pytest.fixture(scope="module")
def whole(
    shared: SharedFiles, tmp_path_factory: pytest.TempPathFactory, tokenizer_model: Path
) -> Compiled:
    directory = tmp_path_factory.mktemp("else")
    return compiled(shared, EVERYTHING_ELSE, directory, tokenizer_model, (*TARGETS, LISTED))


@pytest.fixture(scope="module")
def everything_else(whole: Compiled) -> Checkpoint:
    return whole.checkpoint


@pytest.fixture(scope="module")
def bundle(whole: Compiled) -> Path:
    return whole.bundle


def test_targets_are_equal_to_the_reference(everything_else: Checkpoint, bundle: Path) -> None:
    sources = random_sources(24)
    expected = beam_search(everything_else.load_model(), sources, OPTIONS)
    assert len({len(hypotheses[0].tokens) for hypotheses in expected}) > 3
    exact = Translator(bundle, "onnx-fp32", threads=1).translate_ids(sources, OPTIONS)
    assert_same(exact, expected)
    for target in TARGETS[1:]:
        found = Translator(bundle, target, threads=1).translate_ids(sources, OPTIONS)
        assert share_of_same(found, expected) >= 0.5, target


@pytest.fixture(scope="module")
def t5(
    shared: SharedFiles, tmp_path_factory: pytest.TempPathFactory, tokenizer_model: Path
) -> Compiled:
    targets = ("onnx-fp32", "onnx-int8", "onnx-int8-shortlist", "torch-fp32")
    return compiled(shared, T5, tmp_path_factory.mktemp("t5"), tokenizer_model, targets)


def test_relative_positions(t5: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots keep their positions when caches grow and rows move, in the search of 24 sentences."""
    checkpoint, bundle = t5
    sources = random_sources(24)
    model, best = checkpoint.load_model(), SearchOptions()
    expected = beam_search(model, sources, OPTIONS)
    exact = Translator(bundle, "onnx-fp32", threads=1)
    assert_same(exact.translate_ids(sources, OPTIONS), expected)
    for target, wanted in (
        ("onnx-int8", beam_search(model, sources, best)),
        ("onnx-int8-shortlist", listed_search(checkpoint, random_table(checkpoint), sources, best)),
    ):
        found = Translator(bundle, target, threads=1).translate_ids(sources, best)
        scores = [[ours.score for [ours] in one] for one in (found, wanted)]
        assert np.isclose(*scores, rtol=0.1, atol=0.1).mean() >= 0.7, target
    ours = Translator(bundle, "torch-fp32", device="cpu").translate_ids(sources, OPTIONS)
    assert_same(ours, expected)
    lines, targets = ["the dog runs"], ("onnx-fp32", "torch-fp32")
    reports = compare_layers(bundle, checkpoint, lines, targets, threads=1)
    assert [report.first for report in reports] == [None, None]
    monkeypatch.setenv("TRANSLATE_TRT_KERNELS", "none")  # the bodies of the operators
    exact = Translator(bundle, "onnx-fp32", threads=1)
    assert_same(exact.translate_ids(sources, OPTIONS), expected)


@pytest.mark.parametrize(
    "target",
    ["onnx-fp16", "tensorrt-fp16", pytest.param("tensorrt-fp32", marks=pytest.mark.nightly)],
)
def test_residual_sums_beyond_fp16(target: str, t5: Compiled, tmp_path: Path) -> None:
    """An emulation of 16 bits rounds and overflows as a GPU does."""
    model, sources = t5.checkpoint.load_model(), random_sources(24, longest=12)
    largest = {"decoder_norm": 0.0, "encoder.0.feed_forward.outer": 0.0}
    for name in largest:

        def record(_: nn.Module, inputs: tuple[Tensor], __: Tensor, name: str = name) -> None:
            largest[name] = max(largest[name], float(inputs[0].abs().max()))

        model.get_submodule(name).register_forward_hook(record)
    expected = beam_search(model, sources, OPTIONS)
    assert min(largest.values()) > 65_504
    bundle = static_bundle(t5.checkpoint, t5.bundle, tmp_path / "bundle", target, "onnxruntime")
    found = Translator(bundle, threads=1).translate_ids(sources, OPTIONS)
    assert share_of_same(found, expected) >= 0.9


def test_layers_are_those_of_the_reference(everything_else: Checkpoint, bundle: Path) -> None:
    lines = ["the dog runs over the river", "green", "a cat eats"]
    reports = compare_layers(bundle, everything_else, lines, TARGETS, threads=1)
    assert [report.first for report in reports] == [None] * len(TARGETS)
    # All but the tensors of the kernels' calls are there to compare.
    assert all(drift.relative is not None for report in reports for drift in report.drifts)


def test_the_end_of_the_source_is_not_read(everything_else: Checkpoint, bundle: Path) -> None:
    translator = Translator(bundle, threads=1)
    [[best]] = translator.translate_ids([[7, 9, 12]], SearchOptions(1, return_attention=True))
    assert best.attention is not None
    assert best.attention.shape[1] == 3  # of the end, which nothing looks at, there is no column
    assert best.attention.sum(1) == pytest.approx(1, abs=1e-5)
    # Batches shrink to what is left of them, in which the end of a source has no position.
    sources = random_sources(24)
    options = SearchOptions(2, return_attention=True)
    model = everything_else.load_model()
    assert_same(translator.translate_ids(sources, options), beam_search(model, sources, options))
    tokenizer = Tokenizer(*everything_else.tokenizers)
    found = attend_sentence(
        everything_else.load_model(), tokenizer, "the dog", None, SearchOptions(max_length=9)
    )
    assert len(found.maps["cross"].key) == len(tokenizer.encode_source("the dog"))


def test_each_side_has_its_vocabulary(everything_else: Checkpoint, bundle: Path) -> None:
    manifest = read_manifest(bundle)
    size = manifest.model.vocabulary_size
    assert manifest.model.input_vocabulary_size == 300 < size
    assert manifest.search_options() == SearchOptions(length_penalty=1.0)
    assert manifest.limits.max_source_length == 48
    assert sorted(file.path for file in manifest.tokenizer.values()) == ["source.spm", "target.spm"]
    translator = Translator(bundle, threads=1)
    translator.translate_ids([[299]], target_prefixes=[[size - 1]])
    with pytest.raises(InputError, match=r"token 300.*outside"):
        translator.translate_ids([[300]])
    with pytest.raises(InputError, match=f"prefix of source 0 has token {size}, .* {size} pieces"):
        translator.translate_ids([[299]], target_prefixes=[[size]])
    assert translator.translate(["the dog"])[0].hypotheses[0].segments
    with pytest.raises(CheckpointError, match="each language"):
        _ = everything_else.tokenizer


def test_a_shortlist_of_two_vocabularies(everything_else: Checkpoint, bundle: Path) -> None:
    sources = random_sources(16, longest=20)
    found = Translator(bundle, LISTED, threads=1).translate_ids(sources, OPTIONS)
    table = random_table(everything_else)
    assert_same(found, listed_search(everything_else, table, sources, OPTIONS))
