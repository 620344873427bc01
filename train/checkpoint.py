"""Checkpoints: directories of safetensors, JSON and the tokenizer, written whole or not at all.

run/
  checkpoint-00000000/        of a run that fine-tunes, the model it began with
  checkpoint-00000500/        config.json model.safetensors tokenizer.spm
    training/                 optimizer.safetensors state.json   (what resuming needs)
  checkpoint-averaged/        the same three files; what `translate-trt export run/` takes

Where source and target have tokenizers of their own, source.spm and target.spm stand for
tokenizer.spm.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import BundleError, CheckpointError, OptionError
from translate_trt.runtime.io.atomic_files import new_directory
from translate_trt.runtime.io.outputs import Kind
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.config import ModelConfig, TrainConfig, config_from_json
from translate_trt.train.hashed_files import (
    check_hash,
    file_hashes,
    hash_file,
    read_json,
    read_tensors,
    recorded_hashes,
)
from translate_trt.train.model import Transformer
from translate_trt.train.training_state import TrainingState

FORMAT_VERSION = 1
AVERAGED = "checkpoint-averaged"
TOKENIZER = "tokenizer.spm"
TOKENIZERS = ("source.spm", "target.spm")  # where each side has its own
PREFIX = "checkpoint-"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def checkpoint_files(directory: Path) -> set[str] | None:
    """Relative paths of all files of a checkpoint; None: none is there."""
    return WRITTEN if _recipe(directory) is not None else None


def imported_files(directory: Path) -> set[str] | None:
    """The same, of a checkpoint that `translate-trt import` made."""
    return WRITTEN if "imported_from" in (_recipe(directory) or {}) else None


def _recipe(directory: Path) -> dict[str, Any] | None:
    """Training section of a checkpoint's configuration; None: the directory holds no checkpoint."""
    try:
        values = json.loads((directory / "config.json").read_bytes())
        if isinstance(values["format_version"], int) and isinstance(values["model"], dict):
            return dict(values.get("train", {}))
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        pass
    return None


WRITTEN = {
    "config.json",
    "model.safetensors",
    TOKENIZER,
    *TOKENIZERS,
    "training/optimizer.safetensors",
    "training/state.json",
}

#: For --force: of any model, and of one of another toolkit.
CHECKPOINT = Kind("checkpoint", "translate-trt train", checkpoint_files)
IMPORTED = Kind("imported checkpoint", "translate-trt import", imported_files)


@dataclass(frozen=True)
class DecodingDefaults:
    """How a model is used: what a checkpoint says beside shape, recipe and tokenizers.

    Its fields stand in config.json by their names, and in a run's run.json: every checkpoint of the
    run has them, those of a model that is trained further the model's own.
    """

    source_language: str | None = None
    target_language: str | None = None
    search: dict[str, Any] = field(default_factory=dict)  # options it is best decoded with
    prompt: Prompt = field(default_factory=Prompt)  # what stands before texts

    @classmethod
    def read(cls, path: Path, values: dict[str, Any]) -> DecodingDefaults:
        """What such a file says; of a field that it lacks, the default.

        Raises:
            CheckpointError: it is damaged.
        """
        names = (one.name for one in dataclasses.fields(cls) if one.name != "prompt")
        found = {name: values[name] for name in names if name in values}
        if "prompt" not in values:
            return cls(**found)
        try:
            prompt = Prompt.from_json(Fields(values["prompt"], path, "prompt"))
        except BundleError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        return cls(**found, prompt=prompt)

    @property
    def greedy(self) -> SearchOptions:
        """Greedy search, in the languages that a model of several is used for."""
        return SearchOptions(
            beam_size=1,
            source_language=self.search.get("source_language"),
            target_language=self.search.get("target_language"),
        )

    def to_json(self) -> dict[str, Any]:
        """What `read` reads."""
        return {**vars(self), "prompt": self.prompt.to_json()}


