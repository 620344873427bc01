"""Checkpoints: directories of safetensors, JSON and tokenizers, written atomically.

run/
  checkpoint-00000000/        the initial model of a fine-tuning run
  checkpoint-00000500/        config.json model.safetensors tokenizer.spm
    training/                 optimizer.safetensors state.json   (for --resume)
  checkpoint-averaged/        the same three files; `translate-trt export run/` takes this one

Models with a tokenizer per language have source.spm and target.spm instead of tokenizer.spm.
Checkpoints may have a lexical shortlist, shortlist.safetensors. Imported checkpoints may have
recorded activation scales, activation_scales.json.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.bundle.term_annotation import TermAnnotation
from translate_trt.runtime.errors import BundleError, CheckpointError, OptionError
from translate_trt.runtime.interface.search_options import MAX_EXTRA_LENGTH
from translate_trt.runtime.io.atomic_files import new_directory
from translate_trt.runtime.io.outputs import Kind, object_in
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.activation_scales import parse_activation_scales, write_activation_scales
from translate_trt.train.config import (
    TOKENIZER,
    TOKENIZERS,
    ModelConfig,
    TrainConfig,
    config_from_json,
)
from translate_trt.train.hashed_files import (
    check_hash,
    file_hashes,
    hash_file,
    read_json,
    read_tensors,
    recorded_hashes,
    write_tensors,
)
from translate_trt.train.model import Transformer
from translate_trt.train.shortlist.table import Shortlist
from translate_trt.train.training_state import TrainingState

FORMAT_VERSION = 1
AVERAGED = "checkpoint-averaged"
BEST = "checkpoint-best"
PREFIX = "checkpoint-"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHORTLIST = "shortlist.safetensors"
ACTIVATION_SCALES = "activation_scales.json"


def checkpoint_files(directory: Path) -> set[str] | None:
    """Return the relative paths of a checkpoint's files; None if there is no checkpoint."""
    return CHECKPOINT_FILES if _recipe(directory) is not None else None


def imported_files(directory: Path) -> set[str] | None:
    """Return `checkpoint_files` of an imported checkpoint; None for other directories."""
    return CHECKPOINT_FILES if "imported_from" in (_recipe(directory) or {}) else None


def _recipe(directory: Path) -> dict[str, Any] | None:
    """Return the `train` section of a checkpoint's config.json; None if there is no checkpoint."""
    values = object_in(directory / CONFIG)
    if isinstance(values.get("format_version"), int) and isinstance(values.get("model"), dict):
        recipe = values.get("train")
        return recipe if isinstance(recipe, dict) else None
    return None


#: Relative paths of all files that a checkpoint may have.
CHECKPOINT_FILES = {
    CONFIG,
    WEIGHTS,
    TOKENIZER,
    *TOKENIZERS,
    SHORTLIST,
    ACTIVATION_SCALES,
    "training/optimizer.safetensors",
    "training/state.json",
}

#: Outputs that --force may replace.
CHECKPOINT = Kind("checkpoint", "translate-trt train", checkpoint_files)
# A numbered checkpoint of a run, whose config.json may be damaged: it is written again.
_NUMBERED = Kind("checkpoint", "translate-trt train", lambda _: CHECKPOINT_FILES)
IMPORTED = Kind("imported checkpoint", "translate-trt import", imported_files)


