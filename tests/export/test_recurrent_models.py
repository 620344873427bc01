"""Models with SSRU layers, end to end: joins and moves of batches, engines' graphs, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compiled import compile_once
from support.models import lively_model, save_model
from support.shared import SharedFiles
from support.translations import assert_same, random_sources

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow  # its bundles take most of a minute

TARGETS = ("onnx-fp32", "onnx-int8", "torch-fp32")
PROFILES = (Profile(2, 16), Profile(6, 48))


@pytest.fixture(scope="module")
def student(tokenizer_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    model = lively_model(size, decoder_mixer="ssru", norm="pre")  # as in test_executor.py
    return open_checkpoint(
        save_model(model, tmp_path_factory.mktemp("student") / "checkpoint", tokenizer_model)
    )


@pytest.fixture(scope="module")
def bundle(student: Checkpoint, shared: SharedFiles) -> Path:
    engines = EngineOptions(profiles=PROFILES)
    return compile_once(shared, student, BuildOptions(TARGETS, beam_size=3, engines=engines))


def test_the_state_is_a_vector_per_layer_and_beam(bundle: Path) -> None:
    for name in TARGETS:
        contract = read_manifest(bundle).target(name).contract
        assert contract.slots == 0
        assert not contract.caches
        names = {spec.name for spec in (*contract.state, *contract.results)}
        assert not names & {"ancestry", "slots", "full"}
        states = [spec for spec in contract.state if spec.name.startswith("ssru_state_")]
        beams = 3 if name == "torch-fp32" else "K"
        assert [spec.axes for spec in states] == [("N", beams, 32)] * 2


@pytest.mark.parametrize(("beams", "batch_tokens"), [(1, 400), (3, 40)])
def test_batches_that_sentences_join_and_leave(
    beams: int, batch_tokens: int, bundle: Path, student: Checkpoint
) -> None:
    sources = random_sources(60, seed=beams)
    options = SearchOptions(beam_size=beams, num_hypotheses=beams)
    translator = Translator(bundle, "onnx-fp32", threads=1, batch_tokens=batch_tokens)
    found = translator.translate_ids(sources, options)
    assert_same(found, beam_search(student.load_model(), sources, options))


@pytest.mark.usefixtures("compiled_kernels")
def test_an_8_bit_translation_does_not_depend_on_its_batch(bundle: Path) -> None:
    sources = random_sources(40, seed=7)
    options = SearchOptions(beam_size=2)
    small, large = (
        Translator(bundle, "onnx-int8", threads=1, batch_tokens=tokens).translate_ids(
            sources, options
        )
        for tokens in (1, 600)
    )
    assert small == large


def test_the_device_loop_runs_without_cache_slots(bundle: Path, student: Checkpoint) -> None:
    sources = random_sources(20, seed=5)
    options = SearchOptions(beam_size=3, num_hypotheses=3)
    translator = Translator(bundle, "torch-fp32", device="cpu", threads=1)
    assert_same(
        translator.translate_ids(sources, options),
        beam_search(student.load_model(), sources, options),
    )
    step = read_manifest(bundle).target("torch-fp32").engine
    assert step is not None
    assert {one["slots"] for one in step["step"]["profiles"].values()} == {0}
