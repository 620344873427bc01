"""What a run is beside its text: the model, the recipe, and what both began with; its run.json."""

from __future__ import annotations

import dataclasses
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
    ModelConfig,
    TrainConfig,
    apply,
    check_trainable,
    config_from_json,
    preset,
    recipe,
)
from translate_trt.train.hashed_files import file_hashes, read_json

SETTINGS = "run.json"

#: Of `SearchOptions`; what a model of several is fine-tuned in, and is used for by default then.
LANGUAGES = ("source_language", "target_language")

# Of models that say none, such as most imported ones: the paper's for `base` (section 5.4).
_DROPOUT = 0.1


@dataclass(frozen=True)
class Settings:
    """What run.json says.

    Attributes:
        model: its shape.
        train: its recipe.
        tokenizers: of source and target; None: the text has yet to give them.
        decoding: how its checkpoints are used.
        origin: of a run that fine-tunes, the checkpoint it began with: `path`, `sha256` of its
            weights, and what it said of its own training (`train`).
    """

    model: ModelConfig
    train: TrainConfig
    tokenizers: tuple[Path, Path] | None = None
    decoding: DecodingDefaults = field(default_factory=DecodingDefaults)
    origin: dict[str, Any] | None = None

    def write(self, out: Path) -> None:
        """Write run.json into that directory, where the tokenizers lie.

        Raises:
            OutputError: the disk is full or not writable.
        """
        values = {
            "model": dataclasses.asdict(self.model),
            "train": dataclasses.asdict(self.train),
            **self.decoding.to_json(),
            **({} if self.origin is None else {"from": self.origin}),
        }
        if self.tokenizers is not None:
            values["tokenizers"] = tokenizer_names(self.tokenizers)
            values["sha256"] = file_hashes(*self.tokenizers)
        write_json(out / SETTINGS, values)


def new_settings(preset_name: str, corpus: str | None, overrides: dict[str, Any]) -> Settings:
    """Of a run that begins with random weights.

    Args:
        preset_name: one of `PRESETS`, or a variation of one.
        corpus: what is trained on, if it has a name.
        overrides: fields of ModelConfig and TrainConfig by name.

    Raises:
        OptionError: a setting out of range.
    """
    for name in LANGUAGES:
        if name in overrides:
            raise OptionError(
                f"{name} is for models of several languages that --from continues to train; "
                "leave it out."
            )
    chosen = preset(preset_name, corpus)
    model = apply(chosen.model, overrides)
    check_trainable(model)
    return Settings(model, apply(chosen.train, overrides))


def fine_tuning_settings(
    checkpoint: Checkpoint, recipe_name: str, corpus: str | None, overrides: dict[str, Any]
) -> Settings:
    """Of a run that begins with a checkpoint: its shape, its tokenizers and its decoding.

    Args:
        checkpoint: to begin with.
        recipe_name: "fine-tune", or a preset, whose recipe is taken.
        corpus: what is trained on, if it has a name.
        overrides: `dropout`, fields of TrainConfig, and LANGUAGES, by name.

    Raises:
        OptionError: a setting out of range, or one that would change the model's shape; the model
            does not know a language, or is of several and nobody says which.
        CheckpointError: its tokenizers are not those of its weights.
    """
    shape = {one.name for one in dataclasses.fields(ModelConfig)} - {"dropout"}
    changed = ["--" + name.replace("_", "-") for name in overrides if name in shape]
    if changed:
        raise OptionError(
            f"{', '.join(changed)}: with --from, the model is {checkpoint.path} as it is. Leave "
            "such options out; --dropout and those of the recipe may be given."
        )
    _check_vocabularies(checkpoint)
    search = checkpoint.search | {name: overrides[name] for name in LANGUAGES if name in overrides}
    decoding = dataclasses.replace(checkpoint.decoding, search=search)
    checkpoint.check_languages(decoding.greedy)
    dropout = overrides.get("dropout", checkpoint.model.dropout or _DROPOUT)
    return Settings(
        dataclasses.replace(checkpoint.model, dropout=dropout),
        apply(recipe(recipe_name, corpus), overrides),
        checkpoint.tokenizers,
        decoding,
        {
            "path": str(checkpoint.path),
            "sha256": checkpoint.weights_sha256,
            "train": checkpoint.train,
        },
    )


def resumed_settings(out: Path, overrides: dict[str, Any], start: Path | None = None) -> Settings:
    """Those that the run in `out` began with; only `steps` may change.

    Args:
        out: directory of the run.
        overrides: fields of ModelConfig and TrainConfig by name.
        start: the checkpoint it is said to have begun with; None: nothing is said.

    Raises:
        CheckpointError: run.json is damaged.
        OptionError: a setting, or the checkpoint, is another.
    """
    path = out / SETTINGS
    values = read_json(path)
    model = config_from_json(ModelConfig, values.get("model"), path)
    train = config_from_json(TrainConfig, values.get("train"), path)
    decoding = DecodingDefaults.read(path, values)
    before = {**dataclasses.asdict(model), **dataclasses.asdict(train)}
    before |= {name: decoding.search.get(name) for name in LANGUAGES}
    changed = [
        name for name, value in overrides.items() if name != "steps" and value != before[name]
    ]
    # The vocabulary may have come out smaller than it was asked for.
    changed = [name for name in changed if name != "vocabulary_size"]
    if changed:
        raise OptionError(
            f"a resumed run keeps its settings; {', '.join(sorted(changed))} would change. "
            "Leave these options out, or start a new run."
        )
    origin = values.get("from")
    if start is not None:
        _check_origin(out, origin, start)
    return Settings(
        model,
        apply(train, {k: v for k, v in overrides.items() if k == "steps"}),
        named_tokenizers(path, values),
        decoding,
        origin,
    )


def _check_origin(out: Path, origin: dict[str, Any] | None, start: Path) -> None:
    if origin is None or open_checkpoint(start).weights_sha256 != origin.get("sha256"):
        began = "random weights" if origin is None else origin.get("path")
        raise OptionError(
            f"the run in {out} began with {began}, not with --from {start}. Leave --from out to "
            "continue it, or choose another --output."
        )


def _check_vocabularies(checkpoint: Checkpoint) -> None:
    tokenizer, model = Tokenizer(*checkpoint.tokenizers), checkpoint.model
    for path, pieces, expected in zip(
        checkpoint.tokenizers,
        (tokenizer.source_vocabulary_size, tokenizer.vocabulary_size),
        (model.source_pieces, model.vocabulary_size),
        strict=True,
    ):
        if pieces != expected:
            raise CheckpointError(
                f"{path} has {pieces} pieces and the model {expected}; they do not belong together."
            )
