"""Run configuration (run.json)."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import CheckpointError, OptionError
from translate_trt.runtime.io.atomic_files import write_json
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import (
    Checkpoint,
    DecodingDefaults,
    named_tokenizers,
    open_checkpoint,
    tokenizer_names,
)
from translate_trt.train.config import (
    DROPOUTS,
    ModelConfig,
    TrainConfig,
    apply,
    check_trainable,
    config_from_json,
    preset,
    recipe,
)
from translate_trt.train.hashed_files import file_hashes, read_json

log = logging.getLogger("translate_trt")

SETTINGS = "run.json"

#: Search options that select the languages in which a multilingual model is fine-tuned.
LANGUAGES = ("source_language", "target_language")

#: Settings that a resumed run may change: they decide only when and how it ends.
MAY_CHANGE = ("steps", "cooldown_steps", "cooldown_shape", "patience")

# Name of the session in run.json.
_SESSION = "torchrun"
# Dropout for checkpoints without one, such as most imported models: that of `base` (section 5.4).
_DROPOUT = 0.1


@dataclass(frozen=True)
class Settings:
    """Content of run.json.

    Attributes:
        model: Shape of the model.
        train: Training recipe.
        tokenizers: SentencePiece models of source and target; None until the data is loaded.
        decoding: Decoding defaults of the run's checkpoints.
        origin: Checkpoint that the run fine-tunes: `path`, `sha256` of its weights, and the
            recipe that it was trained with (`train`).
        session: The torchrun that began or resumed the run (`torchrun_session`).
    """

    model: ModelConfig
    train: TrainConfig
    tokenizers: tuple[Path, Path] | None = None
    decoding: DecodingDefaults = field(default_factory=DecodingDefaults)
    origin: dict[str, Any] | None = None
    session: str | None = None

    def write(self, out: Path) -> None:
        """Write run.json into a directory that has the tokenizers.

        Raises:
            OutputError: The disk is full or not writable.
        """
        values = {
            "model": dataclasses.asdict(self.model),
            "train": dataclasses.asdict(self.train),
            **self.decoding.to_json(),
            **({} if self.origin is None else {"from": self.origin}),
            **({} if self.session is None else {_SESSION: self.session}),
        }
        if self.tokenizers is not None:
            values["tokenizers"] = tokenizer_names(self.tokenizers)
            values["sha256"] = file_hashes(*self.tokenizers)
        write_json(out / SETTINGS, values)


def read_session(out: Path) -> str | None:
    """Return the torchrun that began or resumed the run in a directory; None if none did."""
    try:
        return read_json(out / SETTINGS).get(_SESSION)
    except CheckpointError:  # there is no run, or a damaged one, which resuming reports
        return None


def end_session(out: Path) -> None:
    """Forget the torchrun of a run that has ended: another one may have its name.

    Raises:
        OutputError: run.json is not writable.
    """
    values = read_json(out / SETTINGS)
    if values.pop(_SESSION, None) is not None:
        write_json(out / SETTINGS, values)


def new_settings(preset_name: str, corpus: str | None, overrides: dict[str, Any]) -> Settings:
    """Make the settings of a run that begins with random weights.

    Args:
        preset_name: One of `PRESETS`, or a variation of one.
        corpus: Name of the corpus, if it has one.
        overrides: Fields of ModelConfig and TrainConfig by name.

    Raises:
        OptionError: A setting is out of range.
    """
    for name in LANGUAGES:
        if name in overrides:
            raise OptionError(
                f"{name} applies to fine-tuning a multilingual model with --from; leave it out."
            )
    chosen = preset(preset_name, corpus)
    model = apply(chosen.model, overrides)
    check_trainable(model)
    return Settings(model, apply(chosen.train, overrides))


def fine_tuning_settings(
    checkpoint: Checkpoint, recipe_name: str, corpus: str | None, overrides: dict[str, Any]
) -> Settings:
    """Make the settings of a run that fine-tunes a checkpoint.

    Shape, tokenizers and decoding defaults are the checkpoint's.

    Args:
        checkpoint: Checkpoint to begin with.
        recipe_name: "fine-tune", or a preset whose recipe is taken.
        corpus: Name of the corpus, if it has one.
        overrides: `DROPOUTS`, fields of TrainConfig, and LANGUAGES, by name.

    Raises:
        OptionError: A setting is out of range or would change the model's shape; a language is
            unknown to the model, or missing for a multilingual one.
        CheckpointError: The tokenizers do not fit the weights.
    """
    shape = {field.name for field in dataclasses.fields(ModelConfig)}.difference(DROPOUTS)
    changed = ["--" + name.replace("_", "-") for name in overrides if name in shape]
    if changed:
        raise OptionError(
            f"{', '.join(changed)}: with --from, the shape of the model is that of "
            f"{checkpoint.path}. Leave these options out; the dropout rates and the options of the "
            "recipe may be given."
        )
    _check_vocabularies(checkpoint)
    search = checkpoint.search | {name: overrides[name] for name in LANGUAGES if name in overrides}
    decoding = dataclasses.replace(checkpoint.decoding, search=search)
    checkpoint.check_languages(decoding.greedy)
    model = dataclasses.replace(checkpoint.model, dropout=checkpoint.model.dropout or _DROPOUT)
    return Settings(
        apply(model, overrides),
        apply(recipe(recipe_name, corpus), overrides),
        checkpoint.tokenizers,
        decoding,
        {
            "path": str(checkpoint.path),
            "sha256": checkpoint.weights_sha256,
            "train": checkpoint.train,
        },
    )


def resumed_settings(
    out: Path,
    overrides: dict[str, Any],
    start: Path | None = None,
    preset_name: str | None = None,
    corpus: str | None = None,
) -> Settings:
    """Read the settings of the run in `out`, of which only those of MAY_CHANGE may change.

    Args:
        out: Directory of the run.
        overrides: Fields of ModelConfig and TrainConfig by name.
        start: Checkpoint of --from, which must be the one that the run began with.
        preset_name: Preset or recipe that was asked for; a warning names settings in which the run
            differs from it.
        corpus: Name of the corpus, if it has one.

    Raises:
        CheckpointError: run.json is damaged.
        OptionError: A setting or the checkpoint differs from that of the run.
    """
    path = out / SETTINGS
    values = read_json(path)
    model = config_from_json(ModelConfig, values.get("model"), path)
    train = config_from_json(TrainConfig, values.get("train"), path)
    decoding = DecodingDefaults.read(path, values)
    before = {**dataclasses.asdict(model), **dataclasses.asdict(train)}
    before |= {name: decoding.search.get(name) for name in LANGUAGES}
    changed = [name for name in _differences(overrides, before, model) if name not in MAY_CHANGE]
    if changed:
        raise OptionError(
            f"a resumed run keeps its settings, but {', '.join(changed)} would change. "
            "Leave these options out, or start a new run."
        )
    origin = values.get("from")
    if start is not None:
        _check_origin(out, origin, start)
    if preset_name is not None:
        asked = vars(recipe(preset_name, corpus))
        if origin is None:
            asked = asked | vars(preset(preset_name, corpus).model)
        asked = {name: value for name, value in asked.items() if name not in overrides}
        kept = [
            f"{name} {before[name]} instead of {asked[name]}"
            for name in _differences(asked, before, model)
        ]
        if kept:
            log.warning(
                "the run in %s keeps its settings, some of which are not those of %s: %s. Of a "
                "resumed run, only %s can be changed.",
                out, preset_name, ", ".join(kept), ", ".join(MAY_CHANGE),
            )  # fmt: skip
    return Settings(
        model,
        apply(train, {k: v for k, v in overrides.items() if k in MAY_CHANGE}),
        named_tokenizers(path, values),
        decoding,
        origin,
    )


def _differences(asked: dict[str, Any], kept: dict[str, Any], model: ModelConfig) -> list[str]:
    """Return the names of the settings in which a run differs from what is asked for, sorted.

    Vocabularies may be smaller than requested and determine what is tied, and 0 micro_batch_tokens
    become a size that the run chooses.
    """
    if "tied" in asked:
        shape = dataclasses.replace(model, tied=asked["tied"], source_vocabulary_size=0)
        shape = shape.with_vocabularies(model.vocabulary_size, model.source_vocabulary_size)
        asked = asked | {"tied": shape.tied}
    chosen = ("vocabulary_size", "source_vocabulary_size")
    return sorted(
        name
        for name, value in asked.items()
        if value != kept[name] and name not in chosen and (name, value) != ("micro_batch_tokens", 0)
    )


def _check_origin(out: Path, origin: dict[str, Any] | None, start: Path) -> None:
    if origin is None or open_checkpoint(start).weights_sha256 != origin["sha256"]:
        began = "random weights" if origin is None else origin["path"]
        raise OptionError(
            f"the run in {out} began with {began}, not with --from {start}. Leave --from out to "
            "continue it, or choose another --output."
        )


def _check_vocabularies(checkpoint: Checkpoint) -> None:
    tokenizer, model = Tokenizer(*checkpoint.tokenizers), checkpoint.model
    for path, size, expected in zip(
        checkpoint.tokenizers,
        (tokenizer.source_vocabulary_size, tokenizer.vocabulary_size),
        (model.input_vocabulary_size, model.vocabulary_size),
        strict=True,
    ):
        if size != expected:
            raise CheckpointError(
                f"{path} has {size} tokens, but the model has {expected}; they do not belong "
                "together."
            )