@dataclass(frozen=True, kw_only=True)
class Checkpoint(DecodingDefaults):
    """A trained model on disk, its weights not yet read."""

    path: Path
    model: ModelConfig
    train: dict[str, Any]  # the recipe, for the record
    tokenizers: tuple[Path, Path]  # SentencePiece models of source and target; may be the same

    @property
    def decoding(self) -> DecodingDefaults:
        """That alone."""
        return DecodingDefaults(
            **{one.name: getattr(self, one.name) for one in dataclasses.fields(DecodingDefaults)}
        )

    @property
    def tokenizer(self) -> Path:
        """The SentencePiece model, shared by both languages.

        Raises:
            CheckpointError: each has its own.
        """
        source, target = self.tokenizers
        if source != target:
            raise CheckpointError(
                f"{self.path} has a vocabulary for each language, {source.name} and "
                f"{target.name}; this needs a model with one for both."
            )
        return source

    def search_options(self) -> SearchOptions:
        """What it is best decoded with.

        Raises:
            CheckpointError: config.json does not say that in the names of `SearchOptions`.
        """
        try:
            return SearchOptions(**self.search)
        except (TypeError, OptionError) as error:
            raise CheckpointError(
                f"{self.path / 'config.json'}: the field 'search' is damaged: {error}"
            ) from error

    def check_languages(self, options: SearchOptions) -> None:
        """See `Prompt.check`."""
        self.prompt.check(options, (self.source_language, self.target_language))

    def load_model(self) -> Transformer:
        """The model with its weights, in evaluation mode.

        Raises:
            CheckpointError: the weights are missing, damaged or of another shape.
        """
        model = Transformer(self.model)
        load_weights(model, self.path)
        return model.eval()

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights' file, read anew.

        Raises:
            CheckpointError: the file is missing.
        """
        return hash_file(self.path / WEIGHTS)


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint by name, checked against the hash in its config.json.

    Raises:
        CheckpointError: they are missing, damaged or not finite.
    """
    config = checkpoint / CONFIG
    hashes = recorded_hashes(config, read_json(config))
    return read_tensors(checkpoint / WEIGHTS, hashes.get(WEIGHTS))


def load_weights(model: Transformer, checkpoint: Path) -> None:
    """Read the weights of a checkpoint into a model of the same configuration.

    Raises:
        CheckpointError: they are damaged, or a tensor is missing, unknown or of another shape.
    """
    try:
        model.load_state_dict(read_weights(checkpoint))
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint / WEIGHTS} does not fit its configuration: {error}"
        ) from error


def numbered_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run in order of their step, the averaged one left out."""
    found = (path for path in run.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdecimal())
    return sorted((path for path in found if path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step of a numbered checkpoint; 0: what the run began with."""
    return int(checkpoint.name[len(PREFIX) :])


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path means: itself, or a run's averaged or else latest one.

    Raises:
        CheckpointError: there is none.
    """
    if (path / CONFIG).is_file():
        return path
    if (path / AVERAGED / CONFIG).is_file():
        return path / AVERAGED
    numbered = numbered_checkpoints(path)
    if numbered:
        return numbered[-1]
    if (path / "manifest.json").is_file():
        raise CheckpointError(
            f"{path} is a bundle and holds no checkpoint; give the one it was exported from."
        )
    raise CheckpointError(
        f"{path} holds no checkpoint: neither config.json, nor {AVERAGED}/, nor {PREFIX}<step>/. "
        "Give the --output directory of `translate-trt train`, or a checkpoint inside it."
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the configuration of a checkpoint or of a run's best one.

    Raises:
        CheckpointError: no checkpoint, or one of a newer format.
    """
    path = find_checkpoint(path)
    values = read_json(path / CONFIG)
    if "format_version" not in values:
        raise CheckpointError(
            f"{path} holds no checkpoint of translate-trt, but perhaps a model of another toolkit; "
            "make it one with: translate-trt import"
        )
    version = values["format_version"]
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {version}; this version reads up to {FORMAT_VERSION}. "
            "Upgrade with: pip install -U translate-trt"
        )
    file = path / CONFIG
    return Checkpoint(
        **vars(DecodingDefaults.read(file, values)),
        path=path,
        model=config_from_json(ModelConfig, values.get("model"), file),
        train=values.get("train", {}),
        tokenizers=named_tokenizers(file, values),
    )


