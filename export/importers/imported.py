"""Result of every importer, and helpers that importers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions, whole_number
from translate_trt.train.checkpoint import DecodingDefaults, save_imported
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer, sinusoid
from translate_trt.train.shortlist.table import Shortlist

# Users of models of unknown training meet loops first: whole lines of one repeated phrase.
_SEARCH = {"loop_guard": True}

# Other toolkits compute their sinusoids in float32 or better.
_SINUSOID_TOLERANCE = 1e-4
# First positions to try; known toolkits use 0, 1 and 2 (fairseq).
_FIRST_POSITIONS = range(4)


@dataclass(frozen=True)
class Imported:
    """Imported model.

    Attributes:
        model: The model in evaluation mode.
        tokenizers: SentencePiece models of source and target; equal for a shared tokenizer.
        origin: Name of the toolkit, recorded in the checkpoint.
        search: Decoding defaults of the toolkit as fields of `SearchOptions`.
        prompt: Tokens before source and target texts.
        shortlist: Lexical shortlist of the model, if it has one.
        activation_scales: Largest magnitude of the input of each matmul, by the names of
            `matmul_weights` (train/activation_scales.py), if the import keeps recorded ones.
        alignment_heads: Cross-attention that the toolkit takes alignments from, in this model.
        languages: Codes of source and target that the files name.
    """

    model: Transformer
    tokenizers: tuple[bytes, bytes]
    origin: str
    search: dict[str, Any]
    prompt: Prompt = field(default_factory=Prompt)
    shortlist: Shortlist | None = None
    activation_scales: Mapping[str, float] | None = None
    alignment_heads: AttentionHeads | None = None
    languages: tuple[str | None, str | None] = (None, None)

    def save(
        self,
        path: Path,
        languages: tuple[str | None, str | None],
        force: bool = False,
        inputs: Sequence[Path] = (),
    ) -> None:
        """Write the model as a checkpoint; given languages replace those of the files.

        Raises:
            OutputError: `path` exists and `force` is not set, `path` overlaps the `inputs` that
                the model was read from, or writing fails.
        """
        search = _SEARCH | self.search
        source, target = (a or b for a, b in zip(languages, self.languages, strict=True))
        save_imported(
            path, self.model, self.tokenizers, {"imported_from": self.origin},
            DecodingDefaults(source, target, search, self.prompt, self.alignment_heads), force,
            inputs, self.shortlist, self.activation_scales,
        )  # fmt: skip


def check_search(path: Path, search: dict[str, Any]) -> dict[str, Any]:
    """Return decoding defaults after a check.

    Args:
        path: File of the settings, for error messages.
        search: Fields of `SearchOptions`.

    Raises:
        InputError: A value is not supported.
    """
    try:
        SearchOptions(**search)
    except OptionError as error:
        raise InputError(f"{path}: its decoding settings are not supported: {error}") from error
    return search


def first_heads(path: Path, config: ModelConfig, layer: int, count: object) -> AttentionHeads:
    """Return the first heads of a layer, as the settings of a model name them.

    Args:
        path: Path of the model, for error messages.
        config: Configuration of the model.
        layer: Index of the decoder layer; negative from the end.
        count: Number of heads; 0 or None for all.

    Raises:
        InputError: The model has no such layer or not so many heads.
    """
    try:
        number = 0 if count is None else whole_number("alignment_heads", count)
        heads = range(min(number, config.heads + 1))  # `within` refuses one too many
        return AttentionHeads(layer, tuple(heads)).within(config.decoder_layers, config.heads)
    except OptionError as error:
        raise InputError(
            f"{path}: the settings alignment_layer and alignment_heads do not fit the model: "
            f"{error}"
        ) from error


def build_model(config: ModelConfig, weights: Mapping[str, Tensor], path: Path) -> Transformer:
    """Build a model from its configuration and weights, in evaluation mode.

    Args:
        config: Configuration of the model.
        weights: Weights by their names in `Transformer`.
        path: Origin of the weights, for error messages.

    Raises:
        InputError: Weights are missing, have the wrong shape, or are not finite.
    """
    # On the meta device, so that a damaged file cannot exhaust memory by the sizes it declares.
    try:
        with torch.device("meta"):
            expected = Transformer(config).state_dict()
    except (RuntimeError, TypeError, OverflowError) as error:
        raise InputError(
            f"{path}: the settings declare sizes that no tensor can have; the file is damaged."
        ) from error
    for name in sorted(set(expected) ^ set(weights)):
        problem = "is missing from" if name in expected else "is unexpected in"
        raise InputError(f"{path}: {name} {problem} the model.")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise InputError(
                f"{path}: {name} has shape {list(tensor.shape)}, but the model's other sizes "
                f"require {list(expected[name].shape)}; another head size and grouped or "
                "multi-query attention are not supported."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"{path}: {name} contains NaN or infinity: training diverged, or the file is "
                "damaged. Import an earlier checkpoint, or copy the file again."
            )
    model = Transformer(config)
    model.load_state_dict(dict(weights))
    return model.eval()


@dataclass(frozen=True)
class ModelPart:
    """Part of a model: fields of `ModelConfig`, and weights by their names in `Transformer`."""

    fields: dict[str, Any]
    weights: dict[str, Tensor]


def read_positions(source: Tensor, target: Tensor) -> ModelPart:
    """Read the two position tables [positions, d_model].

    Tables of sinusoids are recognized and computed, so they do not limit the length.

    Args:
        source: Table of the encoder.
        target: Table of the decoder.
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


