"""A real bundle, compiled once for all tests that need one (a plugin of tests/conftest.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from support.models import lively_model, save_model
from translate_trt.export import compile as compile_module
from translate_trt.export.compile import BuildOptions, compile_bundle, trace_graphs
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint


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


@pytest.fixture(scope="session")
def engine_bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    """A bundle of engines whose beam is not the manifest's. Tests copy it before they change it."""
    pytest.importorskip(
        "tensorrt_rtx", reason="tensorrt-rtx, which builds engines, is not installed"
    )
    directory = tmp_path_factory.mktemp("engines")
    path = directory / "bundle"
    engines = EngineOptions(cache=directory / "cache")
    targets = ("tensorrt-rtx-fp16", "tensorrt-rtx-bf16")
    compile_bundle(checkpoint, path, BuildOptions(targets, beam_size=3, engines=engines))
    return path


@pytest.fixture(scope="session")
def traces() -> dict[Any, dict[str, ir.Model]]:
    """What `trace_once` has traced: passes work on copies."""
    return {}


@pytest.fixture
def trace_once(traces: dict[Any, dict[str, ir.Model]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of the session's checkpoint are traced once for all tests that ask for this."""

    def trace(
        model: Any, limits: Any, shape: Any, opset: int, shortlist: Any = None
    ) -> dict[str, ir.Model]:
        key = (model.config, limits, shape, opset)
        if shortlist is not None or key not in traces:
            traces[key] = trace_graphs(model, limits, shape, opset, shortlist)
        return traces[key]

    monkeypatch.setattr(compile_module, "trace_graphs", trace)
