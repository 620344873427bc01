from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from support.models import save_model

from translate_trt.runtime.errors import CheckpointError, OutputError
from translate_trt.train import checkpoint as checkpoint_module
from translate_trt.train.checkpoint import (
    AVERAGED,
    average_weights,
    find_checkpoint,
    numbered_checkpoints,
    open_checkpoint,
)
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

CONFIG = ModelConfig(
    vocabulary_size=320, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16, heads=2
)


@pytest.fixture
def saved(tmp_path: Path, tokenizer_model: Path) -> Path:
    torch.manual_seed(0)
    return save_model(Transformer(CONFIG), tmp_path / "checkpoint-00000010", tokenizer_model)


def test_what_was_saved_comes_back(saved: Path) -> None:
    torch.manual_seed(0)
    expected = Transformer(CONFIG).state_dict()
    opened = open_checkpoint(saved)
    assert opened.model == CONFIG
    assert (opened.source_language, opened.target_language) == ("en", "de")
    model = opened.load_model()
    assert not model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_which_checkpoint_a_path_means(saved: Path, tokenizer_model: Path) -> None:
    run = saved.parent
    assert find_checkpoint(saved) == saved
    newer = save_model(Transformer(CONFIG), run / "checkpoint-00000200", tokenizer_model)
    (run / "checkpoint-notes").mkdir()
    assert numbered_checkpoints(run) == [saved, newer]
    assert find_checkpoint(run) == newer
    averaged = save_model(Transformer(CONFIG), run / AVERAGED, tokenizer_model)
    assert find_checkpoint(run) == averaged
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find_checkpoint(run / "checkpoint-notes")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.spm", "config.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    expected = "holds no checkpoint" if name == "config.json" else f"{name} is missing"
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(saved).load_model()


def test_truncated_weights(saved: Path) -> None:
    path = saved / "model.safetensors"
    os.truncate(path, path.stat().st_size - 7)
    with pytest.raises(CheckpointError, match="is damaged"):
        open_checkpoint(saved).load_model()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "pip install -U"),
        ({"model": {"vocabulary_size": 5}}, "lacks"),
    ],
)
def test_another_version(saved: Path, change: dict[str, object], message: str) -> None:
    path = saved / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(saved)


def test_weights_of_another_shape(saved: Path) -> None:
    path = saved / "config.json"
    values = json.loads(path.read_text())
    values["model"]["d_ff"] = 99
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="does not fit its configuration"):
        open_checkpoint(saved).load_model()


def test_the_average(saved: Path, tokenizer_model: Path) -> None:
    torch.manual_seed(7)
    other = save_model(Transformer(CONFIG), saved.parent / "other", tokenizer_model)
    one, two = (open_checkpoint(path).load_model().state_dict() for path in (saved, other))
    for name, tensor in average_weights([saved, other]).items():
        torch.testing.assert_close(tensor, (one[name] + two[name]) / 2)


def test_a_full_disk_leaves_what_was_there(
    saved: Path, tokenizer_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (saved / "model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "save_file", full)
    for name in (saved.name, "checkpoint-00000020"):
        with pytest.raises(OutputError, match="space"):
            save_model(Transformer(CONFIG), saved.parent / name, tokenizer_model)
    assert (saved / "model.safetensors").read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