@dataclass(frozen=True)
class DecodingDefaults:
    """Decoding defaults of a model.

    config.json and run.json record the fields by name. Fine-tuning keeps them.

    Attributes:
        source_language: Code of the source language, where known.
        target_language: Code of the target language, where known.
        search: Recommended search options (`SearchOptions`) by name.
        prompt: Control tokens before source and target.
        alignment_heads: Cross-attention that aligns source and target best, where known.
        term_annotation: Annotation of source text that the model was trained with; None for none.
    """

    source_language: str | None = None
    target_language: str | None = None
    search: dict[str, Any] = field(default_factory=dict)
    prompt: Prompt = field(default_factory=Prompt)
    alignment_heads: AttentionHeads | None = None
    term_annotation: TermAnnotation | None = None

    @classmethod
    def read(cls, path: Path, values: dict[str, Any]) -> DecodingDefaults:
        """Read the fields from the values of a config.json or run.json.

        Raises:
            CheckpointError: A field is missing, or the prompt, the alignment heads or the
                annotation are damaged.
        """
        try:
            found = {field.name: values[field.name] for field in dataclasses.fields(cls)}
            for name, kind in (
                ("prompt", Prompt),
                ("alignment_heads", AttentionHeads),
                ("term_annotation", TermAnnotation),
            ):
                if found[name] is not None:
                    found[name] = kind.from_json(Fields(found[name], path, name))
        except BundleError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        except KeyError as error:
            raise CheckpointError(f"{path} lacks the field {error}; it is damaged.") from error
        return cls(**found)

    @property
    def greedy(self) -> SearchOptions:
        """Greedy search with the model's default languages and maximum length."""
        return SearchOptions(
            beam_size=1,
            source_language=self.search.get("source_language"),
            target_language=self.search.get("target_language"),
            max_extra_length=self.search.get("max_extra_length", MAX_EXTRA_LENGTH),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as `read` expects them."""
        parts = ("prompt", "alignment_heads", "term_annotation")
        found = {name: getattr(self, name) for name in parts}
        return vars(self) | {
            name: None if part is None else part.to_json() for name, part in found.items()
        }


@dataclass(frozen=True, kw_only=True)
class Checkpoint(DecodingDefaults):
    """Trained model on disk; the weights are not loaded.

    Attributes:
        path: Directory of the checkpoint.
        model: Shape of the model.
        train: Training recipe, for the record.
        tokenizers: SentencePiece models of source and target; may be the same file.
    """

    path: Path
    model: ModelConfig
    train: dict[str, Any]
    tokenizers: tuple[Path, Path]

    @property
    def decoding(self) -> DecodingDefaults:
        """The decoding defaults without path, model and tokenizers."""
        return DecodingDefaults(
            **{x.name: getattr(self, x.name) for x in dataclasses.fields(DecodingDefaults)}
        )

    @property
    def tokenizer(self) -> Path:
        """SentencePiece model shared by both languages.

        Raises:
            CheckpointError: Source and target have different vocabularies.
        """
        source, target = self.tokenizers
        if source != target:
            raise CheckpointError(
                f"{self.path} has a vocabulary for each language, {source.name} and "
                f"{target.name}, but a shared vocabulary is required here."
            )
        return source

    def search_options(self) -> SearchOptions:
        """Return the recommended search options.

        Raises:
            CheckpointError: config.json has invalid or unknown options.
        """
        try:
            return SearchOptions(**self.search)
        except (TypeError, OptionError) as error:
            raise CheckpointError(
                f"{self.path / CONFIG}: the field 'search' is damaged: {error}"
            ) from error

    def check_languages(self, options: SearchOptions) -> None:
        """Check the languages of search options (`Prompt.check`)."""
        self.prompt.check(options, (self.source_language, self.target_language))

    def load_model(self) -> Transformer:
        """Load the model with its weights, in evaluation mode.

        Raises:
            CheckpointError: The weights are missing, damaged or of another shape.
        """
        model = Transformer(self.model)
        load_weights(model, self.path)
        return model.eval()

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights file, computed on each access.

        Raises:
            CheckpointError: The file is missing.
        """
        return hash_file(self.path / WEIGHTS)

    @property
    def shortlist(self) -> Path | None:
        """File of the model's lexical shortlist, if the checkpoint has one."""
        path = self.path / SHORTLIST
        return path if path.is_file() else None

    def load_activation_scales(self, model: Transformer) -> dict[str, float] | None:
        """Load the recorded activation scales (activation_scales.py), if the checkpoint has them.

        Args:
            model: The model of the checkpoint.

        Returns:
            The largest magnitude of the input of each matmul by name; None if config.json lists no
            file of them.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        config, path = self.path / CONFIG, self.path / ACTIVATION_SCALES
        sha256 = recorded_hashes(config, read_json(config)).get(ACTIVATION_SCALES)
        if sha256 is None:
            return None
        check_hash(path, sha256)
        return parse_activation_scales(path, read_json(path), model)


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint by name, checked against the hash in its config.json.

    Raises:
        CheckpointError: The weights are missing, damaged or non-finite.
    """
    config = checkpoint / CONFIG
    hashes = recorded_hashes(config, read_json(config), WEIGHTS)
    return read_tensors(checkpoint / WEIGHTS, hashes[WEIGHTS])


def load_weights(model: Transformer, checkpoint: Path) -> None:
    """Load the weights of a checkpoint into a model of the same configuration.

    Raises:
        CheckpointError: The weights are damaged, or a tensor is missing, unknown or of another
            shape.
    """
    try:
        model.load_state_dict(read_weights(checkpoint))
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint / WEIGHTS} does not fit its configuration: {error}"
        ) from error


def numbered_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run by ascending step, without the averaged and the best one."""
    found = (path for path in run.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdecimal())
    return sorted((path for path in found if path.is_dir()), key=step_of)


def selected_scores(run: Path) -> dict[str, Any] | None:
    """Return the step and the validation scores of a run's best checkpoint, if it has one."""
    selected = (_recipe(run / BEST) or {}).get("selected")
    return selected if isinstance(selected, dict) else None


def step_of(checkpoint: Path) -> int:
    """Return the step of a numbered checkpoint; 0 is the initial model of a fine-tuning run."""
    return int(checkpoint.name[len(PREFIX) :])


