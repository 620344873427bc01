"""Files of recorded activation scales: written by imports, read back strictly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.models import save_model

from translate_trt.runtime.errors import CheckpointError
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.train.activation_scales import matmul_weights
from translate_trt.train.checkpoint import (
    ACTIVATION_SCALES,
    DecodingDefaults,
    open_checkpoint,
    save_imported,
)
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

CONFIG = ModelConfig(
    vocabulary_size=320, encoder_layers=1, decoder_layers=2, d_model=16, d_ff=16, heads=2,
    decoder_mixer="ssru", decoder_ties="1,1",
)  # fmt: skip
MODEL = Transformer(CONFIG).eval()
MAGNITUDES = {name: 0.1 + index / 7 for index, name in enumerate(matmul_weights(MODEL))}


def save(path: Path, tokenizer: Path, magnitudes: Mapping[str, float] | None = MAGNITUDES) -> Path:
    spm = tokenizer.read_bytes()
    save_imported(
        path, MODEL, (spm, spm), {"imported_from": "marian"}, DecodingDefaults(), force=True,
        activation_scales=magnitudes,
    )  # fmt: skip
    return path


def test_every_matmul_has_a_name() -> None:
    found = matmul_weights(MODEL)
    attention = ("query", "key", "value", "output")
    layer = ["feed_forward.inner", "feed_forward.outer"]
    cross = [*(f"cross_attention.{part}" for part in attention), *layer]
    assert set(found) == {
        *(f"encoder.0.self_attention.{part}" for part in attention),
        *(f"encoder.0.{name}" for name in layer),
        *(f"decoder.0.{name}" for name in ("ssru.forget", "ssru.input", *cross)),
        "projection",
    }
    assert found["projection"] is MODEL.embedding.weight
    vectors = (tensor for tensor in MODEL.parameters() if tensor.dim() == 2)
    assert {id(tensor) for tensor in vectors} == {id(tensor) for tensor in found.values()}


def test_magnitudes_are_read_as_they_were_written(tmp_path: Path, tokenizer_model: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path / "checkpoint", tokenizer_model))
    assert checkpoint.load_activation_scales(checkpoint.load_model()) == MAGNITUDES


def test_checkpoints_without_the_file(tmp_path: Path, tokenizer_model: Path) -> None:
    """Neither training nor an import without scales writes them; --force removes former ones."""
    path = save(tmp_path / "checkpoint", tokenizer_model)
    save(path, tokenizer_model, None)
    trained = save_model(MODEL, tmp_path / "trained", tokenizer_model)
    for one in (path, trained):
        assert not (one / ACTIVATION_SCALES).exists()
        assert open_checkpoint(one).load_activation_scales(MODEL) is None


def test_missing_and_changed_files(tmp_path: Path, tokenizer_model: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path / "checkpoint", tokenizer_model))
    path = checkpoint.path / ACTIVATION_SCALES
    text = path.read_text()
    path.write_text(text.replace("0.1", "0.2", 1))
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))} is damaged or was changed"):
        checkpoint.load_activation_scales(MODEL)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))} is missing"):
        checkpoint.load_activation_scales(MODEL)


REFUSED: dict[str, Any] = {
    "has format 2; this version reads 1": {"format_version": 2},
    "has format None": {"format_version": None},
    "has format True": {"format_version": True},
    "its field 'largest_magnitudes' is not a JSON object": {"largest_magnitudes": [1.0]},
    "it lacks 'encoder.0.feed_forward.inner'": {
        "largest_magnitudes": {k: v for k, v in MAGNITUDES.items() if k[:9] != "encoder.0"}
    },
    "it has the unknown matmul 'decoder.1.ssru.input'": {
        "largest_magnitudes": MAGNITUDES | {"decoder.1.ssru.input": 1.0}
    },
    **{
        f"the magnitude of 'projection' is {value!r}, not a positive, finite number": {
            "largest_magnitudes": MAGNITUDES | {"projection": value}
        }
        for value in (0.0, -1.0, float("nan"), float("inf"), True, None, "4")
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_damaged_files(message: str, tmp_path: Path, tokenizer_model: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path / "checkpoint", tokenizer_model))
    path, config = checkpoint.path / ACTIVATION_SCALES, checkpoint.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | REFUSED[message]))
    values = json.loads(config.read_text())
    values["sha256"][ACTIVATION_SCALES] = sha256_of_file(path)[0]
    config.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        checkpoint.load_activation_scales(MODEL)