def named_tokenizers(path: Path, values: Mapping[str, Any]) -> tuple[Path, Path]:
    """The tokenizers of source and target that a config.json or run.json names.

    Args:
        path: of that file; they lie beside it.
        values: in it. Older ones name none: there is one then.

    Raises:
        CheckpointError: they are not there or damaged, or it does not say which.
    """
    names = values.get("tokenizers", {"source": TOKENIZER, "target": TOKENIZER})
    try:
        source, target = str(names["source"]), str(names["target"])
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path} does not say which tokenizers.") from error
    if {Path(name).name for name in (source, target)} != {source, target}:
        raise CheckpointError(f"{path} names tokenizers that are not beside it.")
    for name in (source, target):
        if not path.with_name(name).is_file():
            raise CheckpointError(
                f"{path.with_name(name)} is missing; the checkpoint is incomplete."
            )
        check_hash(path.with_name(name), recorded_hashes(path, values).get(name))
    return path.with_name(source), path.with_name(target)


def tokenizer_names(tokenizers: tuple[Path, Path]) -> dict[str, str]:
    """What config.json and run.json say of them, for `named_tokenizers`."""
    return {"source": tokenizers[0].name, "target": tokenizers[1].name}


def write_tokenizers(directory: Path, models: tuple[bytes, bytes]) -> tuple[Path, Path]:
    """Write the tokenizers of source and target, equal ones as one file; returns their paths."""
    names = (TOKENIZER, TOKENIZER) if models[0] == models[1] else TOKENIZERS
    paths = directory / names[0], directory / names[1]
    for path, content in zip(paths, models, strict=True):
        path.write_bytes(content)
    return paths


def save_checkpoint(
    path: Path,
    model: dict[str, Tensor],
    model_config: ModelConfig,
    train_config: TrainConfig,
    tokenizers: tuple[Path, Path],
    decoding: DecodingDefaults,
    state: TrainingState | None = None,
    origin: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint; it appears under its name only once it is complete.

    Args:
        path: the directory to make; one of that name is replaced.
        model: the weights by name.
        model_config: shape of the model.
        train_config: its recipe.
        tokenizers: SentencePiece files of source and target to copy in; may be the same.
        decoding: how it is used.
        state: what resuming needs; None for a checkpoint that is only to be used.
        origin: the checkpoint that its training began with, for the record.

    Raises:
        OutputError: the disk is full or not writable; what was there before is untouched.
    """
    models = tokenizers[0].read_bytes(), tokenizers[1].read_bytes()
    train = dataclasses.asdict(train_config) | ({"from": origin} if origin else {})
    with new_directory(path, force=True, kind=CHECKPOINT) as directory:
        _write(directory, model, model_config, train, models, decoding)
        if state is not None:
            state.save(directory / "training")


def _write(
    directory: Path,
    model: Mapping[str, Tensor],
    model_config: ModelConfig,
    train: dict[str, Any],
    tokenizers: tuple[bytes, bytes],
    decoding: DecodingDefaults,
) -> None:
    weights = {name: tensor.contiguous() for name, tensor in model.items()}
    save_file(weights, directory / WEIGHTS)
    paths = write_tokenizers(directory, tokenizers)
    config = {
        "format_version": FORMAT_VERSION,
        "model": dataclasses.asdict(model_config),
        "train": train,
        "tokenizers": tokenizer_names(paths),
        **decoding.to_json(),
        "sha256": file_hashes(directory / WEIGHTS, *paths),
    }
    text = json.dumps(config, indent=1, ensure_ascii=False)
    (directory / CONFIG).write_text(text + "\n", encoding="utf-8")


def save_imported(
    path: Path,
    model: Transformer,
    tokenizers: tuple[bytes, bytes],
    origin: dict[str, Any],
    search: dict[str, Any],
    prompt: Prompt,
    languages: tuple[str | None, str | None] = (None, None),
    force: bool = False,
    inputs: Sequence[Path] = (),
) -> None:
    """Write a checkpoint of a model that was trained elsewhere.

    Args:
        path: the directory to make.
        model: with its weights.
        tokenizers: SentencePiece models of source and target, as they are in files.
        origin: stands where the recipe does: `imported_from`, and `max_length` in tokens.
        search: options (`SearchOptions`) that it is best decoded with, by name.
        prompt: what stands before texts in its input and output.
        languages: source and target language codes, for the record.
        force: replace an imported checkpoint that is there.
        inputs: files and directories that it was read from.

    Raises:
        OutputError: there is one, or it is not apart from the inputs; the disk is full or not
            writable.
    """
    decoding = DecodingDefaults(*languages, search, prompt)
    with new_directory(path, force, kind=IMPORTED, inputs=inputs) as directory:
        _write(directory, model.state_dict(), model.config, origin, tokenizers, decoding)