def find_checkpoint(path: Path) -> Path:
    """Resolve a path: a checkpoint itself, or a run's averaged checkpoint, or its latest one.

    Raises:
        CheckpointError: The path holds no checkpoint.
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
            f"{path} is a bundle and holds no checkpoint; give the checkpoint that the bundle was "
            "exported from."
        )
    raise CheckpointError(
        f"{path} holds no checkpoint: neither config.json, nor {AVERAGED}/, nor {PREFIX}<step>/. "
        "Give the --output directory of `translate-trt train`, or a checkpoint inside it."
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint, or the averaged or latest one of a run, without loading its weights.

    Raises:
        CheckpointError: The path holds no checkpoint, or one of another format.
    """
    path = find_checkpoint(path)
    values = read_json(path / CONFIG)
    if "format_version" not in values:
        raise CheckpointError(
            f"{path} holds no checkpoint of translate-trt, but perhaps a model of another toolkit. "
            "Convert such a model with: translate-trt import"
        )
    version = values["format_version"]
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {version}; this version reads {FORMAT_VERSION}. Upgrade "
            "translate-trt, or train or import the model again."
        )
    file = path / CONFIG
    return Checkpoint(
        **vars(DecodingDefaults.read(file, values)),
        path=path,
        model=config_from_json(ModelConfig, values.get("model"), file),
        train=values["train"],
        tokenizers=named_tokenizers(file, values),
    )


def named_tokenizers(path: Path, values: Mapping[str, Any]) -> tuple[Path, Path]:
    """Return the tokenizers of source and target that a config.json or run.json names.

    Args:
        path: Path of the JSON file, in the directory of the tokenizers.
        values: Its content.

    Raises:
        CheckpointError: A tokenizer is not named, missing or damaged.
    """
    try:
        names = values["tokenizers"]
        source, target = str(names["source"]), str(names["target"])
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} is damaged: its field 'tokenizers' lacks source or target."
        ) from error
    if {Path(name).name for name in (source, target)} != {source, target}:
        raise CheckpointError(f"{path} names tokenizers outside its directory.")
    hashes = recorded_hashes(path, values, source, target)
    for name in (source, target):
        check_hash(path.with_name(name), hashes[name])
    return path.with_name(source), path.with_name(target)


def tokenizer_names(tokenizers: tuple[Path, Path]) -> dict[str, str]:
    """Return the field `tokenizers` of config.json and run.json, as `named_tokenizers` reads it."""
    return {"source": tokenizers[0].name, "target": tokenizers[1].name}


def write_tokenizers(directory: Path, models: tuple[bytes, bytes]) -> tuple[Path, Path]:
    """Write the tokenizers of source and target, as one file if equal, and return their paths."""
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
    selected: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint atomically.

    Args:
        path: Directory to create or replace.
        model: Weights by name.
        model_config: Shape of the model.
        train_config: Training recipe.
        tokenizers: SentencePiece models of source and target to copy; may be the same file.
        decoding: Decoding defaults.
        state: Training state for resuming; None for a checkpoint that is not resumed.
        origin: Checkpoint that the training began with, for the record.
        selected: Step and validation scores of the best checkpoint (`selected_scores`).

    Raises:
        OutputError: The disk is full or not writable; an existing checkpoint is untouched.
    """
    models = tokenizers[0].read_bytes(), tokenizers[1].read_bytes()
    train = dataclasses.asdict(train_config)
    train |= {"from": origin} if origin else {}
    train |= {"selected": selected} if selected else {}
    kind = CHECKPOINT if state is None else _NUMBERED
    with new_directory(path, force=True, kind=kind) as directory:
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
    activation_scales: Mapping[str, float] | None = None,
) -> None:
    write_tensors(directory / WEIGHTS, {key: tensor.contiguous() for key, tensor in model.items()})
    paths = write_tokenizers(directory, tokenizers)
    hashed = [directory / WEIGHTS, *paths]
    if activation_scales is not None:
        hashed.append(directory / ACTIVATION_SCALES)
        write_activation_scales(hashed[-1], activation_scales)
    config = {
        "format_version": FORMAT_VERSION,
        "model": dataclasses.asdict(model_config),
        "train": train,
        "tokenizers": tokenizer_names(paths),
        **decoding.to_json(),
        "sha256": file_hashes(*hashed),
    }
    text = json.dumps(config, indent=1, ensure_ascii=False)
    (directory / CONFIG).write_text(text + "\n", encoding="utf-8")


def save_imported(
    path: Path,
    model: Transformer,
    tokenizers: tuple[bytes, bytes],
    origin: dict[str, Any],
    decoding: DecodingDefaults,
    force: bool = False,
    inputs: Sequence[Path] = (),
    shortlist: Shortlist | None = None,
    activation_scales: Mapping[str, float] | None = None,
) -> None:
    """Write a checkpoint of an imported model.

    Args:
        path: Directory to create.
        model: Model with its weights.
        tokenizers: Contents of the SentencePiece models of source and target.
        origin: Recorded instead of a recipe: `imported_from`, and `max_length` in tokens.
        decoding: Decoding defaults.
        force: Replace an existing imported checkpoint.
        inputs: Files and directories that the model was read from.
        shortlist: Lexical shortlist of the model.
        activation_scales: Largest magnitude of the input of each matmul, by the names of
            `matmul_weights` (activation_scales.py), for a model that keeps recorded ones.

    Raises:
        OutputError: The directory exists or overlaps the inputs, or the disk is full or not
            writable.
    """
    with new_directory(path, force, kind=IMPORTED, inputs=inputs) as directory:
        _write(
            directory, model.state_dict(), model.config, origin, tokenizers, decoding,
            activation_scales,
        )  # fmt: skip
        if shortlist is not None:
            shortlist.save(directory / SHORTLIST)
