"""A real bundle, compiled once per test run (a plugin of tests/conftest.py)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from support.bad_bundles import edit
from support.compiled import compile_once
from support.graph_edits import edit_graph
from support.models import lively_model, save_model
from support.shared import SharedFiles
from support.shortlists import TARGETS, random_table
from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import END, ModelConfig
from translate_trt.train.model import Transformer


@pytest.fixture(scope="session")
def checkpoint(shared: SharedFiles, tokenizer_model: Path) -> Checkpoint:
    """Checkpoint of a small trained model with the test tokenizer."""
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    path = shared.once(
        "checkpoint", lambda path: save_model(lively_model(size), path, tokenizer_model)
    )
    return open_checkpoint(path)


@pytest.fixture(scope="session")
def compiled_bundle(shared: SharedFiles, checkpoint: Checkpoint) -> Path:
    """Bundle of `checkpoint` for both targets, with attention. Tests must copy it to change it."""
    options = BuildOptions(targets=("onnx-fp32", "onnx-int8"), attention=True)
    return compile_once(shared, checkpoint, options)


@pytest.fixture(scope="session")
def word_bundle(shared: SharedFiles, tokenizer_model: Path) -> Path:
    """Bundle that says words; `compiled_bundle` says bytes. Tests must copy it to change it."""
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    path = shared.once(
        "words",
        lambda path: save_model(
            lively_model(size, steps=60, tokens=range(260, size)), path, tokenizer_model
        ),
    )
    options = BuildOptions(targets=("onnx-fp32", "onnx-int8"), attention=True)
    return compile_once(shared, open_checkpoint(path), options)


@pytest.fixture(scope="session")
def shortlist_bundle(shared: SharedFiles, checkpoint: Checkpoint) -> Path:
    """Bundle of `checkpoint` with `random_table`. Tests must copy it to change it."""
    table = shared.once("shortlist.safetensors", random_table(checkpoint).save)
    return compile_once(shared, checkpoint, BuildOptions(TARGETS, attention=True, shortlist=table))


@pytest.fixture(scope="session")
def looping_model(shared: SharedFiles, tokenizer_model: Path) -> Checkpoint:
    """Checkpoint of a random model that seldom ends a translation."""

    def make(path: Path) -> None:
        size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
        torch.manual_seed(5)
        model = Transformer(
            ModelConfig(
                vocabulary_size=size, encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64,
                heads=2, dropout=0.0, output_bias=True,
            )
        ).eval()  # fmt: skip
        assert model.output_bias is not None
        with torch.no_grad():
            model.output_bias[END] = -3.0
        save_model(model, path, tokenizer_model)

    return open_checkpoint(shared.once("looping", make))


@pytest.fixture(scope="session")
def looping_bundle(shared: SharedFiles, looping_model: Checkpoint) -> Path:
    """Bundle of `looping_model` in FP32, with attention."""
    options = BuildOptions(targets=("onnx-fp32",), attention=True)
    return compile_once(shared, looping_model, options)


#: Of `nan_bundle`: all that it translates to NaN.
NAN_WORD = "Haus"


@pytest.fixture(scope="session")
def nan_bundle(tmp_path_factory: pytest.TempPathFactory, compiled_bundle: Path) -> Path:
    """Bundle with target onnx-fp32 alone, in which the embedding of one word is NaN."""
    path = Path(shutil.copytree(compiled_bundle, tmp_path_factory.mktemp("nan") / "bundle"))
    tokenizer = Tokenizer(path / "shared.spm", path / "shared.spm")

    def spoil(model: onnx.ModelProto) -> None:
        (table,) = (x for x in model.graph.initializer if x.name == "model.embedding.weight")
        values = numpy_helper.to_array(table).copy()
        values[tokenizer.encode_source(NAN_WORD)] = np.nan
        table.CopyFrom(numpy_helper.from_array(values, table.name))

    edit_graph(path, "onnx-fp32", "encoder", spoil)
    edit(path, lambda manifest: manifest["targets"].pop("onnx-int8"))
    return path


@pytest.fixture(scope="session")
def engine_bundle(
    tmp_path_factory: pytest.TempPathFactory, shared: SharedFiles, checkpoint: Checkpoint
) -> Path:
    """Bundle of engines for another beam size than the manifest's. Tests must copy it."""
    pytest.importorskip(
        "tensorrt_rtx", reason="tensorrt-rtx, which builds engines, is not installed"
    )
    cache = tmp_path_factory.mktemp("engines")
    engines = EngineOptions(cache=cache, max_batch=1)  # one profile
    targets = ("tensorrt-rtx-fp16", "tensorrt-rtx-bf16")
    options = BuildOptions(targets, beam_size=3, engines=engines)
    return compile_once(shared, checkpoint, options)
