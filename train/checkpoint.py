"""Checkpoints: directories of safetensors, JSON and the tokenizer, written whole or not at all.

run/
  checkpoint-00000500/        config.json model.safetensors tokenizer.spm
    training/                 optimizer.safetensors state.json   (what resuming needs)
  checkpoint-averaged/        the same three files; what `translate-trt export run/` takes
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from translate_trt.runtime.errors import CheckpointError
from translate_trt.runtime.files import new_directory
from translate_trt.train.config import ModelConfig, TrainConfig, config_from_json
from translate_trt.train.model import Transformer

FORMAT_VERSION = 1
AVERAGED = "checkpoint-averaged"
TOKENIZER = "tokenizer.spm"
PREFIX = "checkpoint-"


@dataclass(frozen=True)
class Checkpoint:
    """A trained model on disk, its weights not yet read."""

    path: Path
    model: ModelConfig
    train: dict[str, Any]  # the recipe, for the record
    source_language: str | None
    target_language: str | None

    @property
    def tokenizer(self) -> Path:
        """The SentencePiece model, shared by both languages."""
        return self.path / TOKENIZER

    def load_model(self) -> Transformer:
        """The model with its weights, in evaluation mode.

        Raises:
            CheckpointError: the weights are missing, truncated or of another shape.
        """
        model = Transformer(self.model)
        load_weights(model, self.path / "model.safetensors")
        return model.eval()


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the checkpoint is incomplete.") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); use another checkpoint of the run."
        ) from error


def load_weights(model: Transformer, path: Path) -> None:
    """Read weights into a model of the same configuration.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape.
    """
    try:
        model.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit its configuration: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run or checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; this is no checkpoint.") from error
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no JSON object; it is damaged.")
    return values


def numbered_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run in order of their step, the averaged one left out."""
    found = (path for path in run.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdecimal())
    return sorted(
        (path for path in found if path.is_dir()), key=lambda path: int(path.name[len(PREFIX) :])
    )


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path means: itself, or a run's averaged or else latest one.

    Raises:
        CheckpointError: there is none.
    """
    if (path / "config.json").is_file():
        return path
    if (path / AVERAGED / "config.json").is_file():
        return path / AVERAGED
    numbered = numbered_checkpoints(path)
    if numbered:
        return numbered[-1]
    raise CheckpointError(
        f"{path} holds no checkpoint: neither config.json, nor {AVERAGED}/, nor {PREFIX}<step>/. "
        "Give the --out directory of `translate-trt train`, or a checkpoint inside it."
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the configuration of a checkpoint or of a run's best one.

    Raises:
        CheckpointError: no checkpoint, or one of a newer format.
    """
    path = find_checkpoint(path)
    values = read_json(path / "config.json")
    version = values.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {version}; this version reads up to {FORMAT_VERSION}. "
            "Upgrade with: pip install -U translate-trt"
        )
    if not (path / TOKENIZER).is_file():
        raise CheckpointError(f"{path / TOKENIZER} is missing; the checkpoint is incomplete.")
    return Checkpoint(
        path,
        config_from_json(ModelConfig, values.get("model"), path / "config.json"),
        values.get("train", {}),
        values.get("source_language"),
        values.get("target_language"),
    )


@dataclass
class TrainingState:
    """Everything beside the weights that a resumed run needs to go on as if never stopped."""

    step: int
    epoch: int
    batch: int  # micro-batches of this epoch already used
    fingerprint: int  # of the training data
    random: Tensor  # torch's generator, uint8
    optimizer: dict[str, Tensor]

    def save(self, directory: Path) -> None:
        """Write `optimizer.safetensors` and `state.json`."""
        directory.mkdir()
        tensors = {**self.optimizer, "random": self.random}
        save_file(tensors, directory / "optimizer.safetensors")
        names = ("step", "epoch", "batch", "fingerprint")
        values = {name: getattr(self, name) for name in names}
        (directory / "state.json").write_text(json.dumps(values, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> TrainingState:
        """Read what `save` wrote.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        values = read_json(directory / "state.json")
        tensors = load_tensors(directory / "optimizer.safetensors")
        try:
            return cls(**values, random=tensors.pop("random"), optimizer=tensors)
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{directory} does not hold what resuming needs ({error}); use another checkpoint."
            ) from error


def save_checkpoint(
    path: Path,
    model: dict[str, Tensor],
    model_config: ModelConfig,
    train_config: TrainConfig,
    tokenizer: Path,
    languages: tuple[str | None, str | None],
    state: TrainingState | None = None,
) -> None:
    """Write a checkpoint; it appears under its name only once it is complete.

    Args:
        path: the directory to make; one of that name is replaced.
        model: the weights by name.
        model_config: shape of the model.
        train_config: its recipe.
        tokenizer: SentencePiece file to copy in.
        languages: source and target language codes, for the record.
        state: what resuming needs; None for a checkpoint that is only to be used.

    Raises:
        OutputError: the disk is full or not writable; what was there before is untouched.
    """
    config = {
        "format_version": FORMAT_VERSION,
        "model": dataclasses.asdict(model_config),
        "train": dataclasses.asdict(train_config),
        "source_language": languages[0],
        "target_language": languages[1],
    }
    with new_directory(path, force=True) as directory:
        weights = {name: tensor.contiguous() for name, tensor in model.items()}
        save_file(weights, directory / "model.safetensors")
        shutil.copyfile(tokenizer, directory / TOKENIZER)
        if state is not None:
            state.save(directory / "training")
        text = json.dumps(config, indent=1, ensure_ascii=False)
        (directory / "config.json").write_text(text + "\n", encoding="utf-8")


def average_weights(checkpoints: list[Path]) -> dict[str, Tensor]:
    """The mean of each weight over those checkpoints (section 6.1), summed in float64."""
    total: dict[str, Tensor] = {}
    for path in checkpoints:
        for name, tensor in load_tensors(path / "model.safetensors").items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(checkpoints)).float() for name, tensor in total.items()}


def remove_old_checkpoints(run: Path, keep: int) -> None:
    """Delete all but the last `keep` numbered checkpoints."""
    for path in numbered_checkpoints(run)[:-keep]:
        shutil.rmtree(path)
