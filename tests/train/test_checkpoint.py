from __future__ import annotations

import errno
import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import flip_bit, record_hashes, save_model

from translate_trt.runtime.errors import CheckpointError, OutputError
from translate_trt.train import hashed_files
from translate_trt.train.checkpoint import (
    AVERAGED,
    DecodingDefaults,
    find_checkpoint,
    numbered_checkpoints,
    open_checkpoint,
    save_checkpoint,
)
from translate_trt.train.config import ModelConfig, TrainConfig
from translate_trt.train.model import Transformer
from translate_trt.train.trainer import checkpoints
from translate_trt.train.trainer.checkpoints import (
    CheckpointWriter,
    average_weights,
    remove_old_checkpoints,
)
from translate_trt.train.training_state import TrainingState

CONFIG = ModelConfig(
    vocabulary_size=320, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16, heads=2
)


@pytest.fixture
def saved(tmp_path: Path, tokenizer_model: Path) -> Path:
    torch.manual_seed(0)
    return save_model(Transformer(CONFIG), tmp_path / "checkpoint-00000010", tokenizer_model)


def test_a_checkpoint_loads_unchanged(saved: Path) -> None:
    torch.manual_seed(0)
    expected = Transformer(CONFIG).state_dict()
    opened = open_checkpoint(saved)
    assert opened.model == CONFIG
    assert opened.decoding == DecodingDefaults("en", "de")
    model = opened.load_model()
    assert not model.training
    assert model.state_dict().keys() == expected.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    assert opened.train["max_length"] == 48
    assert opened.tokenizer.is_file()
    assert not (saved / "training").exists()
    assert len({path.stat().st_mode for path in saved.iterdir()}) == 1  # who may read one, all


@pytest.mark.parametrize("name", ["state.json", "optimizer.safetensors"])
def test_a_damaged_training_state_is_named(tmp_path: Path, name: str) -> None:
    TrainingState(1, 0, 1, 0, 0, {}, {}).save(tmp_path / "training")
    path = tmp_path / "training" / name
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        TrainingState.load(tmp_path / "training")
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is missing"):
        TrainingState.load(tmp_path / "training")


@pytest.mark.parametrize(
    "text", ["{}", '{"step": 1, "epoch": 0, "epoch_step": 1, "seed": 3}', "[1]"]
)
def test_a_training_state_of_another_version(tmp_path: Path, text: str) -> None:
    TrainingState(1, 0, 1, 0, 0, {}, {}).save(tmp_path / "training")
    (tmp_path / "training" / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "training"))):
        TrainingState.load(tmp_path / "training")


def test_which_checkpoint_a_path_means(saved: Path, tokenizer_model: Path) -> None:
    run = saved.parent
    assert find_checkpoint(saved) == saved
    newer = save_model(Transformer(CONFIG), run / "checkpoint-00000200", tokenizer_model)
    for stranger in ("notes", "²", "-1", "1e3", "00000300.partial"):
        (run / f"checkpoint-{stranger}").mkdir()
    (run / ".checkpoint-00000400.1a2b.partial").mkdir()  # left by a SIGKILL while saving
    (run / "checkpoint-00000500").write_text("a file")
    assert numbered_checkpoints(run) == [saved, newer]
    assert find_checkpoint(run) == newer
    averaged = save_model(Transformer(CONFIG), run / AVERAGED, tokenizer_model)
    assert find_checkpoint(run) == averaged
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find_checkpoint(run / "checkpoint-notes")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find_checkpoint(run / "nowhere")


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for name in ("9", "00000100", "020"):
        (tmp_path / f"checkpoint-{name}").mkdir()
    names = [path.name for path in numbered_checkpoints(tmp_path)]
    assert names == ["checkpoint-9", "checkpoint-020", "checkpoint-00000100"]
    remove_old_checkpoints(tmp_path, keep=2)
    names = [path.name for path in numbered_checkpoints(tmp_path)]
    assert names == ["checkpoint-020", "checkpoint-00000100"]


