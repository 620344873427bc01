"""A real bundle, compiled once for all tests that need one (a plugin of tests/conftest.py)."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from support.models import lively_model, save_model
from translate_trt.export import compile as compile_module
from translate_trt.export.compile import BuildOptions, compile_bundle, trace_graphs
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.bundle import Limits, hash_file, read_manifest, write_manifest
from translate_trt.runtime.contract import GraphShape
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.model import Transformer
from translate_trt.train.shortlist import Shortlist

# Parameters of a model whose graphs are kept in memory to the end.
_MOST_KEPT = 1_000_000


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer_model: Path) -> Checkpoint:
    """A checkpoint of a small lively model with the test tokenizer."""
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    path = tmp_path_factory.mktemp("checkpoint") / "checkpoint"
    return open_checkpoint(save_model(lively_model(size), path, tokenizer_model))


@pytest.fixture(scope="session")
def compiled_bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    """Its bundle, both targets, with attention. Tests copy it before they change anything."""
    path = tmp_path_factory.mktemp("compiled") / "bundle"
    options = BuildOptions(targets=("onnx-fp32", "onnx-int8"), attention=True)
    compile_bundle(checkpoint, path, options)
    return path


#: Of `nan_bundle`: all that it translates to NaN.
NAN_WORD = "Haus"


@pytest.fixture(scope="session")
def nan_bundle(tmp_path_factory: pytest.TempPathFactory, compiled_bundle: Path) -> Path:
    """The same with one target, onnx-fp32, in which the embedding of one word is NaN."""
    path = Path(shutil.copytree(compiled_bundle, tmp_path_factory.mktemp("nan") / "bundle"))
    manifest = read_manifest(path)
    entry = manifest.targets["onnx-fp32"]
    tokenizer = Tokenizer(path / "shared.spm", path / "shared.spm")
    name = entry.files["encoder"].path
    model = onnx.load(path / name)
    (table,) = (x for x in model.graph.initializer if x.name == "model.embedding.weight")
    values = numpy_helper.to_array(table).copy()
    values[tokenizer.encode_source(NAN_WORD)] = np.nan
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(model, path / name)
    entry = dataclasses.replace(entry, files={**entry.files, "encoder": hash_file(path, name)})
    write_manifest(path, dataclasses.replace(manifest, targets={"onnx-fp32": entry}))
    return path


@pytest.fixture(scope="session")
def engine_bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    """A bundle of engines whose beam is not the manifest's. Tests copy it before they change it."""
    pytest.importorskip(
        "tensorrt_rtx", reason="tensorrt-rtx, which builds engines, is not installed"
    )
    directory = tmp_path_factory.mktemp("engines")
    path = directory / "bundle"
    engines = EngineOptions(cache=directory / "cache", max_batch=1)  # one profile
    targets = ("tensorrt-rtx-fp16", "tensorrt-rtx-bf16")
    compile_bundle(checkpoint, path, BuildOptions(targets, beam_size=3, engines=engines))
    return path


@pytest.fixture(scope="session", autouse=True)
def traced_once() -> Iterator[None]:
    """Graphs of a small model are traced once for all bundles that are compiled from it.

    Tracing takes seconds, passes far less, and those work on copies. Tests of tracing call `trace`
    or `trace_graphs`, which are what they were.
    """
    kept: dict[Any, dict[str, ir.Model]] = {}

    def trace(
        model: Transformer,
        limits: Limits,
        shape: GraphShape,
        opset: int,
        shortlist: Shortlist | None = None,
    ) -> dict[str, ir.Model]:
        large = sum(x.numel() for x in model.parameters()) > _MOST_KEPT
        if shape.form.shortlist is not None or large:
            return trace_graphs(model, limits, shape, opset, shortlist)
        key = (model.config, _digest(model), limits, shape, opset)
        if key not in kept:
            # Graphs hold the weights themselves, and a test may change its model's.
            kept[key] = trace_graphs(copy.deepcopy(model), limits, shape, opset)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_module, "trace_graphs", trace)
        yield


def _digest(model: Transformer) -> bytes:
    """Of a model's weights."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    return found.digest()
