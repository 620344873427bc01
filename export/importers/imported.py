"""What every importer gives, and what several of them need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError
from translate_trt.train.checkpoint import save_imported
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer, sinusoid

# A table of sinusoids is one that another toolkit computed, in float32 at the least.
_SINUSOID_TOLERANCE = 1e-4
# Where tables of sinusoids begin, as far as is known (fairseq: 2).
_FIRST_POSITIONS = range(4)


@dataclass(frozen=True)
class Imported:
    """A model of another toolkit.

    Attributes:
        model: with its weights, in evaluation mode.
        tokenizers: SentencePiece models of source and target; equal where both share one.
        origin: the toolkit's name, for the record.
        search: what it is best decoded with, by the names of `SearchOptions`.
        prompt: what stands before texts in its input and output.
    """

    model: Transformer
    tokenizers: tuple[bytes, bytes]
    origin: str
    search: dict[str, Any]
    prompt: Prompt = field(default_factory=Prompt)

    def save(
        self,
        path: Path,
        languages: tuple[str | None, str | None],
        force: bool = False,
        inputs: Sequence[Path] = (),
    ) -> None:
        """Write it as a checkpoint.

        Raises:
            OutputError: there is one and `force` is not set, or it is not apart from the `inputs`
                that the model was read from; the disk is full or not writable.
        """
        origin = {"imported_from": self.origin}
        save_imported(
            path, self.model, self.tokenizers, origin, self.search, self.prompt, languages, force,
            inputs,
        )  # fmt: skip


def find_file(directory: Path, names: Sequence[str]) -> Path | None:
    """The first file of these names that the directory has."""
    found = (directory / name for name in names)
    return next((path for path in found if path.is_file()), None)


def build_model(config: ModelConfig, weights: Mapping[str, Tensor], path: Path) -> Transformer:
    """The model of that configuration with its weights, in evaluation mode.

    Args:
        config: of the model.
        weights: by their names in `Transformer`.
        path: where they are from, for messages.

    Raises:
        InputError: they are not of the configuration's shapes, or not finite.
    """
    with torch.device("meta"):  # shapes alone, before memory is taken for declared sizes
        own = Transformer(config).state_dict()
    for name in sorted(set(own) ^ set(weights)):
        raise InputError(f"{path}: there is {'no' if name in own else 'a'} {name} in the model.")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            raise InputError(
                f"{path}: {name} has shape {list(tensor.shape)}, and {list(own[name].shape)} is "
                "what the model's other sizes make of it; models with heads of another size, or "
                "with fewer heads for keys and values, are not represented."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"{path}: {name} has values that are not finite (NaN or infinity): its training "
                "diverged, or the file is damaged. Take an earlier checkpoint, or copy it again."
            )
    model = Transformer(config)
    model.load_state_dict(dict(weights))
    return model.eval()


@dataclass(frozen=True)
class ModelPart:
    """How a model knows positions: fields of `ModelConfig`, and weights."""

    fields: dict[str, Any]
    weights: dict[str, Tensor]


def read_positions(source: Tensor, target: Tensor) -> ModelPart:
    """From the two tables [positions, d_model]; sinusoids have no end then.

    Args:
        source: of the encoder.
        target: of the decoder.
    """
    fields = _sinusoids(source)
    if fields is not None and fields == _sinusoids(target):
        return ModelPart(fields, {})
    count = min(len(source), len(target))
    weights = {"positions.table": source[:count]}
    own = not torch.equal(source[:count], target[:count])
    if own:
        weights["own_target_positions.table"] = target[:count]
    learned = {"positions": "learned", "max_positions": count, "own_target_positions": own}
    return ModelPart(learned, weights)


def _sinusoids(table: Tensor) -> dict[str, Any] | None:
    """Which sinusoids a table holds; None: it holds others."""
    count, width = table.shape
    for kind in ("interleaved", "concatenated", "tensor2tensor"):
        for first in _FIRST_POSITIONS if width >= 4 else ():
            expected = sinusoid(first + torch.arange(count), width, kind)
            if torch.allclose(table, expected, rtol=0, atol=_SINUSOID_TOLERANCE):
                return {"sinusoid": kind, "first_position": first}
    return None