def test_an_old_checkpoint_that_cannot_be_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
    monkeypatch.setattr(checkpoints, "remove_directory", refuse)
    remove_old_checkpoints(tmp_path, keep=1)
    assert caplog.text.count("cannot be deleted: Permission denied") == 2
    assert len(numbered_checkpoints(tmp_path)) == 3


def test_a_checkpoint_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    writer = CheckpointWriter()
    writer.start(tmp_path / "checkpoint-1", fail)
    writer.finish()  # training continues
    writer.start(tmp_path / "checkpoint-2", fail)
    with pytest.raises(OutputError, match="checkpoint-2"):
        writer.finish(required=True)


def test_a_damaged_numbered_checkpoint_is_written_again(saved: Path, tokenizer_model: Path) -> None:
    weights, train = Transformer(CONFIG).state_dict(), TrainConfig()
    state = TrainingState(1, 0, 1, 0, 0, {}, {})
    (saved / "config.json").write_text("")
    tokenizers, decoding = (tokenizer_model, tokenizer_model), DecodingDefaults("en", "de")
    with pytest.raises(OutputError, match="is no checkpoint"):
        save_checkpoint(saved, weights, CONFIG, train, tokenizers, decoding)
    save_checkpoint(saved, weights, CONFIG, train, tokenizers, decoding, state)
    assert open_checkpoint(saved).model == CONFIG


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.spm", "config.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    expected = "holds no checkpoint" if name == "config.json" else f"{name} is missing"
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(saved).load_model()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.spm"])
def test_a_flipped_bit_is_noticed(saved: Path, name: str) -> None:
    flip_bit(saved / name)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged or was changed: its SHA-256"):
        open_checkpoint(saved).load_model()


@pytest.mark.parametrize("value", [math.nan, -math.inf], ids=["nan", "infinity"])
def test_weights_that_are_not_finite(saved: Path, value: float) -> None:
    path = saved / "model.safetensors"
    weights = load_file(path)
    weights["embedding.weight"][3, 2] = value
    save_file(weights, path)
    record_hashes(saved / "config.json")
    with pytest.raises(CheckpointError, match=r"embedding\.weight"):
        open_checkpoint(saved).load_model()
    with pytest.raises(CheckpointError, match="non-finite"):
        average_weights([saved])


@pytest.mark.parametrize(
    "hashes", ["[]", "{}", '{"model.safetensors": 5}'], ids=["list", "missing", "number"]
)
def test_hashes_that_are_none(saved: Path, hashes: str) -> None:
    path = saved / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"sha256": json.loads(hashes)}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json.*'sha256'"):
        open_checkpoint(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "checkpoint-00000010 .*Upgrade"),
        ({"format_version": 0}, "checkpoint-00000010 .*format 0; .*again"),
        ({"model": None}, r"config\.json.*damaged"),
    ],
)
def test_another_version(saved: Path, change: dict[str, object], message: str) -> None:
    path = saved / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(saved)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_configuration(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(saved)


def test_weights_of_another_shape(saved: Path) -> None:
    path = saved / "config.json"
    values = json.loads(path.read_text())
    values["model"]["d_ff"] = 99
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="configuration"):
        open_checkpoint(saved).load_model()


def test_a_full_disk_leaves_the_old_checkpoint(
    saved: Path, tokenizer_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (saved / "model.safetensors").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hashed_files, "save_file", full)
    for name in (saved.name, "checkpoint-00000020"):
        with pytest.raises(OutputError, match="space"):
            save_model(Transformer(CONFIG), saved.parent / name, tokenizer_model)
    state = TrainingState(20, 0, 1, 0, 0, {}, {})
    monkeypatch.setattr(hashed_files, "save_file", save_file)
    monkeypatch.setattr(TrainingState, "save", full)  # fails after the weights are written
    with pytest.raises(OutputError, match="space"):
        save_checkpoint(
            saved.parent / "checkpoint-00000020", Transformer(CONFIG).state_dict(), CONFIG,
            TrainConfig(), (tokenizer_model,) * 2, DecodingDefaults(), state,
        )  # fmt: skip
    assert (saved / "model.safetensors").read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
