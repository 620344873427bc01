"""Graphs on the executor: the same bits as on ONNX Runtime, and which graphs it refuses."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import onnx
import pytest
from onnx import helper
from support.compiled import compile_once
from support.graph_edits import change_file, edit_graph
from support.models import lively_model, save_model
from support.shared import SharedFiles
from support.translations import bits, random_sources

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.native import core as native_core
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_kernels")]

VARIABLE = "TRANSLATE_TRT_EXECUTOR"
SOURCES = random_sources(20, seed=3)
SEARCHES = [
    SearchOptions(num_hypotheses=4),
    SearchOptions(beam_size=1),
    SearchOptions(beam_size=1, sampling_top_k=5),
    SearchOptions(beam_size=8, num_hypotheses=3, min_length=20, max_length=30),
]


@pytest.fixture(scope="module")
def student_bundle(
    shared: SharedFiles, tokenizer_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Bundle of a pre-norm student with recurrent units."""
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    model = lively_model(size, decoder_mixer="ssru", norm="pre")
    path = tmp_path_factory.mktemp("student") / "checkpoint"
    checkpoint = open_checkpoint(save_model(model, path, tokenizer_model))
    return compile_once(shared, checkpoint, BuildOptions(("onnx-fp32", "onnx-int8")))


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_core, "_onnxruntime", lambda: None)
    monkeypatch.setenv("TRANSLATE_TRT_ONNXRUNTIME", "/nowhere/libonnxruntime.so.1")


def translate(bundle: Path, target: str, shortlist: bool = False) -> list[object]:
    """Translate with all options, in batches of several sizes on several threads."""
    found: list[object] = []
    for batch_tokens, threads in (70, 1), (600, 3):
        translator = Translator(
            bundle, target, shortlist=shortlist, threads=threads, batch_tokens=batch_tokens
        )
        for options in SEARCHES:
            found += [bits(one) for one in translator.translate_ids(SOURCES, options)]
    return found


@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
@pytest.mark.parametrize("name", ["compiled_bundle", "shortlist_bundle", "student_bundle"])
def test_translations_have_the_bits_of_those_on_onnx_runtime(
    name: str, target: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, shortlist = request.getfixturevalue(name), name == "shortlist_bundle"
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, "onnxruntime")
        expected = translate(bundle, target, shortlist)
    request.getfixturevalue("without_onnxruntime")
    assert translate(bundle, target, shortlist) == expected


@pytest.fixture
def bundle(compiled_bundle: Path, tmp_path: Path) -> Path:
    """Copy of the bundle, for changes."""
    return Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))


def test_graphs_with_other_operators_run_on_onnx_runtime(
    compiled_bundle: Path, bundle: Path, request: pytest.FixtureRequest
) -> None:
    def edit(model: onnx.ModelProto) -> None:
        kept, tokens = model.graph.node, "next_tokens"
        for node in kept:
            node.output[:] = ["same" if name == tokens else name for name in node.output]
        kept.append(helper.make_node("Identity", ["same"], [tokens]))

    edit_graph(bundle, "onnx-int8", "step", edit)
    expected = Translator(compiled_bundle, "onnx-int8", threads=1).translate_ids(SOURCES)
    translator = Translator(bundle, "onnx-int8", threads=1)
    found = translator.translate_ids(SOURCES)
    assert [bits(one) for one in found] == [bits(one) for one in expected]
    request.getfixturevalue("without_onnxruntime")
    with pytest.raises(BackendError, match=r"Identity.*pip install"):
        Translator(bundle, "onnx-int8")


@pytest.mark.usefixtures("without_onnxruntime")
def test_damaged_graphs(bundle: Path) -> None:
    size = (bundle / "targets/onnx-int8/step.onnx").stat().st_size
    for length in (size - 1, size // 2, size // 3, 100, 1, 0):
        change_file(bundle, "onnx-int8", "step", partial(os.truncate, length=length))
        with pytest.raises((BundleError, BackendError)):
            Translator(bundle, "onnx-int8")


def test_an_unknown_executor(compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "tensorrt")
    with pytest.raises(OptionError, match=VARIABLE):
        Translator(compiled_bundle, "onnx-int8")
