"""What a model is and how it is trained: two frozen objects and one table of presets."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from translate_trt.runtime.errors import CheckpointError, OptionError

# Ids of the special pieces, fixed when train/tokenizer.py trains a vocabulary.
PAD, UNKNOWN, START, END = 0, 1, 2, 3


def _setting(default: Any, description: str) -> Any:
    """A field with the sentence that `translate-trt train --help` prints for it."""
    return dataclasses.field(default=default, metadata={"help": description})


def _at_least(config: Any, least: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise OptionError(f"{name} is {getattr(config, name)}; it must be at least {least}.")


def _positive(config: Any, *names: str) -> None:
    for name in names:
        if not 0.0 < getattr(config, name) < math.inf:
            raise OptionError(f"{name} is {getattr(config, name)}; it must be greater than 0.")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Transformer, in the letters of the paper's Table 3. Defaults are `base`."""

    vocabulary_size: int = _setting(37_000, "V: pieces shared by source, target and output.")
    encoder_layers: int = _setting(6, "N of the encoder.")
    decoder_layers: int = _setting(6, "N of the decoder.")
    d_model: int = _setting(512, "Width of every layer's input and output.")
    d_ff: int = _setting(2048, "Inner width of the feed-forward layers.")
    heads: int = _setting(8, "h: attention heads, of d_model / h columns each.")
    dropout: float = _setting(0.1, "P_drop, on each sub-layer's output and the embedding sums.")
    layer_norm_epsilon: float = _setting(1e-5, "Added to the variance in LayerNorm.")

    def __post_init__(self) -> None:
        _at_least(self, 1, "vocabulary_size", "encoder_layers", "decoder_layers")
        _at_least(self, 1, "d_model", "d_ff", "heads")
        _positive(self, "layer_norm_epsilon")
        if self.d_model % self.heads:
            raise OptionError(
                f"d_model {self.d_model} is not a multiple of heads {self.heads}; "
                "each head takes d_model / heads columns."
            )
        if self.d_model % 2:
            raise OptionError(
                f"d_model {self.d_model} is odd; positions come in sine-cosine pairs."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise OptionError(f"dropout {self.dropout} is outside [0, 1).")

    @property
    def head_size(self) -> int:
        """D, the columns of one head."""
        return self.d_model // self.heads


@dataclass(frozen=True)
class TrainConfig:
    """The recipe. Defaults are the paper's (sections 5.1 to 5.4 and 6.1) for `base`."""

    # ---- batches ----
    batch_tokens: int = _setting(
        25_000, "Source and target tokens per optimizer step, padding included, at most."
    )
    micro_batch_tokens: int = _setting(
        4_096, "Tokens per forward pass; gradients accumulate up to --batch-tokens."
    )
    max_length: int = _setting(
        256, "Pairs with a longer side, in tokens, are left out (and counted)."
    )
    seed: int = _setting(1, "Of the initial weights, the order of batches and dropout.")

    # ---- optimizer: Adam with the schedule of equation 3 ----
    steps: int = _setting(100_000, "Optimizer steps.")
    warmup_steps: int = _setting(4_000, "Steps during which the learning rate grows.")
    learning_rate_scale: float = _setting(1.0, "Multiplies the learning rate of equation 3.")
    adam_beta1: float = _setting(0.9, "Decay of Adam's mean.")
    adam_beta2: float = _setting(0.98, "Decay of Adam's variance.")
    adam_epsilon: float = _setting(1e-9, "Added to Adam's denominator.")
    label_smoothing: float = _setting(0.1, "Share of the target spread over the vocabulary.")
    precision: str = _setting(
        "auto", "fp32, bf16, or auto: bf16 where the processor multiplies in it."
    )

    # ---- what is kept and looked at ----
    checkpoint_every: int = _setting(1_500, "Steps between checkpoints.")
    average_checkpoints: int = _setting(5, "So many of the last checkpoints are kept and averaged.")
    validate_every: int = _setting(1_500, "Steps between validations; 0: only at the end.")
    log_every: int = _setting(50, "Steps between lines of training.jsonl.")

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_tokens", "micro_batch_tokens", "max_length")
        _at_least(self, 1, "steps", "warmup_steps")
        _at_least(self, 1, "checkpoint_every", "average_checkpoints", "log_every")
        _at_least(self, 0, "seed", "validate_every")
        _positive(self, "learning_rate_scale", "adam_epsilon")
        for name in ("adam_beta1", "adam_beta2", "label_smoothing"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise OptionError(f"{name} {getattr(self, name)} is outside [0, 1).")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise OptionError(f"precision {self.precision!r}: choose auto, fp32 or bf16.")


Config = TypeVar("Config", ModelConfig, TrainConfig)


@dataclass(frozen=True)
class Preset:
    """A model and its recipe."""

    model: ModelConfig
    train: TrainConfig


def _preset(model: dict[str, Any], train: dict[str, Any]) -> Preset:
    return Preset(ModelConfig(**model), TrainConfig(**train))


#: One line of differences from the paper's `base` each.
PRESETS: dict[str, Preset] = {
    "tiny": _preset(
        {"vocabulary_size": 2_000, "encoder_layers": 2, "decoder_layers": 2, "d_model": 128}
        | {"d_ff": 512, "heads": 4},
        {"batch_tokens": 2_048, "steps": 1_200, "warmup_steps": 300, "checkpoint_every": 100}
        | {"validate_every": 400, "log_every": 20, "learning_rate_scale": 0.8},
    ),
    "small": _preset(
        {"vocabulary_size": 8_000, "encoder_layers": 3, "decoder_layers": 3, "d_model": 256}
        | {"d_ff": 1_024, "heads": 4, "dropout": 0.2},
        {"batch_tokens": 4_096, "steps": 2_000, "warmup_steps": 800, "checkpoint_every": 100}
        | {"validate_every": 500, "log_every": 20},
    ),
    "base": _preset({}, {}),
    "big": _preset(
        {"d_model": 1_024, "d_ff": 4_096, "heads": 16, "dropout": 0.3},
        {"steps": 300_000, "average_checkpoints": 20},
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        OptionError: there is none; the message lists them.
    """
    if name not in PRESETS:
        raise OptionError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def config_from_json(kind: type[Config], values: object, path: Path) -> Config:
    """A configuration read back from a run or a checkpoint.

    Args:
        kind: which of the two.
        values: its fields.
        path: the file they were read from, for the message.

    Raises:
        CheckpointError: a field this version does not know, one that is missing or out of range.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: the {kind.__name__} is no JSON object; it is damaged.")
    known = {field.name for field in dataclasses.fields(kind)}
    if set(values) != known:
        raise CheckpointError(
            f"{path}: the {kind.__name__} has unknown fields {sorted(set(values) - known)} and "
            f"lacks {sorted(known - set(values))}; the checkpoint was made by another version."
        )
    try:
        return kind(**values)
    except (OptionError, TypeError) as error:
        raise CheckpointError(f"{path}: the {kind.__name__} is damaged: {error}") from error