def relative_positions(path: Path, most: int, source: Tensor, target: Tensor) -> ModelPart:
    """Convert biases of attention scores by buckets of distances (T5) to one per distance.

    Half of the buckets of a direction are distances by themselves; the others are logarithmic up to
    the largest distance, which stands for all larger ones.

    Args:
        path: File of the settings, for error messages.
        most: Largest distance.
        source: [B, H] biases of the encoder; the second half of the buckets is of keys after a
            query.
        target: [B, H] biases of the decoder.

    Raises:
        InputError: The largest distance does not fit the number of buckets.
    """
    if not 4 <= min(len(source), len(target)) <= max(len(source), len(target)) < 2 * most < 2**17:
        raise InputError(
            f"{path}: the largest distance of relative positions is {most}, with {len(source)} and "
            f"{len(target)} buckets; more than half of the buckets and less than {2**16:,} is "
            "required, and 4 buckets."
        )

    def buckets(count: int) -> Tensor:
        distances, exact = torch.arange(most + 1), count // 2
        steps = torch.log(distances.float() / exact) / math.log(most / exact) * (count - exact)
        far = (exact + steps.clamp(min=0).long()).clamp(max=count - 1)
        return torch.where(distances < exact, distances, far)

    half = len(source) // 2
    of_source = buckets(half)
    rows = torch.cat((of_source.flip(0), half + of_source[1:]))
    weights = {"source_distances": source[rows], "target_distances": target[buckets(len(target))]}
    return ModelPart({"relative_positions": most}, weights)


def _sinusoids(table: Tensor) -> dict[str, Any] | None:
    """Return the fields of `ModelConfig` that compute a table; None if it is not sinusoidal."""
    for kind in ("interleaved", "concatenated", "tensor2tensor"):
        for first in _FIRST_POSITIONS:
            if is_sinusoid(table, kind, first):
                return {"sinusoid": kind, "first_position": first}
    return None


def is_sinusoid(
    table: Tensor, kind: str, first: int = 0, tolerance: float = _SINUSOID_TOLERANCE
) -> bool:
    """Return whether a table [positions, d_model] consists of sinusoids.

    Args:
        table: The table.
        kind: See `sinusoid` in train/model.py.
        first: Position of the first row.
        tolerance: Largest absolute difference.
    """
    if table.dim() != 2 or table.shape[1] < 4 or table.shape[1] % 2:
        return False
    expected = sinusoid(first + torch.arange(len(table)), table.shape[1], kind)
    return torch.allclose(table, expected, rtol=0, atol=tolerance)
