"""A real bundle, compiled once for all tests that need one (a plugin of tests/conftest.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.models import lively_model, save_model
from translate_trt.export.compile import BuildOptions, compile_bundle
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
